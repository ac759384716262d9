/** Brings a VMI's status up to date (KubeVirt pkg/virt-handler/vm.go updateVMIStatus). */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import { asError } from '../../as-error.js';
import { isGateOn } from '../../cluster/config.js';
import { cloneJson } from '../../json/lossless.js';
import { isDeleting, isRunning, refOf } from '../predicates.js';
import { rfc3339 } from '../time.js';
import { accessCredentials } from './access-credentials.js';
import { backupStatus } from './backup-status.js';
import { isTrackingInitialized } from './cbt-state.js';
import { lacksChecksums, withChecksums } from './checksums.js';
import { type Condition, conditionsOf } from './conditions.js';
import { fsFreezeStatus, machine, selinuxContext } from './domain-fields.js';
import { agentConnected, agentSupported, guestAgentObstacle, isAgentConnected } from './guest-agent.js';
import { guestOsInfo } from './guest-os-info.js';
import { isoOf } from './iso-size.js';
import { liveMigratable } from './live-migratable.js';
import { memory } from './memory.js';
import type { StatusEvent, StatusInput, StatusPorts, StatusResult, StatusSettings } from './pass.js';
import { paused } from './paused.js';
import { softwareEmulation } from './software-emulation.js';
import { volumeStatuses } from './volume-status.js';

/**
 * Everything of updateVMIStatus but phase, Synchronized, transition timestamps and the write, in its
 * order, on a copy of the VMI. Throws what makes the write impossible (network status, guest agent,
 * backup trackers): nothing is to be written in this pass then.
 */
export async function applyStatusRules(
  input: StatusInput,
  ports: StatusPorts,
  settings: StatusSettings,
): Promise<StatusResult> {
  const { domain } = input;
  const vmi = cloneJson(input.vmi);
  const now = ports.clock.now();

  await setIsoSizes(vmi, ports);
  await setSelinuxContext(vmi, ports);
  setField(vmi.status, 'guestOSInfo', guestOsInfo(vmi.status.guestOSInfo, domain));
  const volumes = await setVolumeStatus(vmi, domain, ports, now);
  setField(vmi.status, 'fsFreezeStatus', fsFreezeStatus(vmi.status.fsFreezeStatus, domain));
  setField(vmi.status, 'changedBlockTracking', backupStatus(vmi.status.changedBlockTracking, domain));
  setField(vmi.status, 'machine', machine(vmi.status.machine, domain));
  setField(vmi.status, 'memory', memory(vmi.status.memory, domain));
  await enableBlockTracking(vmi, domain, ports);
  await ports.netStat.updateStatus(vmi, domain);
  const conditionEvents = await setConditions(vmi, domain, ports, settings, rfc3339(now));
  setChecksums(vmi, input.branchFailed, ports, settings);

  return {
    vmi,
    events: [...volumes.events, ...conditionEvents],
    volumesOnTheirWay: volumes.onTheirWay,
  };
}

function setField<T extends object, K extends keyof T>(object: T, key: K, value: T[K] | undefined): void {
  if (value === undefined) delete object[key];
  else object[key] = value;
}

async function setIsoSizes(vmi: Vmi, ports: StatusPorts): Promise<void> {
  const entries = vmi.status.volumeStatus ?? [];
  if (!isRunning(vmi) || entries.length === 0) return;
  const log = ports.log.object(refOf(vmi));
  const podUid = podOnNode(vmi);
  if (podUid === undefined) {
    log.warning('sizes of ISO volumes stay unknown: no active pod on this node');
    return;
  }
  for (const disk of vmi.spec.domain?.devices?.disks ?? []) {
    const volume = vmi.spec.volumes?.find(({ name }) => name === disk.name);
    const iso = volume && isoOf(vmi.metadata.namespace, vmi.metadata.name, volume);
    const entry = entries.find(({ name }) => name === disk.name);
    // An image keeps its size: a migration's target makes it of the size that stands here.
    if (iso === undefined || entry === undefined || entry.size) continue;
    try {
      entry.size = await ports.facts.isoSize(vmi, podUid, iso);
    } catch (error) {
      log.warning(`size of ISO volume ${disk.name} stays unknown`, error);
    }
  }
}

