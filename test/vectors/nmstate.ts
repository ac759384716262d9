/** KubeVirt's network set-up vectors (nmstate JSON) and the helper's messages, one in terms of the other. */
import { isIP } from 'node:net';
import { expect } from 'vitest';
import type { BindingPlugins } from '../../agent/network/bindings.js';
import { formatCidr, maskedNetwork, parseCidr } from '../../agent/network/ip.js';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import type { DhcpRecord } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { type FakeNetworkHelper, observation } from '../unit/network/fakes.js';
import type { JsonObject } from './objects.js';

interface Address {
  IP: string;
  'prefix-length'?: number;
}
interface NmstateInterface {
  name: string;
  index?: number;
  type?: string;
  state?: string;
  'mac-address'?: string;
  mtu?: number;
  tap?: { queues?: number };
  IPv4?: { address?: Address[] };
  IPv6?: { address?: Address[] };
  Metadata?: { NetworkName: string } | null;
}
interface NmstateStatus {
  interfaces: NmstateInterface[];
  routes: {
    running?: {
      destination: string;
      'next-hop-interface'?: string;
      'next-hop-address'?: string;
      'table-id'?: number;
    }[];
  };
}
export interface SetupStep {
  networks: VmiNetwork[];
  interfaces: VmiInterface[];
  interfaceStatuses: InterfaceStatus[] | null;
  currentStatus: NmstateStatus;
  queuesCapacity: number;
  MY_POD_IP: string;
  bindingPlugins?: BindingPlugins;
  netnsEnterFails?: boolean;
  nmstateReadFails?: boolean;
  nmstateApplyFails?: boolean;
  masqueradeFails?: boolean;
  agentRestartBefore?: boolean;
}
export interface SetupResult {
  error: string;
  criticalNetworkError: boolean;
  nmstateReads: number;
  desiredSpec: {
    interfaces?: NmstateInterface[];
    'linux-stack'?: { ipv4?: { 'ping-group-range'?: number[]; 'unprivileged-port-start'?: number } };
  } | null;
  filesAfter: Record<string, JsonObject>;
}

const vifCache = /vif-cache-(.*)\.json$/;

export function observed(status: NmstateStatus) {
  return observation(
    status.interfaces.map((link) => ({
      name: link.name,
      index: link.index ?? 0,
      kind: link.type === 'tap' ? 'tun' : (link.type ?? ''),
      mac: link['mac-address'] ?? '',
      mtu: link.mtu ?? 0,
      addresses: [...(link.IPv4?.address ?? []), ...(link.IPv6?.address ?? [])].map(
        (address) => `${address.IP}/${address['prefix-length'] ?? 0}`,
      ),
    })),
    (status.routes.running ?? [])
      .filter((route) => (route['table-id'] ?? 254) === 254)
      .map(({ destination, 'next-hop-address': gateway = '', 'next-hop-interface': link = '' }) => ({
        destination,
        gateway: isIP(gateway) ? gateway : '',
        link,
      })),
  );
}

/** KubeVirt's DHCP record in the helper's terms. */
function dhcpOf(file: JsonObject) {
  const bytes = (text: unknown) => [...Buffer.from(String(text), 'base64')];
  const prefix = (mask: unknown) =>
    bytes(mask)
      .map((byte) => byte.toString(2).replaceAll('0', '').length)
      .reduce((sum, ones) => sum + ones, 0);
  const cidr = (ip: JsonObject) => `${ip['IP']}/${prefix(ip['Mask'])}`;
  const ip = file['IP'] as JsonObject;
  const routes = (file['Routes'] as JsonObject[] | null) ?? [];
  return {
    ipamDisabled: file['IPAMDisabled'],
    address: ip['IP'] === undefined ? '' : cidr(ip),
    mac:
      file['MAC'] === null
        ? ''
        : bytes(file['MAC'])
            .map((byte) => byte.toString(16).padStart(2, '0'))
            .join(':'),
    gateway: file['Gateway'],
    routes: routes.map((route) => ({
      destination: route['Dst'] === null ? '' : cidr(route['Dst'] as JsonObject),
      gateway: route['Gw'],
    })),
  };
}

