/** What the helper allows, as data. Every number has a default and a bound that no configuration exceeds. */

export interface Policy {
  /** The one uid that may connect. */
  readonly agentUid: number;
  /** Owner of taps, device nodes and sockets in launchers that do not run as root. */
  readonly qemuUid: number;
  readonly qemuGid: number;
  /** Launcher pods pinned or watched at a time. */
  readonly maxPods: number;
  /** Calls that wait for the same pod. */
  readonly maxWaitingPerPod: number;
  /** Connections of the agent at a time. */
  readonly maxConnections: number;
  /** Calls in progress at a time, streams included. */
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
  /** Path inside a container-disk image, bytes. */
  readonly maxImagePathBytes: number;
}

interface Limit {
  readonly default: number;
  readonly min: number;
  readonly max: number;
}

const maxUid = 0xffff_fffe;

const limits: Readonly<Record<keyof Policy, Limit>> = {
  agentUid: { default: 65531, min: 1, max: maxUid },
  qemuUid: { default: 107, min: 1, max: maxUid },
  qemuGid: { default: 107, min: 1, max: maxUid },
  maxPods: { default: 1024, min: 1, max: 4096 },
  maxWaitingPerPod: { default: 16, min: 1, max: 256 },
  maxConnections: { default: 8, min: 1, max: 64 },
  maxCalls: { default: 128, min: 1, max: 1024 },
  maxWatches: { default: 4, min: 1, max: 16 },
  maxPendingEvents: { default: 2048, min: 1, max: 16384 },
  maxTickets: { default: 256, min: 1, max: 1024 },
  ticketTtlMs: { default: 5000, min: 100, max: 30_000 },
  maxRequestBytes: { default: 1 << 20, min: 4096, max: 4 << 20 },
  requestTimeoutMs: { default: 10_000, min: 100, max: 60_000 },
  maxAttachments: { default: 64, min: 1, max: 64 },
  maxQueues: { default: 256, min: 1, max: 256 },
  maxInterfaceIndex: { default: 99, min: 0, max: 99 },
  maxForwardedPorts: { default: 1024, min: 1, max: 1024 },
  maxDhcpRoutes: { default: 64, min: 1, max: 256 },
  maxDevices: { default: 16, min: 1, max: 16 },
  maxVolumeIndex: { default: 999, min: 0, max: 999 },
  maxMountsPerVmi: { default: 256, min: 1, max: 1000 },
  maxImagePathBytes: { default: 4096, min: 1, max: 4096 },
};

/** The default policy with `overrides`. Throws, naming the setting, when one is outside its bound. */
export function createPolicy(overrides: Partial<Policy> = {}): Policy {
  const policy = {} as Record<keyof Policy, number>;
  for (const key of Object.keys(limits) as (keyof Policy)[]) {
    const limit = limits[key];
    const value = overrides[key] ?? limit.default;
    if (!Number.isInteger(value) || value < limit.min || value > limit.max) {
      throw new RangeError(`policy ${key}: ${value} is not an integer in ${limit.min}..${limit.max}`);
    }
    policy[key] = value;
  }
  return policy;
}
