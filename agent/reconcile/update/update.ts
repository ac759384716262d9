/** Bringing a VM to what its VMI asks for (KubeVirt pkg/virt-handler/vm.go processVmUpdate). */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import { asError } from '../../as-error.js';
import { type CleanupDeps, cleanUp } from '../cleanup.js';
import type { ControllerDeps } from '../deps.js';
import { CriticalSecureBootError } from '../errors.js';
import { preallocatedVolumes, virtualMachineOptions } from '../options.js';
import type { VmiPass } from '../pass.js';
import { ConnectHeldBack, GhostRecordConflict, type LauncherClient } from '../ports.js';
import { isRunning } from '../predicates.js';
import { replacePvcByHostDisk } from '../pvc-hostdisk.js';
import { keepRunning, type RunningDeps } from './running.js';
import { prepareStart, type StartingDeps } from './starting.js';

export type UpdateDeps = StartingDeps &
  RunningDeps &
  CleanupDeps &
  Pick<ControllerDeps, 'pods' | 'hooks' | 'clusterConfig' | 'pluginsJson' | 'node'>;

export async function updateVm(deps: UpdateDeps, pass: VmiPass): Promise<void> {
  const { vmi } = pass;
  const probe = await deps.clients.isUnresponsive(vmi);
  if (!probe.initialized) {
    deps.queue.addAfter(pass.key, 1000);
    return;
  }
  if (probe.unresponsive) {
    throw new Error('Can not update a VirtualMachineInstance with unresponsive command server.');
  }
  deps.timeline?.mark(pass.ref, 'launcher ready', 'launcher');
  const client = await connect(deps, pass);
  if (client === undefined) return;
  deps.timeline?.mark(pass.ref, 'connected', 'helper');

  // The launcher gets a VMI of its own: claims are host disks there, which the API never sees.
  const launcherVmi = replacePvcByHostDisk(vmi);
  await deps.pods.identify(vmi);
  if (!isRunning(vmi)) {
    if (!(await prepareStart(deps, pass, launcherVmi))) return;
    if (deps.hooks.present) await deps.hooks.call('PreVMStart', launcherVmi);
    await synchronise(deps, pass, launcherVmi, client);
    return;
  }
  await unmountingRemovedVolumes(deps, pass, launcherVmi, async () => {
    const tolerated = await keepRunning(deps, pass, launcherVmi);
    await synchronise(deps, pass, launcherVmi, client);
    return tolerated;
  });
}

/**
 * The launcher's client; undefined when the key has to wait because of an older VM of the same name. Its
 * leftovers go as soon as its launcher is dead, and never before.
 */
export async function connect(deps: UpdateDeps, pass: VmiPass): Promise<LauncherClient | undefined> {
  try {
    return await deps.clients.get(pass.vmi);
  } catch (error) {
    if (!(error instanceof GhostRecordConflict)) {
      const message = `unable to create virt-launcher client connection: ${asError(error).message}`;
      if (error instanceof ConnectHeldBack) throw new ConnectHeldBack(message, error.retryAfterMs);
      throw new Error(message, { cause: error });
    }
    if (error.alive) {
      deps.events.event(pass.vmi, 'Warning', 'SyncFailed', error.message);
      deps.queue.addAfter(pass.key, 5000);
      return undefined;
    }
    deps.log.object(error.predecessor).warning('cleaning up after an older VMI of the same name', error);
    await cleanUp(deps, pass.key, error.predecessor);
    deps.queue.addAfter(pass.key, 1000);
    return undefined;
  }
}

async function synchronise(
  deps: UpdateDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
  client: LauncherClient,
): Promise<void> {
  const options = virtualMachineOptions({
    vmi: launcherVmi,
    preallocatedVolumes: preallocatedVolumes(pass.vmi),
    config: deps.clusterConfig(),
    topology: deps.node.topology(),
    pluginsJson: deps.pluginsJson(),
  });
  deps.timeline?.mark(pass.ref, 'sync sent', 'agent');
  try {
    await client.syncVirtualMachine(launcherVmi, options);
  } catch (error) {
    const { message } = asError(error);
    if (!message.includes('EFI OVMF rom missing')) throw error;
    throw new CriticalSecureBootError(`mismatch of Secure Boot setting and bootloaders: ${message}`, {
      cause: error,
    });
  }
  deps.timeline?.mark(pass.ref, 'sync done', 'launcher');
  if (pass.domain === undefined) {
    deps.events.event(pass.vmi, 'Normal', 'Created', 'VirtualMachineInstance defined.');
  }
  await deps.hypervisor.handleHousekeeping(launcherVmi, pass.domain);
}

/**
 * Removed volumes are unmounted whatever else fails: a volume that cannot be mounted must not keep the
 * others. Throws what `action` threw, then what it tolerated, then what unmounting threw.
 */
async function unmountingRemovedVolumes(
  deps: UpdateDeps,
  pass: VmiPass,
  launcherVmi: Vmi,
  action: () => Promise<Error | undefined>,
): Promise<void> {
  let failure: Error | undefined;
  try {
    failure = await action();
  } catch (error) {
    failure = asError(error);
  }
  try {
    await deps.hotplug.unmount(launcherVmi, attachedVolumes(pass.domain));
  } catch (error) {
    if (failure === undefined) throw error;
    deps.log.object(pass.ref).error('failed to unmount removed hotplug volumes, trying again later', error);
  }
  if (failure !== undefined) throw failure;
}

/** Volumes that the domain has a disk for. */
function attachedVolumes(domain: Domain | undefined): ReadonlySet<string> {
  const attached = new Set<string>();
  for (const { Alias, Source } of domain?.Spec.Devices.Disks ?? []) {
    if (Alias !== undefined && (Source.File !== '' || Source.Dev !== '')) attached.add(Alias.Name);
  }
  return attached;
}
