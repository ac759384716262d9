/** Mounting hotplugged volumes without holding up the rest of the VM. */
import type { Vmi } from '../../api/vmi.js';
import type { ControllerDeps } from '../deps.js';
import type { VmiPass } from '../pass.js';
import { NotExist, WaitingForHotplugMount } from '../ports.js';

export type HotplugMountDeps = Pick<ControllerDeps, 'hotplug' | 'queue' | 'events'>;

/** A volume that is not there yet is asked for again; one that is gone is reported. Throws anything else. */
export async function mountHotplugVolumes(
  deps: HotplugMountDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
): Promise<void> {
  try {
    await deps.hotplug.mount(launcherVmi);
  } catch (error) {
    if (error instanceof WaitingForHotplugMount) {
      deps.queue.addAfter(pass.key, 1000);
    } else if (error instanceof NotExist) {
      deps.events.event(pass.vmi, 'Warning', 'HotplugFailed', error.message);
    } else {
      throw error;
    }
  }
}
