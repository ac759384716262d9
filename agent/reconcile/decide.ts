/** What one pass does with a VMI (KubeVirt pkg/virt-handler/vm.go sync). Pure. */
import type { Domain } from '../api/domain.js';
import type { Phase, Vmi } from '../api/vmi.js';
import {
  domainPausedFailedPostCopy,
  isAlive,
  isDeleting,
  isFinal,
  isRunning,
  phaseOf,
} from './predicates.js';
import { instant } from './time.js';

export type Branch = 'shutdown' | 'destroy' | 'delete' | 'update' | 'none';

export interface DecideFacts {
  /** Undefined: gone from the API. */
  readonly vmi: Vmi | undefined;
  /** Undefined also for a domain with a deletion timestamp. */
  readonly domain: Domain | undefined;
  /** The phase that the VMI should have; it is written before anything else is done about it. */
  readonly phase: Phase | undefined;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

export interface Decision {
  readonly branch: Branch;
  /** The domain looks stopped but is still starting: come back. */
  readonly requeueAfterMs?: number;
}

/** How long a domain that is off for no reason counts as starting, from the phase Scheduled on. */
export const slowStartMs = 5 * 60 * 1000;

export function decide(facts: DecideFacts): Decision {
  const { vmi, domain } = facts;
  const alive = isAlive(domain);
  const stopped = domain !== undefined && !alive;
  const final = vmi !== undefined && isFinal(vmi);
  const markedGraceful = domain?.Spec.Metadata.KubeVirt.GracePeriod?.MarkedForGracefulShutdown === true;
  const mustGo = vmi === undefined || isDeleting(vmi) || (markedGraceful && isRunning(vmi));

  if (alive && mustGo) return { branch: 'shutdown' };
  if (domainPausedFailedPostCopy(domain)) return { branch: 'destroy' };
  const starting = isStartingSlowly(facts);
  const deferred = starting ? { requeueAfterMs: 5000 } : {};
  if ((!alive && mustGo) || final || (stopped && !starting)) return { branch: 'delete' };
  if (vmi !== undefined && facts.phase === phaseOf(vmi)) return { branch: 'update', ...deferred };
  return { branch: 'none', ...deferred };
}

/**
 * While a domain with much memory or passed-through devices starts it is reported off without a reason.
 * Undefining it then would leave a guest that nobody manages.
 */
function isStartingSlowly({ vmi, domain, now }: DecideFacts): boolean {
  if (vmi === undefined || isDeleting(vmi) || phaseOf(vmi) !== 'Scheduled') return false;
  if (domain?.Status.Status !== 'Shutoff') return false;
  if (domain.Status.Reason !== '' && domain.Status.Reason !== 'Unknown') return false;
  const scheduled = vmi.status.phaseTransitionTimestamps?.find(({ phase }) => phase === 'Scheduled');
  const since = instant(scheduled?.phaseTransitionTimestamp) ?? instant(vmi.metadata.creationTimestamp);
  return since !== undefined && now - since <= slowStartMs;
}
