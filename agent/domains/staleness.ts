import type { Liveness } from '../launcher/connections.js';

/** Since when a launcher was seen dead, whole seconds since the epoch; undefined while it is not. */
export type DeadSince = number | undefined;

export interface Staleness {
  readonly deadSince: DeadSince;
  /** The launcher has been dead for longer than the watchdog's time: the domain is gone. */
  readonly gone: boolean;
}

/**
 * One look at one launcher (KubeVirt pkg/virt-handler/cache/domain-watcher.go handleStaleSocketConnections).
 * Only a dead one is counted; one that hangs or could not be asked about keeps what was known. `now` and
 * `watchdogSeconds` in whole seconds; the watchdog's time must be exceeded, not just reached.
 */
export function judgeStaleness(
  deadSince: DeadSince,
  liveness: Liveness,
  now: number,
  watchdogSeconds: number,
): Staleness {
  switch (liveness) {
    case 'alive':
    case 'hung':
      return { deadSince: undefined, gone: false };
    case 'unknown':
      return { deadSince, gone: false };
    case 'dead': {
      const since = deadSince ?? now;
      return { deadSince: since, gone: now - since > watchdogSeconds };
    }
  }
}

/** Seconds between two looks. */
export function staleCheckSeconds(watchdogSeconds: number): number {
  return Math.floor(watchdogSeconds / 3) + 1;
}
