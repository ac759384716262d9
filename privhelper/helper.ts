/** What the operations work with. */
import type { MethodDescription } from '../gen/virtprivsep/privhelper/v1/helper_pb.js';
import type { Usage } from '../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { NamespaceId, Native } from '../native/binding.js';
import type { AuditFile } from './audit/file.js';
import type { Tickets } from './descriptors/tickets.js';
import type { DisksInUse } from './devices/disks-in-use.js';
import type { DeviceHierarchy } from './devices/hierarchy.js';
import type { CommandLines } from './inspect/command-lines.js';
import type { HotplugRecords } from './pods/hotplug-records.js';
import type { PluggedDevices } from './pods/plugged-devices.js';
import type { MountRecords } from './pods/records.js';
import type { PodRegistry } from './pods/registry.js';
import type { DescribedSetting, Policy } from './policy/policy.js';
import type { ThreadStatus } from './privileges.js';
import type { SelinuxReader } from './selinux.js';
import type { DeclaredEntry } from './server/routes.js';
import type { PodWatcher } from './watch/watcher.js';

export interface Helper {
  readonly native: Native;
  readonly policy: Policy;
  /** kubelet's pods directory, opened at start. */
  readonly podsDir: number;
  /** Where cgroups are mounted, opened at start. */
  readonly cgroupRoot: number;
  /** Network namespaces that are never entered: the host's and the helper's own. */
  readonly forbiddenNetworks: readonly NamespaceId[];
  readonly pods: PodRegistry;
  readonly records: MountRecords;
  readonly hotplugRecords: HotplugRecords;
  readonly plugged: PluggedDevices;
  readonly deviceHierarchy: DeviceHierarchy;
  readonly disksInUse: DisksInUse;
  readonly tickets: Tickets;
  readonly watcher: PodWatcher;
  readonly commandLines: CommandLines;
  /** UIDs of the pods whose passt is being repaired. */
  readonly repairing: Set<string>;
  readonly selinux: Pick<SelinuxReader, 'mode'>;
  readonly instance: Instance;
  /** Every method with its checks. */
  readonly methods: readonly DeclaredEntry[];
  readonly auditFile: Pick<AuditFile, 'appendOnly'>;
  /** Process of the connected agent. */
  readonly agentPid: () => number | undefined;
  /** What is used of what is bounded. */
  readonly usage: () => Pick<Usage, 'name' | 'used' | 'limit'>[];
}

/** This run of the helper. */
export interface Instance {
  readonly id: string;
  readonly version: string;
  readonly startedAt: Date;
  readonly methods: readonly MethodDescription[];
  /** Every value of the policy. */
  readonly policy: readonly DescribedSetting[];
  readonly threads: () => (ThreadStatus & { readonly tid: number })[];
}
