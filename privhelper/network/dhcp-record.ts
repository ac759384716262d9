/**
 * The record vif-cache-<pod interface>.json from which the launcher's DHCP server serves the guest
 * (KubeVirt pkg/network/cache/dhcp_config.go). The text is made here from checked fields, never passed
 * through from the agent.
 */
import { addressText, type Cidr, maskBytes } from '../policy/address.js';

export interface DhcpRoute {
  /** Undefined: the default route. */
  readonly destination: Cidr | undefined;
  /** Undefined: a route on the link. */
  readonly gateway: Uint8Array | undefined;
}

export interface DhcpRecord {
  readonly ipamDisabled: boolean;
  /** Undefined exactly when `ipamDisabled`. */
  readonly address: Cidr | undefined;
  readonly mac: Uint8Array | undefined;
  readonly gateway: Uint8Array | undefined;
  readonly routes: readonly DhcpRoute[];
}

export function dhcpRecordFileName(podInterface: string): string {
  return `vif-cache-${podInterface}.json`;
}

/**
 * By this file the launcher knows that it serves an interface. Its server answers for one link, by index, and so is of
 * no use for the bridge of a network that is plugged again (KubeVirt pkg/network/dhcp/configurator.go).
 */
export function dhcpStartedFileName(podInterface: string): string {
  return `dhcp_started-${podInterface}`;
}

/** The file's content: members and order of the Go structures, indented by two spaces, no final newline. */
export function dhcpRecordText(record: DhcpRecord): string {
  return JSON.stringify(
    {
      Name: '',
      IP: addressObject(record.address),
      IPv6: addressObject(undefined),
      MAC: record.mac === undefined ? null : base64(record.mac),
      AdvertisingIPAddr: '',
      AdvertisingIPv6Addr: '',
      Routes: record.routes.length === 0 ? null : record.routes.map(routeObject),
      Mtu: 0,
      IPAMDisabled: record.ipamDisabled,
      Gateway: optionalAddress(record.gateway),
      Subdomain: '',
    },
    null,
    2,
  );
}

function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('base64');
}

function optionalAddress(bytes: Uint8Array | undefined): string {
  return bytes === undefined ? '' : addressText(bytes);
}

function ipNet(cidr: Cidr): { IP: string; Mask: string } {
  return { IP: addressText(cidr.bytes), Mask: base64(maskBytes(cidr.prefixLength, cidr.bytes.length)) };
}

/** netlink.Addr of github.com/vishvananda/netlink with everything but the address unset. */
function addressObject(address: Cidr | undefined): object {
  return {
    ...(address === undefined ? {} : ipNet(address)),
    Label: '',
    Flags: 0,
    Scope: 0,
    Peer: null,
    Broadcast: '',
    PreferedLft: 0,
    ValidLft: 0,
    LinkIndex: 0,
  };
}

/** netlink.Route with everything but destination and gateway unset. */
function routeObject(route: DhcpRoute): object {
  return {
    LinkIndex: 0,
    ILinkIndex: 0,
    Scope: 0,
    Dst: route.destination === undefined ? null : ipNet(route.destination),
    Src: '',
    Gw: optionalAddress(route.gateway),
    MultiPath: null,
    Protocol: 0,
    Priority: 0,
    Family: 0,
    Table: 0,
    Type: 0,
    Tos: 0,
    Flags: 0,
    MPLSDst: null,
    NewDst: null,
    Encap: null,
    Via: null,
    Realm: 0,
    MTU: 0,
    MTULock: false,
    Window: 0,
    Rtt: 0,
    RttVar: 0,
    Ssthresh: 0,
    Cwnd: 0,
    AdvMSS: 0,
    Reordering: 0,
    Hoplimit: 0,
    InitCwnd: 0,
    Features: 0,
    RtoMin: 0,
    RtoMinLock: false,
    InitRwnd: 0,
    QuickACK: 0,
    Congctl: '',
    FastOpenNoCookie: 0,
  };
}
