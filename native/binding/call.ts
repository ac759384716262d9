/** What all privileged calls have in common. */

/** A failed system call or check. */
export interface NativeError extends Error {
  /** Symbolic errno, for instance `EACCES`; `EPERM` for a failed identity check. */
  readonly code: string;
  readonly errno: number;
  /** What was attempted, for instance `openat2 launcher-sock`. */
  readonly operation: string;
  /** True when an identity or type check refused, not the kernel. */
  readonly refused: boolean;
  /** False when something in the pod may differ from before the call. */
  readonly unchanged: boolean;
  /** Position of what failed in the list that the call was given; absent where it is about none of them. */
  readonly item?: number;
}

/** Options common to all privileged calls. */
export interface Call {
  readonly caps: bigint;
  readonly deadlineMs: number;
  /** Checked before anything else of the call, with the same capabilities, as by `checkLauncher`. */
  readonly launcher?: Pick<Launcher, 'pidfd'> & { readonly podUid: string };
}

/** Peer of an accepted connection (SO_PEERCRED). */
export interface Peer {
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

/** A launcher process and its namespaces, taken together once. Descriptors belong to the caller. */
export interface Launcher {
  readonly pidfd: number;
  /** Mount namespace. */
  readonly mntns: number;
  /** Network namespace. */
  readonly netns: number;
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}