function shownDhcp(dhcp: DhcpRecord | undefined) {
  return (
    dhcp && {
      ipamDisabled: dhcp.ipamDisabled,
      address: dhcp.address,
      mac: dhcp.mac,
      gateway: dhcp.gateway,
      routes: dhcp.routes.map(({ destination, gateway }) => ({ destination, gateway })),
    }
  );
}

/** What the helper is told, where KubeVirt's desired state says it too. */
export function shownAttachments(applied: FakeNetworkHelper['applied']) {
  return applied.flatMap(({ attachments }) =>
    attachments.map((attachment) => ({
      network: attachment.network,
      podInterface: attachment.podInterface,
      primary: attachment.primary,
      index: attachment.index,
      queues: attachment.queues,
      binding: attachment.binding.case,
      ...(attachment.binding.case === 'bridge' && { dhcp: shownDhcp(attachment.binding.value.dhcp) }),
      ...(attachment.binding.case === 'masquerade' && {
        ipv4: attachment.binding.value.ipv4Cidr,
        ipv6: attachment.binding.value.ipv6Cidr,
      }),
    })),
  );
}

function networkOfGateway(addresses: Address[] | undefined): string {
  const first = addresses?.[0];
  const gateway = first && parseCidr(`${first.IP}/${first['prefix-length'] ?? 0}`);
  return gateway === undefined ? '' : formatCidr(maskedNetwork(gateway));
}

/** Whether KubeVirt prepares the pod for passt. */
export function expectedPasst({ desiredSpec }: SetupResult): boolean {
  const ipv4 = desiredSpec?.['linux-stack']?.ipv4;
  if (ipv4?.['ping-group-range'] === undefined) return false;
  expect(ipv4).toMatchObject({ 'ping-group-range': [107, 107], 'unprivileged-port-start': 0 });
  return true;
}

/** The attachments that lead to KubeVirt's desired state. */
export function expectedAttachments(step: SetupStep, expected: SetupResult) {
  const entries = (expected.desiredSpec?.interfaces ?? []).filter(({ state }) => state !== 'absent');
  const bridges = entries.filter(({ type }) => type === 'bridge');
  return bridges.map((bridge) => {
    const network = bridge.Metadata?.NetworkName ?? '';
    const own = entries.filter(({ Metadata }) => Metadata?.NetworkName === network);
    const tap = own.find(({ type }) => type === 'tap');
    const dummy = own.find(({ type }) => type === 'dummy');
    const podInterface = bridge.name.replace(/^k6t-/, '').replace(/^[0-9a-f]{11}$/, 'pod$&');
    const common = {
      network,
      podInterface,
      primary: tap?.name === 'tap0',
      index: step.interfaces.findIndex(({ name }) => name === network),
      queues: tap?.tap?.queues ?? 0,
    };
    if (dummy === undefined) {
      return {
        ...common,
        binding: 'masquerade',
        ipv4: networkOfGateway(bridge.IPv4?.address),
        ipv6: networkOfGateway(bridge.IPv6?.address),
      };
    }
    // The binding plugin hands out the addresses.
    const plugin = step.interfaces.find(({ name }) => name === network)?.binding !== undefined;
    if (plugin) {
      expect(bridge.IPv4?.address).toBeUndefined();
      return { ...common, binding: 'managedTap' };
    }
    const file = Object.entries(expected.filesAfter).find(
      ([path]) => vifCache.exec(path)?.[1] === podInterface,
    );
    const linkAddress = bridge.IPv4?.address?.[0]?.IP;
    if (linkAddress !== undefined) expect(linkAddress).toBe(`169.254.75.1${common.index}`);
    return { ...common, binding: 'bridge', dhcp: file && dhcpOf(file[1]) };
  });
}
