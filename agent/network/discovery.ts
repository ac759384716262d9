/**
 * What the pod's links tell about an interface: its addresses and, for the bridge binding, the record
 * that the launcher's DHCP server hands out (KubeVirt netpod/discover.go, discoverbridge.go).
 */
import { create } from '@bufbuild/protobuf';
import {
  type DhcpRecord,
  DhcpRecordSchema,
  type DhcpRoute,
  DhcpRouteSchema,
  type Link,
  type ObserveResponse,
  type Route,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { bindingOf } from './bindings.js';
import {
  formatCidr,
  type IpNetwork,
  isGlobalUnicast,
  maskedNetwork,
  parseCidr,
  parseIp,
  parseMac,
} from './ip.js';
import type { InterfaceStatus, VmiInterface } from './vmi-network.js';

const defaultRoute = '0.0.0.0/0';

export interface Discovery {
  /** First global address of each family, primary family first; empty: nothing to record. */
  readonly podIps: readonly string[];
  readonly dhcp?: DhcpRecord;
}

/**
 * `agentPodIp` is the agent pod's own address (environment MY_POD_IP): its family goes first where a
 * pod has both. Throws an Error, worth a retry, for a pod link or a default route that is not there, an
 * unknown binding and an unusable MAC.
 */
export function discover(
  iface: VmiInterface,
  podInterface: string,
  observed: ObserveResponse,
  status: InterfaceStatus | undefined,
  agentPodIp: string | undefined,
): Discovery {
  const binding = bindingOf(iface);
  if (binding === 'sriov') return { podIps: [] };
  if (binding === 'undefined') throw new Error(`undefined binding method: interface ${iface.name}`);

  const link = observed.links.find((candidate) => candidate.name === podInterface);
  if (link === undefined) {
    if (binding === 'plugin') return { podIps: [] };
    throw new Error(`pod link (${podInterface}) is missing`);
  }
  // A guest behind a bridge cannot get the pod's IPv6 address.
  if (binding !== 'bridge') return { podIps: podIps(link, agentPodIp) };
  const ipv4 = firstGlobal(link, 4);
  return {
    podIps: ipv4 === undefined ? [] : [ipv4.ip],
    dhcp: dhcpRecord(link, observed.routes, iface.macAddress || status?.mac || link.mac),
  };
}

/** First address of the family that is global unicast. */
export function firstGlobal(link: Link, family: 4 | 6): Link['addresses'][number] | undefined {
  return link.addresses.find((candidate) => {
    const address = parseIp(candidate.ip);
    return address?.family === family && isGlobalUnicast(address);
  });
}

function podIps(link: Link, agentPodIp: string | undefined): string[] {
  const ipv4 = firstGlobal(link, 4)?.ip;
  const ipv6 = firstGlobal(link, 6)?.ip;
  if (ipv4 === undefined || ipv6 === undefined) return [ipv4, ipv6].filter((ip) => ip !== undefined);
  if (agentPodIp === undefined) throw new Error('MY_POD_IP doesnt exists');
  return parseIp(agentPodIp)?.family === 6 ? [ipv6, ipv4] : [ipv4, ipv6];
}

function dhcpRecord(link: Link, routes: readonly Route[], macText: string): DhcpRecord {
  const address = firstGlobal(link, 4);
  if (address === undefined) return create(DhcpRecordSchema, { ipamDisabled: true });

  const mac = parseMac(macText);
  if (mac === undefined) throw new Error(`address ${macText}: invalid MAC address`);
  const cidr = `${address.ip}/${address.prefixLength}`;
  const own = parseCidr(cidr);
  if (own === undefined) throw new Error(`invalid CIDR address: ${cidr}`);
  const local = formatCidr(maskedNetwork(own));

  const candidates = routes
    .map((route) => ({ ...route, destination: destinationOf(route) }))
    .filter(
      ({ linkIndex, destination, gateway }) =>
        linkIndex === link.index && destination.address.family === 4 && !isIpv6(gateway),
    );
  const first = candidates[0];
  if (first === undefined) throw new Error(`no gateway address found in routes for ${link.name}`);
  return create(DhcpRecordSchema, {
    address: cidr,
    mac,
    gateway: first.gateway,
    routes: candidates
      .map((route) => ({ ...route, destination: formatCidr(route.destination) }))
      .filter(({ destination }) => destination === defaultRoute || destination !== local)
      .map(dhcpRoute),
  });
}

/** The network that a route leads to. */
function destinationOf({ destination }: Route): IpNetwork {
  const network = parseCidr(destination);
  if (network === undefined) throw new Error(`invalid CIDR address: ${destination}`);
  return maskedNetwork(network);
}

function isIpv6(gateway: string): boolean {
  return gateway !== '' && parseIp(gateway)?.family === 6;
}

function dhcpRoute({ destination, gateway }: Pick<Route, 'destination' | 'gateway'>): DhcpRoute {
  return create(DhcpRouteSchema, { destination: destination === defaultRoute ? '' : destination, gateway });
}
