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
  const status = new Map(statuses.map((entry) => [entry.name, entry]));
  const outsideDomain = interfaces.filter((iface) => {
    const entry = status.get(iface.name);
    return entry !== undefined && !containsInfoSource(entry.infoSource, 'domain');
  });
  const plugged = outsideDomain.filter(
    (iface) => !isAbsent(iface) && containsInfoSource(status.get(iface.name)?.infoSource, 'multus-status'),
  );
  const unplugged = outsideDomain.filter(isAbsent);
  return [...namesWithNetwork(plugged, networks), ...namesWithNetwork(unplugged, networks)];
}

function namesWithNetwork(interfaces: readonly VmiInterface[], networks: readonly VmiNetwork[]): string[] {
  const known = new Set(networks.map((network) => network.name));
  return interfaces.map((iface) => iface.name).filter((name) => known.has(name));
}
