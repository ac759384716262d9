/** Removing everything that this node keeps for a VMI (KubeVirt pkg/virt-handler/vm.go processVmCleanup). */
import type { VmiRef } from '../api/vmi.js';
import type { ControllerDeps } from './deps.js';
import type { EndedGuests } from './ended-guests.js';
import type { IoErrorBackoff } from './io-errors.js';
import type { PanicCounter } from './panics.js';
import type { StartingDomains } from './starting-domains.js';
import type { SriovHotplug } from './update/sriov-hotplug.js';
import type { VolumePolls } from './volume-poll.js';

export type CleanupDeps = Pick<
  ControllerDeps,
  | 'clients'
  | 'containerDisks'
  | 'hotplug'
  | 'networks'
  | 'netStat'
  | 'downwardMetrics'
  | 'migrationProxy'
  | 'domains'
  | 'timeline'
  | 'log'
> & { readonly memory: VmMemory };

/** What the loop itself remembers about each VMI, by UID. */
export interface VmMemory {
  readonly panics: PanicCounter;
  readonly sriov: SriovHotplug;
  readonly ioErrors: IoErrorBackoff;
  readonly ended: EndedGuests;
  readonly volumePolls: VolumePolls;
  readonly starting: StartingDomains;
}

/**
 * Strict order; every step may be repeated. A volume that cannot be unmounted ends it: the pod's network
 * stays as long as a disk may be in use. The ghost record goes last, because after a restart it is all
 * that says that something is left to be cleaned up.
 *
 * With an empty UID the ports do nothing, and networks are not asked.
 */
export async function cleanUp(deps: CleanupDeps, key: string, ref: VmiRef): Promise<void> {
  deps.memory.panics.forget(ref.uid);
  deps.migrationProxy.stopTargetListener(ref.uid);
  deps.migrationProxy.stopSourceListener(ref.uid);
  deps.downwardMetrics.stopServer(ref);
  await deps.containerDisks.unmount(ref);
  await deps.hotplug.unmountAll(ref);
  if (ref.uid !== '') {
    try {
      await deps.networks.teardown(ref);
    } catch (error) {
      deps.log.object(ref).error('failed to tear down the pod network, it ends with the pod', error);
    }
    deps.netStat.teardown(ref);
  }
  deps.memory.sriov.forget(ref.uid);
  deps.memory.ioErrors.forget(ref.uid);
  deps.memory.volumePolls.forget(ref.uid);
  deps.memory.starting.forget(ref.uid);
  await deps.clients.close(ref);
  deps.domains.delete(key);
  await deps.clients.forget(ref);
  deps.timeline?.mark(ref, 'cleaned', 'agent');
}
