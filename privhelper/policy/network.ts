/** Checks of a network set-up. The result holds names and numbers that the helper chose or bounded. */
import {
  type ApplyRequest,
  type Attachment,
  type Detachment,
  type DhcpRecord as DhcpRecordMessage,
  type ForwardedPort as ForwardedPortMessage,
  type MasqueradeBinding,
  MigrationSide,
  Protocol,
  type RepairPasstRequest,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { AttachmentPlan, DetachmentPlan, ForwardedPort } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { DhcpRecord } from '../network/dhcp-record.js';
import { addressText, cidrField, guestNetworkField, ipv4Field } from './address.js';
import type { Check, PodRef } from './check.js';
import { integerField, listField, macField, networkNameField, podInterfaceField, Unique } from './fields.js';
import type { Policy } from './policy.js';
import { parsePodRef, podRefWords } from './requests.js';

export interface DhcpRecordFile {
  readonly podInterface: string;
  readonly record: DhcpRecord;
}

export interface NetworkSetup extends PodRef {
  readonly attachments: readonly AttachmentPlan[];
  readonly detachments: readonly DetachmentPlan[];
  readonly records: readonly DhcpRecordFile[];
  readonly passt: boolean;
}

export interface PasstRepair extends PodRef {
  readonly side: 'source' | 'target';
}

const migrationSides: ReadonlyMap<MigrationSide, PasstRepair['side']> = new Map([
  [MigrationSide.SOURCE, 'source'],
  [MigrationSide.TARGET, 'target'],
]);

export const repairPasst: Check<RepairPasstRequest, PasstRepair> = {
  words: () => [
    ...podRefWords,
    'side is source or target; volume, directory and name of the socket are constants',
    "its listener is in the pod's cgroup; what it hands over are TCP sockets of the pod's network namespace",
    'one repair of a pod at a time',
  ],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const side = migrationSides.get(request.side);
    if (side === undefined) throw malformed('side', 'not a side of a migration');
    return { ...pod, side };
  },
  audited: ({ side }) => ({ side }),
};

const defaultIpv4 = '10.0.2.0/24';
const defaultIpv6 = 'fd10:0:2::/120';

export const apply: Check<ApplyRequest, NetworkSetup> = {
  words: ({ maxAttachments, maxInterfaceIndex, maxQueues, maxForwardedPorts }) => [
    ...podRefWords,
    `at most ${maxAttachments} attachments and ${maxAttachments} detachments; no network, pod interface or tap twice; one primary, one masquerade`,
    'names of networks have at most 240 letters, digits, - and _; pod interfaces are link names, never lo, and derived names fit 15 bytes',
    `index at most ${maxInterfaceIndex}, queues at most ${maxQueues}`,
    'masquerade networks are private or unique-local and have room for two hosts',
    `at most ${maxForwardedPorts} forwarded ports, 1..65535, TCP, UDP or SCTP`,
    'DHCP records: addresses, routes and link address are parsed and written anew by the helper',
    'taps belong to root only when the launcher itself runs as root, else to the configured user',
    'passt lets the configured group ping, and no other',
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const names = new LinkNames();
    const attachments = listField('attachments', request.attachments, policy.maxAttachments);
    const detachments = listField('detachments', request.detachments, policy.maxAttachments);
    const records: DhcpRecordFile[] = [];
    let masquerades = 0;
    const plans = attachments.map((attachment, i) => {
      const field = `attachments[${i}]`;
      names.add(field, attachment);
      if (attachment.binding.case === 'masquerade' && ++masquerades > 1) {
        throw malformed(`${field}.masquerade`, 'a pod has one masquerade interface');
      }
      if (attachment.binding.case === 'bridge' && attachment.binding.value.dhcp !== undefined) {
        const record = parseDhcp(policy, `${field}.bridge.dhcp`, attachment.binding.value.dhcp);
        records.push({ podInterface: attachment.podInterface, record });
      }
      return parseAttachment(policy, field, attachment);
    });
    const removals = detachments.map((detachment, i) => {
      names.add(`detachments[${i}]`, detachment);
      return { podInterface: detachment.podInterface, primary: detachment.primary };
    });
    return { ...pod, attachments: plans, detachments: removals, records, passt: request.passt };
  },
  audited: ({ attachments, detachments, records, passt }) => ({
    attachments: attachments.map((plan) => ({
      podInterface: plan.podInterface,
      binding: plan.binding.kind,
      primary: plan.primary,
      queues: plan.queues,
    })),
    detachments: detachments.map((plan) => plan.podInterface),
    dhcpRecords: records.map((record) => record.podInterface),
    passt,
  }),
};

