import type { Vmi } from '../api/vmi.js';
import { type HotplugVolumes, NotExist } from '../reconcile/ports.js';

/**
 * Hotplugged volumes, which this version does not attach: a VMI that has some keeps running and gets an
 * event that says so.
 */
export class NoHotplugVolumes implements HotplugVolumes {
  async mount(vmi: Vmi): Promise<void> {
    const wanted = new Set([
      ...(vmi.spec.volumes ?? []).map((volume) => volume.name),
      ...(vmi.spec.utilityVolumes ?? []).map((volume) => volume.name),
    ]);
    const hotplugged = (vmi.status.volumeStatus ?? [])
      .filter((status) => status.hotplugVolume !== undefined && wanted.has(status.name))
      .map((status) => status.name);
    if (hotplugged.length > 0) {
      throw new NotExist(`hotplug volumes are not supported by this version: ${hotplugged.join(', ')}`);
    }
  }

  async unmount(): Promise<void> {}

  async unmountAll(): Promise<void> {}

  async isMounted(): Promise<boolean> {
    return false;
  }
}
