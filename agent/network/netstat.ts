/**
 * status.interfaces of a VMI (KubeVirt pkg/network/setup/netstat.go), except that a guest never decides
 * an address that the pod has: see mergeAddresses.
 */
import type { Domain, DomainInterfaceStatus } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import { addInfoSource, containsInfoSource } from './infosource.js';
import { formatIp, type IpAddress, isGlobalUnicast, parseIp } from './ip.js';
import {
  type InterfaceStatus,
  interfaceStatuses,
  type VmiInterface,
  vmiInterfaces,
  vmiNetworks,
} from './vmi-network.js';

const maxGuestOnly = 10;
const sriovAlias = 'sriov-';

/** Network name -> addresses of the pod link, primary family first. */
export type PodIps = ReadonlyMap<string, readonly string[]>;

/** The new status.interfaces; the previous one when there is no domain. */
export function interfaceStatusesOf(vmi: Vmi, domain: Domain | undefined, podIps: PodIps): InterfaceStatus[] {
  const previous = interfaceStatuses(vmi);
  if (domain === undefined) return previous;
  const podNetwork = vmiNetworks(vmi).find((network) => network.pod)?.name;

  const entries = [...domainInterfaces(domain), ...sriovInterfaces(vmi, domain)];
  const guestOnly = addGuestInfo(entries, domain.Status.Interfaces ?? []);
  for (const entry of entries) {
    const iface = vmiInterfaces(vmi).find((candidate) => candidate.name === entry.status.name);
    const isPodNetwork = podNetwork !== undefined && entry.status.name === podNetwork;
    const own = iface === undefined ? [] : (podIps.get(iface.name) ?? []);
    setAddresses(entry.status, mergeAddresses(iface, own, entry.guestIps, isPodNetwork));
  }

  const result = [...entries.map((entry) => entry.status), ...guestOnly];
  if (podNetwork !== undefined) movePodNetworkFirst(result, podNetwork, previous);
  addMultus(result, vmiInterfaces(vmi), previous);
  for (const status of result) keepPodInterfaceName(status, previous);
  return result;
}

interface Entry {
  readonly status: InterfaceStatus;
  /** Of all guest interfaces with this entry's MAC, in order of appearance. */
  readonly guestIps: string[];
}

function domainInterfaces(domain: Domain): Entry[] {
  return (domain.Spec.Devices?.Interfaces ?? []).map((device) => ({
    status: {
      name: device.Alias?.Name ?? '',
      ...(device.MAC?.MAC && { mac: device.MAC.MAC }),
      infoSource: 'domain',
      ...(device.Driver?.Queues !== 0 && { queueCount: device.Driver?.Queues ?? 1 }),
      linkState: device.LinkState?.State || 'up',
    },
    guestIps: [],
  }));
}

function sriovInterfaces(vmi: Vmi, domain: Domain): Entry[] {
  return (domain.Spec.Devices?.HostDevices ?? [])
    .map((device) => device.Alias?.Name ?? '')
    .filter((alias) => alias.startsWith(sriovAlias))
    .map((alias) => {
      const name = alias.slice(sriovAlias.length);
      const mac = vmiInterfaces(vmi).find((iface) => iface.name === name)?.macAddress;
      return { status: { name, ...(mac && { mac }), infoSource: 'domain' }, guestIps: [] };
    });
}

/** Adds what the guest agent tells to the entries; answers the interfaces that only the guest knows. */
function addGuestInfo(entries: readonly Entry[], guest: readonly DomainInterfaceStatus[]): InterfaceStatus[] {
  const guestOnly: InterfaceStatus[] = [];
  for (const { Mac, Ip, IPs, InterfaceName } of guest) {
    const entry = entries.find(({ status }) => (status.mac ?? '') === Mac);
    if (entry === undefined) {
      if (guestOnly.length < maxGuestOnly) {
        guestOnly.push({
          ...(Mac && { mac: Mac }),
          ...(Ip && { ipAddress: Ip }),
          ...(IPs?.length && { ipAddresses: [...IPs] }),
          ...(InterfaceName && { interfaceName: InterfaceName }),
          infoSource: 'guest-agent',
        });
      }
      continue;
    }
    entry.guestIps.push(...(IPs ?? []));
    entry.status.interfaceName = InterfaceName;
    if (InterfaceName) entry.status.infoSource = addInfoSource(entry.status.infoSource, 'guest-agent');
  }
  for (const { status } of entries) if (!status.interfaceName) delete status.interfaceName;
  return guestOnly;
}

/**
 * The pod's own addresses, in their order. A guest adds those of a family that the pod lacks, but never
 * behind masquerade, where its address means nothing outside; on the pod network it adds only addresses
 * that may leave a link.
 */
export function mergeAddresses(
  iface: VmiInterface | undefined,
  own: readonly string[],
  guest: readonly string[],
  isPodNetwork: boolean,
): string[] {
  if (iface?.masquerade) return [...own];
  const ownFamilies = new Set(own.map((text) => parseIp(text)?.family));
  const usable = uniqueAddresses(guest).filter(
    (address) => !ownFamilies.has(address.family) && (!isPodNetwork || isGlobalUnicast(address)),
  );
  const byFamily = [4, 6].flatMap((family) => usable.filter((address) => address.family === family));
  return [...own, ...byFamily.map(formatIp)];
}

function uniqueAddresses(texts: readonly string[]): IpAddress[] {
  const seen = new Map<string, IpAddress>();
  for (const text of texts) {
    const address = parseIp(text);
    if (address !== undefined) seen.set(formatIp(address), address);
  }
  return [...seen.values()];
}

function setAddresses(status: InterfaceStatus, addresses: readonly string[]): void {
  const [first] = addresses;
  if (first === undefined) return;
  status.ipAddress = first;
  status.ipAddresses = [...addresses];
}

function movePodNetworkFirst(
  result: InterfaceStatus[],
  podNetwork: string,
  previous: readonly InterfaceStatus[],
): void {
  const position = result.findIndex((status) => status.name === podNetwork);
  if (position >= 0) {
    result.unshift(...result.splice(position, 1));
  } else if (previous.some((status) => status.name === podNetwork)) {
    result.unshift({ name: podNetwork });
  }
}

/** What Multus plugged stays listed while it is in the spec, whether or not the domain has it. */
function addMultus(
  result: InterfaceStatus[],
  interfaces: readonly VmiInterface[],
  previous: readonly InterfaceStatus[],
): void {
  const plugged = new Set(
    previous
      .filter((status) => containsInfoSource(status.infoSource, 'multus-status'))
      .map(({ name }) => name),
  );
  for (const status of result) {
    if (status.name && plugged.delete(status.name)) {
      status.infoSource = addInfoSource(status.infoSource, 'multus-status');
    }
  }
  for (const { name } of interfaces) {
    if (plugged.has(name)) result.push({ name, infoSource: 'multus-status' });
  }
}

function keepPodInterfaceName(status: InterfaceStatus, previous: readonly InterfaceStatus[]): void {
  const name = previous.find((entry) => entry.name === status.name)?.podInterfaceName;
  if (status.name && name) status.podInterfaceName = name;
}
