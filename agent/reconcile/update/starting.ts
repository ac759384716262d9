/** What a VM needs before its domain starts (KubeVirt pkg/virt-handler/vm.go handleStartingVMI). */
import type { Vmi } from '../../api/vmi.js';
import { isHotpluggable } from '../../devices/block-volumes.js';
import { networksForStart } from '../../network/filters.js';
import { vmiInterfaces, vmiNetworks } from '../../network/vmi-network.js';
import type { ControllerDeps } from '../deps.js';
import { explained } from '../errors.js';
import type { VmiPass } from '../pass.js';
import { type HotplugMountDeps, lookAgain, mountHotplugVolumes } from './hotplug-mount.js';

export type StartingDeps = HotplugMountDeps &
  Pick<ControllerDeps, 'clients' | 'containerDisks' | 'networks' | 'devices' | 'hypervisor' | 'timeline'>;

/** Every step may be repeated. False: something is not there yet, the key comes back. */
export async function prepareStart(deps: StartingDeps, pass: VmiPass, launcherVmi: Vmi): Promise<boolean> {
  const since = deps.clients.notInitializedSince(pass.ref.uid);
  if (since === undefined) {
    deps.queue.addRateLimited(pass.key);
    return false;
  }
  if (!(await deps.containerDisks.ready(launcherVmi, since))) {
    deps.queue.addAfter(pass.key, 1000);
    return false;
  }
  deps.timeline?.mark(pass.ref, 'container disks ready', 'helper');
  await deps.containerDisks.mountAndVerify(launcherVmi);
  deps.timeline?.mark(pass.ref, 'container disks mounted', 'helper');
  const failed = await mountHotplugVolumes(deps, pass, launcherVmi);
  if (failed !== undefined) throw failed;
  if (!hotplugVolumesReady(launcherVmi)) {
    lookAgain(deps, pass);
    return false;
  }
  const networks = networksForStart(vmiNetworks(launcherVmi), vmiInterfaces(launcherVmi));
  if (networks.length > 0) {
    await explained('failed to configure vmi network', () => deps.networks.setup(launcherVmi, networks));
    deps.timeline?.mark(pass.ref, 'network set up', 'helper');
  }
  if (!(await deps.devices.claim(launcherVmi, since))) {
    deps.queue.addAfter(pass.key, 1000);
    return false;
  }
  deps.timeline?.mark(pass.ref, 'devices claimed', 'helper');
  await explained('failed to adjust resources', () => deps.hypervisor.adjustResources(launcherVmi));
  return !waitsForAttestation(launcherVmi);
}

/** A guest with hotpluggable volumes starts when all of them are in the pod. */
export function hotplugVolumesReady(vmi: Vmi): boolean {
  const hotpluggable = (vmi.spec.volumes ?? []).some(isHotpluggable);
  if (!hotpluggable && (vmi.spec.utilityVolumes ?? []).length === 0) return true;
  const statuses = vmi.status.volumeStatus ?? [];
  return (
    statuses.length > 0 &&
    statuses.every(
      ({ hotplugVolume, phase }) => hotplugVolume == null || phase === 'Ready' || phase === 'MountedToPod',
    )
  );
}

/** The owner of the guest supplies session and certificate by updating the VMI, which wakes the key. */
export function waitsForAttestation(vmi: Vmi): boolean {
  const security = vmi.spec.domain?.launchSecurity;
  if (security?.sev?.attestation == null || security.snp != null) return false;
  const { session, dhCert } = security.sev;
  return session == null || session === '' || dhCert == null || dhCert === '';
}