/** Networks, pod interfaces and taps of one request: each may be named once. */
class LinkNames {
  private readonly networks = new Unique();
  private readonly links = new Unique();

  add(field: string, named: Attachment | Detachment): void {
    this.networks.add(`${field}.network`, networkNameField(`${field}.network`, named.network));
    const name = podInterfaceField(`${field}.pod_interface`, named.podInterface);
    this.links.add(`${field}.pod_interface`, name);
    // A second primary would collide on tap0.
    const tap = named.primary ? 'tap0' : `tap${name.slice(3)}`;
    this.links.add(named.primary ? `${field}.primary` : `${field}.pod_interface`, tap);
  }
}

function parseAttachment(policy: Policy, field: string, attachment: Attachment): AttachmentPlan {
  const common = {
    podInterface: attachment.podInterface,
    primary: attachment.primary,
    index: integerField(`${field}.index`, attachment.index, 0, policy.maxInterfaceIndex),
    queues: integerField(`${field}.queues`, attachment.queues, 0, policy.maxQueues),
  };
  switch (attachment.binding.case) {
    case 'bridge':
      return { ...common, binding: { kind: 'bridge' } };
    case 'managedTap':
      return { ...common, binding: { kind: 'managed-tap' } };
    case 'masquerade':
      return { ...common, binding: parseMasquerade(policy, `${field}.masquerade`, attachment.binding.value) };
    default:
      throw malformed(`${field}.binding`, 'missing or unknown');
  }
}

function parseMasquerade(policy: Policy, field: string, value: MasqueradeBinding): AttachmentPlan['binding'] {
  const ports = listField(`${field}.ports`, value.ports, policy.maxForwardedPorts);
  return {
    kind: 'masquerade',
    ipv4: guestNetwork(`${field}.ipv4_cidr`, value.ipv4Cidr || defaultIpv4, 4),
    ipv6: guestNetwork(`${field}.ipv6_cidr`, value.ipv6Cidr || defaultIpv6, 6),
    ports: ports.map((port, i) => parsePort(`${field}.ports[${i}]`, port)),
    istio: value.istio,
    migrationOverTcp: value.migrationOverTcp,
  };
}

function guestNetwork(field: string, text: string, family: 4 | 6): { network: string; prefixLength: number } {
  const network = guestNetworkField(field, text, family);
  return { network: addressText(network.bytes), prefixLength: network.prefixLength };
}

const protocols: ReadonlyMap<Protocol, ForwardedPort['protocol']> = new Map([
  [Protocol.TCP, 'tcp'],
  [Protocol.UDP, 'udp'],
  [Protocol.SCTP, 'sctp'],
]);

function parsePort(field: string, value: ForwardedPortMessage): ForwardedPort {
  const protocol = protocols.get(value.protocol);
  if (protocol === undefined) throw malformed(`${field}.protocol`, 'not a known protocol');
  const port = integerField(`${field}.port`, value.port, 1, 65535);
  const endPort =
    value.endPort === 0 ? 0 : integerField(`${field}.end_port`, value.endPort, value.port, 65535);
  return { protocol, port, endPort };
}

function parseDhcp(policy: Policy, field: string, value: DhcpRecordMessage): DhcpRecord {
  const routes = listField(`${field}.routes`, value.routes, policy.maxDhcpRoutes);
  if (value.ipamDisabled && (value.address !== '' || value.gateway !== '' || routes.length > 0)) {
    throw malformed(`${field}.ipam_disabled`, 'excludes address, gateway and routes');
  }
  const gateway = (name: string, text: string) => (text === '' ? undefined : ipv4Field(name, text));
  return {
    ipamDisabled: value.ipamDisabled,
    address: value.ipamDisabled ? undefined : cidrField(`${field}.address`, value.address, 4),
    mac: macField(`${field}.mac`, value.mac),
    gateway: gateway(`${field}.gateway`, value.gateway),
    routes: routes.map((route, i) => ({
      destination:
        route.destination === ''
          ? undefined
          : cidrField(`${field}.routes[${i}].destination`, route.destination, 4),
      gateway: gateway(`${field}.routes[${i}].gateway`, route.gateway),
    })),
  };
}
