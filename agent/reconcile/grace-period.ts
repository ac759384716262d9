/** Arithmetic of the graceful shutdown (KubeVirt pkg/virt-handler/vm.go hasGracePeriodExpired). Pure. */
import type { Domain } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import { instant } from './time.js';

export interface GraceState {
  readonly expired: boolean;
  /** Whole seconds; undefined when the shutdown has not been signalled yet. */
  readonly secondsLeft: number | undefined;
}

/** The VMI's own period wins over the domain's; a VMI that is gone has none. `now`: ms since the epoch. */
export function graceState(
  terminationGracePeriodSeconds: number | undefined,
  domain: Domain | undefined,
  now: number,
): GraceState {
  const metadata = domain?.Spec.Metadata.KubeVirt.GracePeriod;
  const period = terminationGracePeriodSeconds ?? metadata?.DeletionGracePeriodSeconds ?? 0;
  if (period === 0) return { expired: true, secondsLeft: 0 };
  const signalled = instant(metadata?.DeletionTimestamp);
  if (signalled === undefined) return { expired: false, secondsLeft: undefined };
  const passed = Math.floor(now / 1000) - Math.floor(signalled / 1000);
  if (passed >= period) return { expired: true, secondsLeft: 0 };
  return { expired: false, secondsLeft: Math.max(1, period - passed) };
}

/** Seconds; undefined when the VMI does not say or is gone. */
export function gracePeriodOf(vmi: Vmi | undefined): number | undefined {
  const seconds = vmi?.spec.terminationGracePeriodSeconds;
  return seconds === undefined || seconds === null ? undefined : Number(seconds);
}

const signalEverySeconds = 5;

/** Seconds until the shutdown is signalled again or the domain killed. */
export function nextSignalSeconds(
  terminationGracePeriodSeconds: number | undefined,
  { secondsLeft }: GraceState,
): number {
  return Math.min(signalEverySeconds, secondsLeft ?? terminationGracePeriodSeconds ?? signalEverySeconds);
}
