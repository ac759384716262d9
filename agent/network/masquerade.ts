/** Guest networks of the masquerade binding (KubeVirt pkg/network/link GenerateMasquerade...). */
import { formatCidr, hostBits, type IpNetwork, maskedNetwork, parseCidr } from './ip.js';
import type { VmiNetwork } from './vmi-network.js';

const defaultCidr = { 4: '10.0.2.0/24', 6: 'fd10:0:2::/120' } as const;

export interface GuestAddresses {
  /** The guest's network, host bits cleared. */
  readonly network: IpNetwork;
  /** Address of the bridge, with the network's prefix length. */
  readonly gateway: IpNetwork;
  /** Address that the launcher's DHCP server hands out. */
  readonly guest: IpNetwork;
}

/** Throws an Error for a CIDR that is none, is of the other family, or has fewer than four addresses. */
export function guestAddresses(network: VmiNetwork, family: 4 | 6): GuestAddresses {
  const given = family === 4 ? network.pod?.vmNetworkCIDR : network.pod?.vmIPv6NetworkCIDR;
  const text = given || defaultCidr[family];
  const parsed = parseCidr(text);
  if (parsed === undefined) {
    throw new Error(`failed to parse VM CIDR: ${text}, invalid CIDR address: ${text}`);
  }
  if (parsed.address.family !== family) {
    throw new Error(`failed to parse VM CIDR: ${text}, not an IPv${family} network`);
  }
  if (hostBits(parsed) < 2) {
    throw new Error(`VM CIDR subnet is too small, at least 2 host addresses are required: ${text}`);
  }
  const base = maskedNetwork(parsed);
  return { network: base, gateway: offset(base, 1n), guest: offset(base, 2n) };
}

/** CIDR text for the helper. */
export function guestCidr(network: VmiNetwork, family: 4 | 6): string {
  return formatCidr(guestAddresses(network, family).network);
}

function offset(network: IpNetwork, by: bigint): IpNetwork {
  return { ...network, address: { ...network.address, value: network.address.value + by } };
}
