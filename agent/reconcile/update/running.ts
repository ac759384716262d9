/** What a running VM needs before it is synchronised (KubeVirt pkg/virt-handler/vm.go handleRunningVMI). */
import type { Vmi } from '../../api/vmi.js';
import { asError } from '../../as-error.js';
import { networksForLiveUpdate } from '../../network/filters.js';
import { interfaceStatuses, vmiInterfaces, vmiNetworks } from '../../network/vmi-network.js';
import type { VmMemory } from '../cleanup.js';
import type { ControllerDeps } from '../deps.js';
import { explained, joined } from '../errors.js';
import type { VmiPass } from '../pass.js';
import { type HotplugMountDeps, mountHotplugVolumes } from './hotplug-mount.js';
import { sriovHotplugPending } from './sriov-hotplug.js';

export type RunningDeps = HotplugMountDeps &
  Pick<
    ControllerDeps,
    'clients' | 'pods' | 'hypervisor' | 'downwardMetrics' | 'networks' | 'clock' | 'log' | 'timeline'
  > & { readonly memory: VmMemory };

/** Returns the errors that the VM is synchronised in spite of, as one; throws any other. */
export async function keepRunning(
  deps: RunningDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
): Promise<Error | undefined> {
  await hotplugSriov(deps, pass, launcherVmi);
  const volumes = await mountHotplugVolumes(deps, pass, launcherVmi);
  await explained('failed to getting memory dump', () => dumpMemory(deps, launcherVmi));
  await explained('failed to detect isolation for launcher pod', () => deps.pods.identify(launcherVmi));
  await deps.downwardMetrics.startServer(launcherVmi);
  const networks = await updateNetworks(deps, pass, launcherVmi);
  return joined([volumes, networks].filter((error) => error !== undefined));
}

/** Sent on every pass while a dump is in progress; the launcher knows one that it has begun. */
async function dumpMemory(deps: RunningDeps, vmi: Vmi): Promise<void> {
  for (const { name, phase, memoryDumpVolume } of vmi.status.volumeStatus ?? []) {
    if (memoryDumpVolume == null || phase !== 'MemoryDumpInProgress') continue;
    const client = await deps.clients.getVerified(vmi);
    const path = `/var/run/kubevirt/hotplug-disks/${name}/${memoryDumpVolume.targetFileName ?? ''}`;
    await client.virtualMachineMemoryDump(vmi, path);
  }
}

/**
 * The launcher plugs what the pod's network offers; a NIC that fails is reported and tried again, and is
 * no reason to fail a VM that runs (so the cause, which may be critical, is not kept).
 */
async function updateNetworks(deps: RunningDeps, pass: VmiPass, vmi: Vmi): Promise<Error | undefined> {
  const networks = networksForLiveUpdate(vmiNetworks(vmi), vmiInterfaces(vmi), interfaceStatuses(vmi));
  if (networks.length === 0) return undefined;
  try {
    await deps.networks.setup(vmi, networks);
    return undefined;
  } catch (error) {
    const { message } = asError(error);
    deps.events.event(pass.vmi, 'Warning', 'NicHotplug', message);
    return new Error(message);
  }
}

/** SR-IOV devices that the pod got after the VM started. Errors are logged; the next run tries again. */
async function hotplugSriov(deps: RunningDeps, pass: VmiPass, vmi: Vmi): Promise<void> {
  const { sriov } = deps.memory;
  if (!sriovHotplugPending(vmi)) {
    sriov.forget(pass.ref.uid);
    return;
  }
  const turn = sriov.turn(pass.ref.uid);
  if (turn.nextInMs !== undefined) deps.queue.addAfter(pass.key, turn.nextInMs);
  if (!turn.run) return;
  try {
    const client = await deps.clients.getVerified(vmi);
    await adjustForSriov(deps, pass, vmi);
    await client.hotplugHostDevices(vmi);
  } catch (error) {
    deps.log.object(pass.ref).error('failed to hotplug SR-IOV host devices, trying again later', error);
  }
}

async function adjustForSriov(deps: RunningDeps, pass: VmiPass, vmi: Vmi): Promise<void> {
  try {
    await deps.hypervisor.adjustResources(vmi);
  } catch (error) {
    const { message } = asError(error);
    deps.events.event(pass.vmi, 'Warning', message, message);
    throw error;
  }
}
