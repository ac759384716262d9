/** Mounting hotplugged volumes without holding up the rest of the VM. */
import type { Vmi } from '../../api/vmi.js';
import type { VmMemory } from '../cleanup.js';
import type { ControllerDeps } from '../deps.js';
import { asError } from '../errors.js';
import type { VmiPass } from '../pass.js';
import { NotExist, WaitingForHotplugMount } from '../ports.js';

export type HotplugMountDeps = Pick<ControllerDeps, 'hotplug' | 'queue' | 'events'> & {
  readonly memory: Pick<VmMemory, 'volumePolls'>;
};

/** A volume that is not there yet is asked for again; one that is gone is reported. Throws anything else. */
export async function mountHotplugVolumes(
  deps: HotplugMountDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
): Promise<void> {
  try {
    await deps.hotplug.mount(launcherVmi);
  } catch (error) {
    const reasons = error instanceof AggregateError ? error.errors.map(asError) : [asError(error)];
    const others = reasons.filter((reason) => {
      if (reason instanceof WaitingForHotplugMount) {
        lookAgain(deps, pass);
        return false;
      }
      if (!(reason instanceof NotExist)) return true;
      deps.events.event(pass.vmi, 'Warning', 'HotplugFailed', reason.message);
      return false;
    });
    const [first] = others;
    if (first === undefined) return;
    throw others.length === 1 ? first : new Error(others.map(({ message }) => message).join('; '));
  }
}

/** Brings the key back for volumes that are on their way. */
export function lookAgain(
  { queue, memory }: Pick<HotplugMountDeps, 'queue' | 'memory'>,
  pass: VmiPass,
): void {
  queue.addAfter(pass.key, memory.volumePolls.nextInMs(pass.vmi, pass.domain));
}
