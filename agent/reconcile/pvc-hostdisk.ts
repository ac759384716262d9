/**
 * Filesystem claims become host disks in the VMI that the launcher gets, and only there (KubeVirt
 * pkg/host-disk ReplacePVCByHostDisk). Pure.
 */
import { formatQuantity, quantityFormat, quantityValue } from '../api/quantity.js';
import type { Vmi, VmiSpec } from '../api/vmi.js';
import { alignToMebibyte, claimImagePath } from '../storage/host-disks.js';

type Volume = NonNullable<VmiSpec['volumes']>[number];
type ClaimInfo = NonNullable<NonNullable<Vmi['status']['volumeStatus']>[number]['persistentVolumeClaimInfo']>;

/** The VMI itself where nothing is to be replaced, else a copy. Throws when a claim's size is no use. */
export function replacePvcByHostDisk(vmi: Vmi): Vmi {
  const volumes = vmi.spec.volumes ?? [];
  const claims = replaceableClaims(vmi);
  const rewritten = volumes.map((volume) => {
    const claim = claims.get(volume.name);
    return claim === undefined ? volume : hostDiskVolume(volume.name, claim);
  });
  if (rewritten.every((volume, index) => volume === volumes[index])) return vmi;
  return { ...vmi, spec: { ...vmi.spec, volumes: rewritten } };
}

function replaceableClaims(vmi: Vmi): Map<string, ClaimInfo> {
  const statuses = vmi.status.volumeStatus ?? [];
  const others = new Set([
    ...(vmi.spec.domain?.devices?.filesystems ?? []).map(({ name }) => name),
    ...statuses.filter(({ hotplugVolume }) => hotplugVolume != null).map(({ name }) => name),
  ]);
  const claims = new Map<string, ClaimInfo>();
  for (const volume of vmi.spec.volumes ?? []) {
    if (!usesClaim(volume) || others.has(volume.name)) continue;
    const claim = statuses.findLast(
      ({ name, persistentVolumeClaimInfo }) => name === volume.name && persistentVolumeClaimInfo != null,
    )?.persistentVolumeClaimInfo;
    if (claim != null && claim.volumeMode !== 'Block') claims.set(volume.name, claim);
  }
  return claims;
}

function usesClaim({ persistentVolumeClaim, dataVolume }: Volume): boolean {
  return persistentVolumeClaim != null || (dataVolume != null && dataVolume.name !== '');
}

function hostDiskVolume(name: string, claim: ClaimInfo): Volume {
  return {
    name,
    hostDisk: {
      path: claimImagePath(name),
      type: 'DiskOrCreate',
      capacity: diskCapacity(name, claim),
      shared: (claim.accessModes as readonly string[] | undefined)?.includes('ReadWriteMany') ?? false,
    },
  };
}

/**
 * The smaller of what was requested and what there is, in whole MiB and the notation of the latter; where nothing is
 * said to be there, in that of a Kubernetes quantity without one.
 */
function diskCapacity(name: string, claim: ClaimInfo): string {
  const capacity = storageOf(name, claim.capacity);
  const requested = storageOf(name, claim.requests);
  const [size] = [capacity?.value, requested?.value]
    .filter((value) => value !== undefined)
    .sort((a, b) => (a < b ? -1 : 1));
  if (size === undefined) {
    throw new Error(
      'unable to determine capacity of HostDisk from PVC that provides no storage capacity or requests',
    );
  }
  const rounded = alignToMebibyte(size);
  if (rounded <= 0n) throw new Error(`the size for volume ${name} is too low, must be at least 1MiB`);
  return formatQuantity(rounded, capacity?.format ?? 'exponent');
}

function storageOf(name: string, resources: Readonly<Record<string, string>> | undefined) {
  const storage = resources?.['storage'];
  if (storage === undefined || storage === null) return undefined;
  // A bare number in the API's JSON stands for its text.
  const text = String(storage);
  const value = quantityValue(text);
  if (value === undefined) throw new Error(`the size for volume ${name} is not a quantity: ${text}`);
  return { value, format: quantityFormat(text) };
}