async function setSelinuxContext(vmi: Vmi, ports: StatusPorts): Promise<void> {
  try {
    const read = await ports.facts.selinuxContext(vmi, podOnNode(vmi));
    setField(vmi.status, 'selinuxContext', selinuxContext(vmi.status.selinuxContext, read));
  } catch (error) {
    ports.log.object(refOf(vmi)).warning('the SELinux label of the launcher stays unknown', error);
  }
}

/** UID of the VMI's pod on the node that runs it. */
function podOnNode({ status }: Vmi): string | undefined {
  return Object.entries(status.activePods ?? {}).find(([, node]) => node === status.nodeName)?.[0];
}

async function setVolumeStatus(vmi: Vmi, domain: Domain | undefined, ports: StatusPorts, now: number) {
  const entries = vmi.status.volumeStatus ?? [];
  if (entries.length === 0) return { events: [], onTheirWay: false };
  const mounted = new Map<string, boolean | undefined>();
  for (const { name, hotplugVolume } of entries) {
    if (hotplugVolume) mounted.set(name, await isMounted(vmi, name, ports));
  }
  const result = volumeStatuses({ vmi, domain, mounted, now });
  vmi.status.volumeStatus = result.volumeStatus;
  return result;
}

async function isMounted(vmi: Vmi, volume: string, ports: StatusPorts) {
  try {
    return await ports.hotplug.isMounted(vmi, volume);
  } catch (error) {
    ports.log.object(refOf(vmi)).error(`cannot tell if volume ${volume} is mounted, taken as not`, error);
    return false;
  }
}

async function enableBlockTracking(vmi: Vmi, domain: Domain | undefined, ports: StatusPorts): Promise<void> {
  const tracking = vmi.status.changedBlockTracking;
  if (tracking === undefined || !isTrackingInitialized(vmi, domain)) return;
  const ref = refOf(vmi);
  for (const tracker of ports.backupTrackers.list(ref)) {
    if (!tracker.hasLatestCheckpoint || tracker.checkpointRedefinitionRequired) continue;
    try {
      await ports.backupTrackers.requireRedefinition(ref, tracker.name);
    } catch (error) {
      const message = asError(error).message;
      throw new Error(`failed to mark tracker ${tracker.name} for checkpoint redefinition: ${message}`, {
        cause: error,
      });
    }
  }
  tracking.state = 'Enabled';
}

async function setConditions(
  vmi: Vmi,
  domain: Domain | undefined,
  ports: StatusPorts,
  settings: StatusSettings,
  now: string,
): Promise<StatusEvent[]> {
  const credentials = accessCredentials(conditionsOf(vmi.status), domain, now);
  const migration = liveMigratable(credentials.conditions, vmi, settings);
  vmi.status.migrationMethod = migration.migrationMethod;
  let conditions: readonly Condition[] = agentConnected(migration.conditions, domain, now);
  if (isAgentConnected(conditions)) {
    const client = await ports.launchers.get(vmi);
    const obstacle = guestAgentObstacle(
      vmi,
      await client.getGuestInfo(),
      settings.cluster.supportedGuestAgentVersions,
    );
    conditions = agentSupported(conditions, obstacle, now);
  }
  conditions = paused(conditions, vmi, domain, settings.host, now);
  conditions = softwareEmulation(conditions, vmi, domain, settings, now);
  vmi.status.conditions = [...conditions];
  return [...credentials.events, ...migration.events];
}

function setChecksums(vmi: Vmi, branchFailed: boolean, ports: StatusPorts, settings: StatusSettings): void {
  if (branchFailed || isDeleting(vmi) || isGateOn(settings.cluster, 'ImageVolume') || !lacksChecksums(vmi))
    return;
  vmi.status = withChecksums(vmi.status, ports.containerDisks.computeChecksums(vmi));
}
