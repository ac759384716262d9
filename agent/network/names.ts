/** Names of the pod's links (KubeVirt pkg/network/namescheme, pkg/network/link/names.go). */
import { createHash } from 'node:crypto';
import type { InterfaceStatus, VmiNetwork } from './vmi-network.js';

export type NameScheme = 'hashed' | 'ordinal';

const defaultPodInterface = 'eth0';

/** The first network that is the pod's own; undefined if the VMI has secondary networks only. */
export function defaultNetwork(networks: readonly VmiNetwork[]): VmiNetwork | undefined {
  return networks.find((network) => network.pod || network.multus?.default === true);
}

export function isSecondary(network: VmiNetwork): boolean {
  return !!network.multus && network.multus.default !== true;
}

function hashedPodInterface(network: string): string {
  return `pod${createHash('sha256').update(network).digest('hex').slice(0, 11)}`;
}

/** Links of pods made by old releases: net1, net2, ... */
export function isOrdinalName(link: string): boolean {
  // In JavaScript, $ without the m flag matches at the very end only.
  return /^net[0-9]+$/.test(link);
}

/** One ordinal link makes the whole pod ordinal. */
export function nameScheme(links: readonly string[]): NameScheme {
  return links.some(isOrdinalName) ? 'ordinal' : 'hashed';
}

/** Network name -> pod interface name. Networks that are neither default nor secondary have none. */
export function podInterfaces(
  networks: readonly VmiNetwork[],
  scheme: NameScheme,
  statuses: readonly InterfaceStatus[] = [],
): Map<string, string> {
  const names = new Map<string, string>();
  networks.filter(isSecondary).forEach((network, position) => {
    names.set(network.name, scheme === 'hashed' ? hashedPodInterface(network.name) : `net${position + 1}`);
  });
  const primary = defaultNetwork(networks);
  if (primary !== undefined) {
    const reported = statuses.find((status) => status.name === primary.name)?.podInterfaceName;
    names.set(primary.name, reported ? reported : defaultPodInterface);
  }
  return names;
}

/** Name that the pod link has once a dummy took its place. */
export function renamedLink(podInterface: string): string {
  const stem = podInterface.startsWith('pod') ? podInterface.slice(3) : podInterface;
  return `${stem}-nic`;
}
