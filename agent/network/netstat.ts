/**
 * status.interfaces of a VMI (KubeVirt pkg/network/setup/netstat.go), except that a guest never decides
 * an address that the pod has: see mergeAddresses.
 */
import type { Domain, DomainInterfaceStatus } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import { addInfoSource, containsInfoSource } from './infosource.js';
import { formatIp, isGlobalUnicast, parseIp } from './ip.js';
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

  const devices = [...domainInterfaces(domain), ...sriovInterfaces(vmi, domain)];
  const entries = devices.map((status): Entry => {
    const iface = vmiInterfaces(vmi).find((candidate) => candidate.name === status.name);
    return { status, iface, guestIps: [] };
  });
  addGuestInfo(entries, domain.Status.Interfaces ?? []);
  for (const { status, iface, guestIps } of entries) {
    if (iface === undefined) continue;
    const isPodNetwork = podNetwork !== undefined && iface.name === podNetwork;
    const own = podIps.get(iface.name) ?? [];
    setAddresses(status, mergeAddresses(iface, own, guestIps, isPodNetwork));
  }

  const result = entries.map((entry) => entry.status);
  if (podNetwork !== undefined) movePodNetworkFirst(result, podNetwork, previous);
  addMultus(result, vmiInterfaces(vmi), previous);
  for (const status of result) keepPodInterfaceName(status, previous);
  return result;
}

interface Entry {
  readonly status: InterfaceStatus;
  /** Undefined: not in the spec. */
  readonly iface: VmiInterface | undefined;
  /** Of an interface of the spec: those of all guest interfaces with its MAC, in order of appearance. */
  readonly guestIps: string[];
}

function domainInterfaces(domain: Domain): InterfaceStatus[] {
  return (domain.Spec.Devices?.Interfaces ?? []).map((device) => {
    const linkState = device.LinkState === undefined ? 'up' : device.LinkState.State;
    return {
      ...(device.Alias?.Name && { name: device.Alias.Name }),
      ...(device.MAC?.MAC && { mac: device.MAC.MAC }),
      infoSource: 'domain',
      ...(device.Driver?.Queues !== 0 && { queueCount: device.Driver?.Queues ?? 1 }),
      ...(linkState && { linkState }),
    };
  });
}

function sriovInterfaces(vmi: Vmi, domain: Domain): InterfaceStatus[] {
  return (domain.Spec.Devices?.HostDevices ?? [])
    .map((device) => device.Alias?.Name ?? '')
    .filter((alias) => alias.startsWith(sriovAlias))
    .map((alias) => {
      const name = alias.slice(sriovAlias.length);
      const mac = vmiInterfaces(vmi).find((iface) => iface.name === name)?.macAddress;
      return { ...(name && { name }), ...(mac && { mac }), infoSource: 'domain' };
    });
}

/** Adds what the guest agent tells to the entries, and entries for interfaces that only the guest knows. */
function addGuestInfo(entries: Entry[], guest: readonly DomainInterfaceStatus[]): void {
  const limit = entries.length + maxGuestOnly;
  for (const { Mac, Ip, IPs, InterfaceName } of guest) {
    const entry = entries.find(({ status }) => (status.mac ?? '') === Mac);
    if (entry === undefined) {
      if (entries.length === limit) continue;
      const status = {
        ...(Mac && { mac: Mac }),
        ...(Ip && { ipAddress: Ip }),
        ...(IPs?.length && { ipAddresses: [...IPs] }),
        ...(InterfaceName && { interfaceName: InterfaceName }),
        infoSource: 'guest-agent',
      };
      entries.push({ status, iface: undefined, guestIps: [] });
      continue;
    }
    if (entry.iface === undefined) replaceAddresses(entry.status, IPs ?? []);
    else entry.guestIps.push(...(IPs ?? []));
    entry.status.interfaceName = InterfaceName;
    if (InterfaceName) entry.status.infoSource = 'domain, guest-agent';
  }
  for (const { status } of entries) if (!status.interfaceName) delete status.interfaceName;
}

/** What is not in the spec has the guest's addresses, of each family those of the first that has some. */
function replaceAddresses(status: InterfaceStatus, guest: readonly string[]): void {
  const addresses = ([4, 6] as const).flatMap((family) => {
    const known = addressesOf(status.ipAddresses ?? [], family);
    const reported = addressesOf(guest, family);
    // An interface without any of a family clears it.
    return known.length === 0 || reported.length === 0 ? reported : known;
  });
  delete status.ipAddress;
  delete status.ipAddresses;
  setAddresses(status, addresses);
}

function addressesOf(texts: readonly string[], family: 4 | 6): string[] {
  return texts.filter((text) => parseIp(text)?.family === family);
}

/**
 * The pod's own addresses, in their order. A guest adds those of a family that the pod lacks, but never
 * behind masquerade, where its address means nothing outside; on the pod network it adds only addresses
 * that may leave a link.
 */
function mergeAddresses(
  iface: VmiInterface,
  own: readonly string[],
  guest: readonly string[],
  isPodNetwork: boolean,
): string[] {
  if (iface.masquerade) return [...own];
  const missing = ([4, 6] as const).filter((family) => addressesOf(own, family).length === 0);
  const usable = uniqueAddresses(guest).filter((text) => {
    const address = parseIp(text);
    return address !== undefined && (!isPodNetwork || isGlobalUnicast(address));
  });
  return [...own, ...missing.flatMap((family) => addressesOf(usable, family))];
}

/** The first text of each address. */
function uniqueAddresses(texts: readonly string[]): string[] {
  const seen = new Map<string, string>();
  for (const text of texts) {
    const address = parseIp(text);
    const known = address === undefined ? text : formatIp(address);
    if (!seen.has(known)) seen.set(known, text);
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
  const name = previous.findLast((entry) => entry.name === status.name)?.podInterfaceName;
  if (status.name && name) status.podInterfaceName = name;
}
