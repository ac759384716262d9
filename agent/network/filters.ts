/** Which networks each trigger sets up (KubeVirt pkg/network/setup/filters.go). Results are names. */
import { containsInfoSource } from './infosource.js';
import { type InterfaceStatus, isAbsent, type VmiInterface, type VmiNetwork } from './vmi-network.js';

/** Start of a VM: everything that is not absent, in the order of the interfaces. */
export function networksForStart(
  networks: readonly VmiNetwork[],
  interfaces: readonly VmiInterface[],
): string[] {
  return namesWithNetwork(
    interfaces.filter((iface) => !isAbsent(iface)),
    networks,
  );
}

/** A running VM: interfaces plugged by Multus but not in the domain, then absent ones that left it. */
export function networksForLiveUpdate(
  networks: readonly VmiNetwork[],
  interfaces: readonly VmiInterface[],
  statuses: readonly InterfaceStatus[],
): string[] {
  const outsideDomain = statuses.filter(({ infoSource }) => !containsInfoSource(infoSource, 'domain'));
  const inPod = outsideDomain.filter(({ infoSource }) => containsInfoSource(infoSource, 'multus-status'));
  const isAmong = (entries: readonly InterfaceStatus[], iface: VmiInterface) =>
    entries.some(({ name }) => name === iface.name);
  const plugged = interfaces.filter((iface) => !isAbsent(iface) && isAmong(inPod, iface));
  const unplugged = interfaces.filter((iface) => isAbsent(iface) && isAmong(outsideDomain, iface));
  return [...namesWithNetwork(plugged, networks), ...namesWithNetwork(unplugged, networks)];
}

function namesWithNetwork(interfaces: readonly VmiInterface[], networks: readonly VmiNetwork[]): string[] {
  const known = new Set(networks.map((network) => network.name));
  return interfaces.map((iface) => iface.name).filter((name) => known.has(name));
}
