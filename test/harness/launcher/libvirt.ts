/**
 * libvirt's numbers for states, reasons and lifecycle events, and how KubeVirt names them
 * (pkg/virt-launcher/virtwrap/util ConvState, ConvReason). The stand-in drives QEMU without libvirt, but
 * tells of it in these terms, as the real launcher does.
 */
import type { DomainLifecycle } from '../../../agent/api/domain.js';

export const State = {
  noState: 0,
  running: 1,
  blocked: 2,
  paused: 3,
  shuttingDown: 4,
  shutoff: 5,
  crashed: 6,
  pmSuspended: 7,
} as const;

export const PausedReason = {
  unknown: 0,
  user: 1,
  migration: 2,
  save: 3,
  dump: 4,
  ioError: 5,
  watchdog: 6,
  fromSnapshot: 7,
  shuttingDown: 8,
  snapshot: 9,
  crashed: 10,
  startingUp: 11,
  postcopy: 12,
  postcopyFailed: 13,
} as const;

export const ShutoffReason = {
  unknown: 0,
  shutdown: 1,
  destroyed: 2,
  crashed: 3,
  migrated: 4,
  saved: 5,
  failed: 6,
  fromSnapshot: 7,
} as const;

/** libvirt's (state, reason) of a domain. */
export interface DomainState {
  readonly state: number;
  readonly reason: number;
}

/** Lifecycle event types with the details that the stand-in produces. */
export const Lifecycle = {
  definedAdded: { event: 0, detail: 0 },
  definedUpdated: { event: 0, detail: 1 },
  undefinedRemoved: { event: 1, detail: 0 },
  startedBooted: { event: 2, detail: 0 },
  startedMigrated: { event: 2, detail: 1 },
  suspendedPaused: { event: 3, detail: 0 },
  suspendedIoError: { event: 3, detail: 2 },
  suspendedWatchdog: { event: 3, detail: 3 },
  resumedUnpaused: { event: 4, detail: 0 },
  stoppedShutdown: { event: 5, detail: 0 },
  stoppedDestroyed: { event: 5, detail: 1 },
  stoppedFailed: { event: 5, detail: 5 },
  shutdownGuest: { event: 6, detail: 1 },
  shutdownHost: { event: 6, detail: 2 },
  crashedPanicked: { event: 8, detail: 0 },
  crashedCrashloaded: { event: 8, detail: 1 },
} as const;

export interface LifecycleEvent {
  readonly event: number;
  readonly detail: number;
}

export function sameEvent(a: LifecycleEvent | undefined, b: LifecycleEvent): boolean {
  return a?.event === b.event && a.detail === b.detail;
}

const stateNames: readonly DomainLifecycle[] = [
  'NoState',
  'Running',
  'Blocked',
  'Paused',
  'ShuttingDown',
  'Shutoff',
  'Crashed',
  'PMSuspended',
];

const reasonNames: Readonly<Record<number, readonly string[]>> = {
  [State.paused]: [
    'Unknown',
    'User',
    'Migration',
    'Save',
    'Dump',
    'IOError',
    'Watchdog',
    'FromSnapshot',
    'ShuttingDown',
    'Snapshot',
    'Crashed',
    'StartingUp',
    'Postcopy',
    'PostcopyFailed',
  ],
  [State.shuttingDown]: ['Unknown', 'User'],
  [State.shutoff]: [
    'Unknown',
    'Shutdown',
    'Destroyed',
    'Crashed',
    'Migrated',
    'Saved',
    'Failed',
    'FromSnapshot',
  ],
  [State.crashed]: ['Unknown', 'Panicked'],
};

/** A state number outside libvirt's gives an empty text. */
export function stateName(state: number): DomainLifecycle {
  return stateNames[state] ?? '';
}

/** A reason number outside libvirt's gives an empty text where reasons have names. */
export function reasonName({ state, reason }: DomainState): string {
  const names = reasonNames[state];
  return names === undefined ? 'Unknown' : (names[reason] ?? '');
}

/** A failure as libvirt reports it. */
export class LibvirtError extends Error {
  override readonly name = 'LibvirtError';
  constructor(
    readonly code: number,
    readonly domain: number,
    readonly detail: string,
  ) {
    super(`LibvirtError(Code=${code}, Domain=${domain}, Message='${detail}')`);
  }
}

/** VIR_ERR_OPERATION_INVALID of the QEMU driver. */
export function invalidOperation(detail: string): LibvirtError {
  return new LibvirtError(55, 10, `Requested operation is not valid: ${detail}`);
}

/** VIR_ERR_INTERNAL_ERROR of the QEMU driver. */
export function internalError(detail: string): LibvirtError {
  return new LibvirtError(1, 10, `internal error: ${detail}`);
}
