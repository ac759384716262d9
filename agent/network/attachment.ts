/** What the helper is asked to make of one interface (KubeVirt netpod.go composeDesiredSpec). */
import { create } from '@bufbuild/protobuf';
import {
  type Attachment,
  AttachmentSchema,
  BridgeBindingSchema,
  type Detachment,
  DetachmentSchema,
  type DhcpRecord,
  type ForwardedPort,
  ForwardedPortSchema,
  type Link,
  ManagedTapBindingSchema,
  MasqueradeBindingSchema,
  type ObserveResponse,
  Protocol,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { Vmi } from '../api/vmi.js';
import { type BindingPlugins, bindingOf, hasManagedTap } from './bindings.js';
import { firstGlobal } from './discovery.js';
import { istioInjected } from './istio.js';
import { guestCidr } from './masquerade.js';
import { isSecondary, renamedLink } from './names.js';
import { interfaceQueues } from './queues.js';
import type { VmiInterface, VmiNetwork } from './vmi-network.js';

export interface AttachmentInput {
  readonly vmi: Vmi;
  readonly network: VmiNetwork;
  readonly iface: VmiInterface;
  readonly podInterface: string;
  /** Position among the interfaces of this set-up. */
  readonly index: number;
  /** Of the bridge binding. */
  readonly dhcp: DhcpRecord | undefined;
  readonly observed: ObserveResponse;
  readonly plugins: BindingPlugins;
  /** Feature gate PortRangesSpec. */
  readonly portRanges: boolean;
}

/** The bridge's link address ends in the index, so there is no room for more interfaces. */
const maxIndex = 99;

/** Undefined: the binding needs no links. Throws an Error that no retry can cure. */
export function attachmentOf(input: AttachmentInput): Attachment | undefined {
  const { iface, network, podInterface, index } = input;
  const common = {
    network: network.name,
    podInterface,
    primary: !isSecondary(network),
    index,
    queues: interfaceQueues(input.vmi, iface),
  };
  switch (bindingOf(iface)) {
    case 'bridge':
      if (index > maxIndex) throw new Error(`no link address is left for interface ${iface.name}`);
      return create(AttachmentSchema, {
        ...common,
        binding: { case: 'bridge', value: create(BridgeBindingSchema, { ...dhcpOf(input.dhcp) }) },
      });
    case 'masquerade':
      return create(AttachmentSchema, {
        ...common,
        binding: { case: 'masquerade', value: masqueradeBinding(input) },
      });
    case 'plugin':
      if (!hasManagedTap(iface, input.plugins)) return undefined;
      if (findLink(input.observed, podInterface, renamedLink(podInterface)) === undefined) {
        throw missing(podInterface);
      }
      return create(AttachmentSchema, {
        ...common,
        binding: { case: 'managedTap', value: create(ManagedTapBindingSchema) },
      });
    case 'passt':
    case 'sriov':
      return undefined;
    case 'undefined':
      throw new Error(`undefined binding method: interface ${iface.name}`);
  }
}

/** Undefined: there is nothing to remove. */
export function detachmentOf(
  network: VmiNetwork,
  iface: VmiInterface,
  podInterface: string,
  plugins: BindingPlugins,
): Detachment | undefined {
  const plumbed = ['bridge', 'masquerade'].includes(bindingOf(iface)) || hasManagedTap(iface, plugins);
  if (!plumbed) return undefined;
  return create(DetachmentSchema, { network: network.name, podInterface, primary: !isSecondary(network) });
}

function dhcpOf(dhcp: DhcpRecord | undefined) {
  return dhcp === undefined ? {} : { dhcp };
}

function findLink(observed: ObserveResponse, ...names: readonly string[]): Link | undefined {
  return observed.links.find(({ name }) => names.includes(name));
}

function missing(podInterface: string): Error {
  return new Error(`pod link (${podInterface}) is missing`);
}

function masqueradeBinding(input: AttachmentInput) {
  const { vmi, network, iface, podInterface } = input;
  const link = findLink(input.observed, podInterface);
  if (link === undefined) throw missing(podInterface);
  return create(MasqueradeBindingSchema, {
    ipv4Cidr: cidrFor(link, network, 4),
    ipv6Cidr: cidrFor(link, network, 6),
    ports: forwardedPorts(iface, input.portRanges),
    istio: istioInjected(vmi),
    migrationOverTcp: vmi.status.migrationTransport !== 'Unix',
  });
}

/** Empty for a family that the pod link has no global address of, which gets no guest network. */
function cidrFor(link: Link, network: VmiNetwork, family: 4 | 6): string {
  if (firstGlobal(link, family) === undefined) return '';
  if (!network.pod) throw new Error(`masquerade needs the pod network, ${network.name} is another`);
  return guestCidr(network, family);
}

const protocols: Readonly<Record<string, Protocol>> = {
  tcp: Protocol.TCP,
  udp: Protocol.UDP,
  sctp: Protocol.SCTP,
};

function forwardedPorts(iface: VmiInterface, portRanges: boolean): ForwardedPort[] {
  const ports = (iface.ports ?? []).map((port) => forwardedPort(iface, port.protocol, port.port, 0));
  const ranges = portRanges ? (iface.portRanges ?? []) : [];
  return [...ports, ...ranges.map((range) => forwardedPort(iface, range.protocol, range.start, range.end))];
}

function forwardedPort(
  iface: VmiInterface,
  protocolName: string | undefined,
  port: number,
  endPort: number,
): ForwardedPort {
  const protocol = protocols[(protocolName || 'tcp').toLowerCase()];
  if (protocol === undefined) {
    throw new Error(`interface ${iface.name}: unknown protocol ${protocolName} of port ${port}`);
  }
  return create(ForwardedPortSchema, { protocol, port, endPort });
}
