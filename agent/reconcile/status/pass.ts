/**
 * What the status rules of one pass read and leave behind. The caller keeps phase, Synchronized,
 * transition timestamps and the PUT.
 */
import type { Domain } from '../../api/domain.js';
import type { Vmi, VmiRef } from '../../api/vmi.js';
import type { Clock } from '../../clock.js';
import type { ClusterConfig } from '../../cluster/config.js';
import type { Logger } from '../../log/log.js';
import type {
  ContainerDisks,
  EventType,
  HotplugVolumes,
  LauncherClients,
  LauncherFacts,
  NetStat,
} from '../ports.js';

/** What the rules need of node and cluster configuration. */
export interface StatusSettings {
  /** Name of this node. */
  readonly host: string;
  /** Architecture of this node in Go's names: amd64, arm64, s390x. */
  readonly hostArchitecture: string;
  /** CPU model that host-model stands for on this node; empty while unknown. */
  readonly hostCpuModel: string;
  readonly cluster: ClusterConfig;
}

/** A VirtualMachineBackupTracker that belongs to a VMI. */
export interface BackupTracker {
  readonly name: string;
  readonly hasLatestCheckpoint: boolean;
  readonly checkpointRedefinitionRequired: boolean;
}

export interface BackupTrackers {
  list(vmi: VmiRef): readonly BackupTracker[];
  /** Merge patch of the tracker's status: checkpointRedefinitionRequired true. */
  requireRedefinition(vmi: VmiRef, tracker: string): Promise<void>;
}

/** Where the rules get facts that are neither in the VMI nor in the domain. */
export interface StatusPorts {
  readonly launchers: Pick<LauncherClients, 'get'>;
  readonly facts: LauncherFacts;
  readonly hotplug: Pick<HotplugVolumes, 'isMounted'>;
  readonly containerDisks: Pick<ContainerDisks, 'computeChecksums'>;
  readonly netStat: Pick<NetStat, 'updateStatus'>;
  readonly backupTrackers: BackupTrackers;
  readonly clock: Clock;
  readonly log: Logger;
}

export interface StatusEvent {
  readonly type: EventType;
  readonly reason: string;
  readonly message: string;
}

export interface StatusInput {
  /** As cached; not changed. */
  readonly vmi: Vmi;
  /** Undefined also for a domain with a deletion timestamp. */
  readonly domain: Domain | undefined;
  /** The branch of this pass (sync, shutdown, ...) ended in an error. */
  readonly branchFailed: boolean;
}

export interface StatusResult {
  /** A copy of the VMI with the new status. */
  readonly vmi: Vmi;
  /** In the order in which they are to be recorded. */
  readonly events: readonly StatusEvent[];
  /** Nobody may tell when they get on: they have to be looked at again. */
  readonly volumesOnTheirWay: boolean;
}
