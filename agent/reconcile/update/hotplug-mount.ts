/** Mounting hotplugged volumes without holding up the rest of the VM. */
import type { Vmi } from '../../api/vmi.js';
import { asError } from '../../as-error.js';
import type { VmMemory } from '../cleanup.js';
import type { ControllerDeps } from '../deps.js';
import { joined } from '../errors.js';
import type { VmiPass } from '../pass.js';
import { NotExist, VolumeFailed, WaitingForHotplugMount } from '../ports.js';

export type HotplugMountDeps = Pick<ControllerDeps, 'hotplug' | 'queue' | 'events'> & {
  readonly memory: Pick<VmMemory, 'volumePolls'>;
};

/**
 * A volume that is not there yet is asked for again; one that is gone is reported. Returns what made others fail,
 * reported as well; throws anything else.
 */
export async function mountHotplugVolumes(
  deps: HotplugMountDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
): Promise<Error | undefined> {
  try {
    await deps.hotplug.mount(launcherVmi);
    return undefined;
  } catch (error) {
    const reasons = error instanceof AggregateError ? error.errors.map(asError) : [asError(error)];
    const failed: Error[] = [];
    const others: Error[] = [];
    for (const reason of reasons) {
      if (reason instanceof WaitingForHotplugMount) {
        lookAgain(deps, pass);
        continue;
      }
      const ofVolume = reason instanceof NotExist || reason instanceof VolumeFailed;
      if (ofVolume) deps.events.event(pass.vmi, 'Warning', 'HotplugFailed', reason.message);
      if (reason instanceof VolumeFailed) failed.push(reason);
      if (!ofVolume) others.push(reason);
    }
    if (others.length > 0) throw joined([...others, ...failed]);
    return joined(failed);
  }
}

/** Brings the key back for volumes that are on their way. */
export function lookAgain(
  { queue, memory }: Pick<HotplugMountDeps, 'queue' | 'memory'>,
  pass: VmiPass,
): void {
  queue.addAfter(pass.key, memory.volumePolls.nextInMs(pass.vmi, pass.domain));
}
