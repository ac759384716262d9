/** The end of the agent: in order, and in time whatever hangs. */
import { type Timers, within } from './kube/timers.js';
import type { Logger } from './log/log.js';

/** For passes under way, and then for what they used. kubelet kills 30 s after it asked. */
const passesMs = 10_000;
const restMs = 5_000;

/** `passes` and `rest` begin to end what they are named after. What does not end in time is left to the process. */
export async function stopInTime(
  { timers, log }: { readonly timers: Timers; readonly log: Logger },
  passes: () => Promise<unknown>,
  rest: () => readonly Promise<unknown>[],
): Promise<void> {
  const inTime = (ms: number, ending: Promise<unknown>) =>
    within(
      timers,
      ms,
      ending.then(() => true),
      () => false,
    );
  if (!(await inTime(passesMs, passes())))
    log.warning('passes under way do not end: the next agent takes their VMs up');
  if (!(await inTime(restMs, Promise.all(rest()))))
    log.warning('not everything ended: stopping all the same');
}
