/** How large the image of a host disk becomes (KubeVirt pkg/host-disk handleRequestedSizeAndCreateSparseRaw). Pure. */

/** All sizes in bytes. */
export interface HostDiskSpace {
  /** What the image should have. */
  readonly capacity: bigint;
  /** What a user may write to the file system. */
  readonly free: bigint;
  readonly reserve: bigint;
  /** Percent of the capacity by which the image may be smaller. */
  readonly tolerance: number;
}

/** `size` undefined: there is not enough space. `available` is what the reserve leaves, never less than 0. */
export function hostDiskSize({ capacity, free, reserve, tolerance }: HostDiskSpace): {
  readonly size: bigint | undefined;
  readonly available: bigint;
} {
  const available = free > reserve ? free - reserve : 0n;
  if (capacity <= available) return { size: capacity, available };
  const tolerated = (capacity * BigInt(100 - tolerance)) / 100n;
  return { size: available > 0n && tolerated <= available ? available : undefined, available };
}
