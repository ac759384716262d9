/** Conditions LiveMigratable and StorageLiveMigratable, and how a VMI would migrate. */
import type { Vmi } from '../../api/vmi.js';
import { isGateOn } from '../../cluster/config.js';
import type { ConditionsWithEvents } from './access-credentials.js';
import { type Condition, condition, replaceCondition, updateCondition } from './conditions.js';
import { networkObstacle } from './network-migratable.js';
import type { StatusSettings } from './pass.js';
import { volumeMigration } from './volume-migratable.js';

interface Obstacle {
  readonly reason: string;
  readonly message: string;
}

export interface Migratability {
  readonly live: Condition;
  readonly storage: Condition;
  readonly blockMigration: boolean;
}

export function migratability(vmi: Vmi, settings: StatusSettings): Migratability {
  const volumes = volumeMigration(vmi);
  const common = [
    network(vmi, settings),
    cpuModel(vmi, settings),
    hostDevice(vmi, settings),
    memoryEncryption(vmi),
  ];
  const guestClock = [tscFrequency(vmi), hypervPassthrough(vmi)];
  const live = [...common, secureExecution(vmi), ...guestClock, disks(volumes.obstacle)].find(isObstacle);
  const storage = [...common, persistentReservation(vmi), ...guestClock].filter(isObstacle);
  return {
    live: condition('LiveMigratable', live === undefined ? 'True' : 'False', live),
    storage: condition('StorageLiveMigratable', storage.length === 0 ? 'True' : 'False', {
      ...(storage.length > 0 && { reason: 'NotMigratable' }),
      message: storage.map(({ reason, message }) => `${reason}: ${message}`).join(', '),
    }),
    blockMigration: volumes.blockMigration,
  };
}

export interface MigratabilityUpdate extends ConditionsWithEvents {
  readonly migrationMethod: 'BlockMigration' | 'LiveMigration';
}

export function liveMigratable(
  conditions: readonly Condition[],
  vmi: Vmi,
  settings: StatusSettings,
): MigratabilityUpdate {
  const { live, storage, blockMigration } = migratability(vmi, settings);
  const strategy = vmi.spec.evictionStrategy || settings.cluster.evictionStrategy;
  const stuck = strategy === 'LiveMigrate' && live.status === 'False';
  return {
    conditions: updateCondition(replaceCondition(conditions, live), storage),
    migrationMethod: blockMigration ? 'BlockMigration' : 'LiveMigration',
    events: stuck
      ? [
          {
            type: 'Warning',
            reason: 'Migrated',
            message: `EvictionStrategy is set but vmi is not migratable; ${live.message ?? ''}`,
          },
        ]
      : [],
  };
}

function isObstacle(obstacle: Obstacle | undefined): obstacle is Obstacle {
  return obstacle !== undefined;
}

function network(vmi: Vmi, { cluster }: StatusSettings): Obstacle | undefined {
  const message = networkObstacle(vmi, cluster.networkBindings);
  return message === undefined ? undefined : { reason: 'InterfaceNotLiveMigratable', message };
}

function cpuModel(vmi: Vmi, { hostCpuModel }: StatusSettings): Obstacle | undefined {
  if (vmi.spec.domain?.cpu?.model !== 'host-model' || hostCpuModel !== '') return undefined;
  return {
    reason: 'CPUModeLiveMigratable',
    message: `the node "${vmi.status.nodeName ?? ''}" does not allow migration with host-model`,
  };
}

function hostDevice(vmi: Vmi, { cluster }: StatusSettings): Obstacle | undefined {
  const reason = 'HostDeviceNotLiveMigratable';
  const { hostDevices = [], gpus = [] } = vmi.spec.domain?.devices ?? {};
  if (hostDevices.length > 0) {
    return { reason, message: 'VMI specifies non-migratable generic PCI host device' };
  }
  const [gpu, ...others] = gpus;
  if (gpu === undefined) return undefined;
  if (others.length > 0) return { reason, message: 'VMI specifies too many GPUs' };
  if (!isGateOn(cluster, 'VGPULiveMigration')) {
    return { reason, message: 'VMI specifies a GPU but feature gate VGPULiveMigration is not enabled' };
  }
  const permitted = cluster.permittedHostDevices.mediatedDevices.some(
    ({ resourceName }) => resourceName === gpu.deviceName,
  );
  return permitted ? undefined : { reason, message: 'VMI specifies non-migratable GPU device' };
}

function memoryEncryption(vmi: Vmi): Obstacle | undefined {
  const security = vmi.spec.domain?.launchSecurity;
  if (security?.sev || security?.snp) return { reason: 'SEVNotLiveMigratable', message: 'VMI uses SEV' };
  if (security?.tdx) return { reason: 'TDXNotLiveMigratable', message: 'VMI uses TDX' };
  return undefined;
}

function secureExecution(vmi: Vmi): Obstacle | undefined {
  if (!vmi.spec.domain?.launchSecurity || vmi.spec.architecture !== 's390x') return undefined;
  return { reason: 'SecureExecutionNotLiveMigratable', message: 'VMI uses Secure Execution' };
}

function persistentReservation(vmi: Vmi): Obstacle | undefined {
  if (!vmi.spec.domain?.devices?.disks?.some((disk) => disk.lun?.reservation === true)) return undefined;
  return {
    reason: 'PersistentReservationNotLiveMigratable',
    message: 'VMI uses SCSI persistent reservation',
  };
}

function tscFrequency(vmi: Vmi): Obstacle | undefined {
  const { features, cpu } = vmi.spec.domain ?? {};
  if (features?.hyperv?.reenlightenment?.enabled !== true) return undefined;
  const invtsc = cpu?.features?.some(
    ({ name, policy }) => name === 'invtsc' && (policy === 'require' || policy === 'force'),
  );
  if (invtsc || Number(vmi.status.topologyHints?.tscFrequency ?? 0) > 0) return undefined;
  return {
    reason: 'NoTSCFrequencyNotLiveMigratable',
    message:
      'HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the cluster: guest timers might be inconsistent',
  };
}

function hypervPassthrough(vmi: Vmi): Obstacle | undefined {
  if (vmi.spec.domain?.features?.hypervPassthrough?.enabled !== true) return undefined;
  return { reason: 'HypervPassthroughNotLiveMigratable', message: 'VMI uses hyperv passthrough' };
}

function disks(message: string | undefined): Obstacle | undefined {
  return message === undefined ? undefined : { reason: 'DisksNotLiveMigratable', message };
}
