/** What the helper allows, as data. Every value has a default and a bound that no configuration exceeds. */
import type { ClaimableDevice } from '../../native/binding.js';
import { absolutePath, deviceList, integer, type Setting } from './settings.js';

export interface Policy {
  /** The one uid that may connect. */
  readonly agentUid: number;
  /** Group of the agent's sockets. */
  readonly agentGid: number;
  /** Group that may use the operators' socket, besides root. */
  readonly adminGid: number;
  /** Owner of taps, device nodes and sockets in launchers that do not run as root. */
  readonly qemuUid: number;
  readonly qemuGid: number;
  readonly kubeletPodsDir: string;
  /** Where the host's cgroup hierarchies are mounted. */
  readonly cgroupRoot: string;
  /** Devices that may be claimed for a launcher. */
  readonly devices: readonly ClaimableDevice[];
  /** Size from which the audit file is rotated, bytes. */
  readonly auditMaxBytes: number;
  /** Older audit files that are kept. */
  readonly auditKeep: number;
  /** Launcher pods pinned or watched at a time. */
  readonly maxPods: number;
  /** Calls that wait for the same pod. */
  readonly maxWaitingPerPod: number;
  /** Connections of the agent at a time, and of operators. */
  readonly maxConnections: number;
  /** Calls in progress at a time on each socket, streams included. */
  readonly maxCalls: number;
  /** Watch streams at a time. */
  readonly maxWatches: number;
  /** Changes that a Watch stream may lag behind. */
  readonly maxPendingEvents: number;
  /** Descriptors waiting to be claimed. */
  readonly maxTickets: number;
  readonly ticketTtlMs: number;
  /** Size of one request message, bytes. */
  readonly maxRequestBytes: number;
  /** Time for a request to arrive completely. */
  readonly requestTimeoutMs: number;
  readonly maxAttachments: number;
  readonly maxQueues: number;
  /** Position of an interface, inclusive. */
  readonly maxInterfaceIndex: number;
  readonly maxForwardedPorts: number;
  readonly maxDhcpRoutes: number;
  readonly maxDevices: number;
  /** Index of a volume, inclusive. */
  readonly maxVolumeIndex: number;
  /** Container disks of one VMI. */
  readonly maxMountsPerVmi: number;
  /** Attachment pods of one launcher pod. */
  readonly maxAttachmentPods: number;
  /** Block volumes of one VMI that are not hotplugged. */
  readonly maxBlockVolumes: number;
  /** Hotplugged block devices of one launcher pod. */
  readonly maxPluggedDevices: number;
  /** Path inside a container-disk image, bytes. */
  readonly maxImagePathBytes: number;
}

const maxId = 0xffff_fffe;
const id = (path: string, value: number) => integer(path, value, 1, maxId);
const limit = (name: string, value: number, min: number, max: number) =>
  integer(`limits.${name}`, value, min, max);

/** Each value's place in the policy file, default and bound. */
export const settings: { readonly [K in keyof Policy]: Setting<Policy[K]> } = {
  agentUid: id('users.agentUid', 65531),
  agentGid: id('users.agentGid', 65531),
  adminGid: id('users.adminGid', 65530),
  qemuUid: id('users.qemuUid', 107),
  qemuGid: id('users.qemuGid', 107),
  kubeletPodsDir: absolutePath('paths.kubeletPodsDir', '/var/lib/kubelet/pods'),
  cgroupRoot: absolutePath('paths.cgroupRoot', '/sys/fs/cgroup'),
  devices: deviceList('devices', ['kvm', 'mshv', 'tun', 'vhost-net', 'vhost-vsock', 'sev', 'vfio']),
  auditMaxBytes: integer('audit.maxBytes', 64 << 20, 4096, 2 ** 40),
  auditKeep: integer('audit.keep', 4, 1, 1000),
  maxPods: limit('maxPods', 1024, 1, 4096),
  maxWaitingPerPod: limit('maxWaitingPerPod', 16, 1, 256),
  maxConnections: limit('maxConnections', 8, 1, 64),
  maxCalls: limit('maxCalls', 128, 1, 1024),
  maxWatches: limit('maxWatches', 4, 1, 16),
  maxPendingEvents: limit('maxPendingEvents', 2048, 1, 16384),
  maxTickets: limit('maxTickets', 256, 1, 1024),
  ticketTtlMs: limit('ticketTtlMs', 5000, 100, 30_000),
  maxRequestBytes: limit('maxRequestBytes', 1 << 20, 4096, 4 << 20),
  requestTimeoutMs: limit('requestTimeoutMs', 10_000, 100, 60_000),
  maxAttachments: limit('maxAttachments', 64, 1, 64),
  maxQueues: limit('maxQueues', 256, 1, 256),
  maxInterfaceIndex: limit('maxInterfaceIndex', 99, 0, 99),
  maxForwardedPorts: limit('maxForwardedPorts', 1024, 1, 1024),
  maxDhcpRoutes: limit('maxDhcpRoutes', 64, 1, 256),
  maxDevices: limit('maxDevices', 16, 1, 16),
  maxVolumeIndex: limit('maxVolumeIndex', 999, 0, 999),
  maxMountsPerVmi: limit('maxMountsPerVmi', 256, 1, 1000),
  maxAttachmentPods: limit('maxAttachmentPods', 16, 1, 64),
  maxBlockVolumes: limit('maxBlockVolumes', 256, 1, 1000),
  maxPluggedDevices: limit('maxPluggedDevices', 256, 1, 1000),
  maxImagePathBytes: limit('maxImagePathBytes', 4096, 1, 4096),
};

export type Overrides = { readonly [K in keyof Policy]?: Policy[K] | undefined };

/** The default policy with `overrides`. Throws, naming the setting, when one is outside its bound. */
export function createPolicy(overrides: Overrides = {}): Policy {
  const chosen = Object.entries(settings).map(([key, setting]) => {
    const value = overrides[key as keyof Policy];
    return [key, value === undefined ? setting.default : setting.parse(value)];
  });
  const policy = Object.fromEntries(chosen) as Policy;
  if (policy.adminGid === policy.agentGid) {
    throw new RangeError(`${settings.adminGid.path}: must not be the agent's group`);
  }
  return policy;
}

export type Origin = 'default' | 'file' | 'flag';

/** One value as people see it. */
export interface DescribedSetting {
  readonly path: string;
  readonly value: string;
  readonly origin: Origin;
  readonly bound: string;
}

/** Every value of a policy that was made from a file's values and the flags' values, the flags winning. */
export function describePolicy(policy: Policy, file: Overrides, flags: Overrides): DescribedSetting[] {
  return (Object.keys(settings) as (keyof Policy)[]).map((key) => {
    const origin = flags[key] !== undefined ? 'flag' : file[key] !== undefined ? 'file' : 'default';
    const value = policy[key];
    return {
      path: settings[key].path,
      value: typeof value === 'object' ? value.join(', ') : String(value),
      origin,
      bound: settings[key].bound,
    };
  });
}
