/** Which pod networks are to be set up. Pure. */
import type { Vmi } from '../../api/vmi.js';
import { containsInfoSource } from '../../network/infosource.js';
import { interfaceStatuses, isAbsent, vmiInterfaces, vmiNetworks } from '../../network/vmi-network.js';

/** Networks of all interfaces that are not to be removed, in the order of the interfaces. */
export function startNetworks(vmi: Vmi): string[] {
  const networks = new Set(vmiNetworks(vmi).map(({ name }) => name));
  return vmiInterfaces(vmi)
    .filter((networkInterface) => !isAbsent(networkInterface) && networks.has(networkInterface.name))
    .map(({ name }) => name);
}

/**
 * Networks to plug into a running VM, then those to unplug: the pod has the interface but the domain does
 * not yet, or does no longer.
 */
export function liveUpdateNetworks(vmi: Vmi): string[] {
  const sources = new Map(interfaceStatuses(vmi).map(({ name, infoSource }) => [name, infoSource ?? '']));
  const outsideDomain = (name: string) => {
    const source = sources.get(name);
    return source !== undefined && !containsInfoSource(source, 'domain');
  };
  const plug = startNetworks(vmi).filter(
    (name) => outsideDomain(name) && containsInfoSource(sources.get(name), 'multus-status'),
  );
  const unplug = vmiInterfaces(vmi)
    .filter((networkInterface) => isAbsent(networkInterface) && outsideDomain(networkInterface.name))
    .map(({ name }) => name);
  return [...plug, ...unplug];
}
