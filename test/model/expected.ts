/** What must be true in the end, from what happened to each VM alone. Knows nothing of how the agent works. */
import type { Phase } from '../../agent/api/vmi.js';
import type { ModelVm } from './cluster.js';

/** Phases that a VMI that still exists may end in; empty: it must be gone. */
export function finalPhases({ launcher, deleted }: ModelVm): Phase[] {
  if (deleted) return [];
  const { started, ends } = launcher.history;
  const others = ends.filter((end) => end !== networkFailed);
  const phases = others.length > 0 ? phasesAfter(others) : phasesAlive(started, launcher.traits.socketAfter);
  return ends.includes(networkFailed) ? [...phases, 'Failed'] : phases;
}

/** Fails the VMI, unless the agent died before it could say so: then it is tried again, and works. */
export const networkFailed = 'network failed';

function phasesAlive(started: boolean, socketAfter: number | undefined): Phase[] {
  if (socketAfter === undefined) return ['Failed'];
  return started ? ['Running'] : ['Scheduled', 'Running'];
}

function phasesAfter([first, ...later]: readonly string[]): Phase[] {
  switch (first) {
    case 'evicted':
      return ['Succeeded', 'Failed'];
    case 'poweroff':
      // It is not certain that the agent heard of it before the next thing happened.
      return later.length === 0 ? ['Succeeded'] : ['Succeeded', 'Failed'];
    default:
      return ['Failed'];
  }
}
