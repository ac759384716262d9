/** Everything that the reconcile loop is made of. */
import type { Clock } from '../clock.js';
import type { ClusterConfig } from '../cluster/config.js';
import type { Logger } from '../log/log.js';
import type { HostTopology } from './host-topology.js';
import type {
  ContainerDisks,
  DeviceOwnership,
  DomainStore,
  DownwardMetrics,
  EventRecorder,
  GhostRecords,
  HotplugVolumes,
  Hypervisor,
  LauncherClients,
  LauncherFacts,
  LauncherPods,
  LocalState,
  LoopMetrics,
  MigrationProxy,
  NetStat,
  NodeHooks,
  PodNetworks,
  Requeue,
  Timeline,
  VmiApi,
  VmiStore,
  WriteExpectations,
} from './ports.js';
import type { BackupTrackers } from './status/pass.js';

/** What the agent knows about its node. */
export interface NodeFacts {
  /** Node name, as in `status.nodeName`. */
  readonly name: string;
  /** Go's name: amd64, arm64, s390x. */
  readonly architecture: string;
  /** What `host-model` stands for on this node; empty while unknown. */
  cpuModel(): string;
  /** Undefined while the host's capabilities are unknown. */
  topology(): HostTopology | undefined;
}

export interface ControllerDeps {
  readonly node: NodeFacts;
  readonly clusterConfig: () => ClusterConfig;
  /** JSON array of the cluster's Plugin objects; empty without any. */
  readonly pluginsJson: () => Uint8Array;

  /** VMIs labelled with this node's name. */
  readonly localVmis: VmiStore;
  /** All VMIs of the cluster. */
  readonly globalVmis: VmiStore;
  readonly domains: DomainStore;
  readonly ghostRecords: GhostRecords;
  readonly localState: LocalState;
  readonly expectations: WriteExpectations;
  readonly queue: Requeue;

  readonly clients: LauncherClients;
  readonly pods: LauncherPods;
  readonly containerDisks: ContainerDisks;
  readonly hotplug: HotplugVolumes;
  readonly networks: PodNetworks;
  readonly netStat: NetStat;
  readonly devices: DeviceOwnership;
  readonly hypervisor: Hypervisor;
  readonly downwardMetrics: DownwardMetrics;
  readonly migrationProxy: MigrationProxy;
  readonly hooks: NodeHooks;
  readonly facts: LauncherFacts;
  readonly backupTrackers: BackupTrackers;

  readonly api: VmiApi;
  readonly events: EventRecorder;
  readonly metrics: LoopMetrics;
  readonly timeline?: Timeline;
  readonly clock: Clock;
  readonly log: Logger;
}
