/** Network namespaces of launcher pods. */
import type { Call, Launcher } from './call.js';

export interface LinkState {
  readonly index: number;
  readonly name: string;
  readonly kind: string;
  readonly operstate: string;
  readonly up: boolean;
  readonly mac: string;
  readonly mtu: number;
  readonly controller: number;
  readonly addresses: { readonly ip: string; readonly prefixLength: number }[];
  readonly portLearning?: boolean;
  readonly routeLocalnet: boolean;
}

export interface RouteState {
  readonly destination: string;
  readonly gateway: string;
  readonly linkIndex: number;
  readonly metric: number;
}

export interface NetworkState {
  readonly links: LinkState[];
  readonly routes: RouteState[];
  readonly sysctls: {
    readonly ipv4ArpIgnore: number;
    readonly ipv4Forwarding: boolean;
    readonly ipv6Forwarding: boolean;
    readonly ipv4PingGroupStart: number;
    readonly ipv4PingGroupEnd: number;
    readonly ipv4UnprivilegedPortStart: number;
  };
}

export interface ForwardedPort {
  readonly protocol: 'tcp' | 'udp' | 'sctp';
  readonly port: number;
  /** 0 for a single port. */
  readonly endPort: number;
}

/** Desired set-up of one pod link. Link names other than `podInterface` are derived by the addon. */
export interface AttachmentPlan {
  readonly podInterface: string;
  /** tap0 when true, else `tap` + podInterface without its first three characters. */
  readonly primary: boolean;
  /** 0..99 */
  readonly index: number;
  /** 0 or 1: single queue. */
  readonly queues: number;
  readonly binding:
    | { readonly kind: 'bridge' }
    /** A bridge without an address of its own. */
    | { readonly kind: 'managed-tap' }
    | {
        readonly kind: 'masquerade';
        /** Network address of the guest's IPv4 network and its prefix length. */
        readonly ipv4: { readonly network: string; readonly prefixLength: number };
        readonly ipv6: { readonly network: string; readonly prefixLength: number };
        readonly ports: readonly ForwardedPort[];
        readonly istio: boolean;
        readonly migrationOverTcp: boolean;
      };
}

export interface DetachmentPlan {
  readonly podInterface: string;
  readonly primary: boolean;
}

export interface NetworkPlan {
  readonly attachments: readonly AttachmentPlan[];
  readonly detachments: readonly DetachmentPlan[];
  /** Owner and group of taps. */
  readonly uid: number;
  readonly gid: number;
  /** Where passt connects the guest: the group that it runs as. */
  readonly passtGid?: number;
}

/** dev:inode of a network namespace. */
export interface NamespaceId {
  readonly dev: bigint;
  readonly ino: bigint;
}

/** A chain of the tables `ip nat` and `ip6 nat`. */
export interface NatChainState {
  readonly family: 'ip' | 'ip6';
  readonly name: string;
  /** Hook number, priority and policy of a base chain; empty for a regular one. */
  readonly hook: string;
  /** Number of rules. */
  readonly rules: number;
}

/** Each runs whole on one privileged thread. */
export interface NetworkCalls {
  /** `forbidden`: network namespaces that must never be entered (host's, helper's own). */
  observeNetwork(call: Call, launcher: Launcher, forbidden: readonly NamespaceId[]): Promise<NetworkState>;
  applyNetwork(
    call: Call,
    launcher: Launcher,
    forbidden: readonly NamespaceId[],
    plan: NetworkPlan,
    /** With labelTaps: a tap that cannot get the launcher's label is not made. */
    selinuxEnforces: boolean,
  ): Promise<boolean>;
  /**
   * Serves passt's repair socket until passt closes the connection, on a thread of its own: the number of TCP sockets
   * that were switched. On the target waits for the socket to appear.
   */
  repairPasst(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    side: 'source' | 'target',
  ): Promise<number>;
  observeNat(call: Call, launcher: Launcher, forbidden: readonly NamespaceId[]): Promise<NatChainState[]>;
  /**
   * What applyNetwork would do now, at most 256 operations; empty when the set-up is as planned. Ends at a
   * link that is yet to be made. Changes nothing.
   */
  pendingNetworkChanges(
    call: Call,
    launcher: Launcher,
    forbidden: readonly NamespaceId[],
    plan: NetworkPlan,
  ): Promise<string[]>;
}
