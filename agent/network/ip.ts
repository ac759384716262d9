/** Addresses, networks and MACs in the text forms of Go's net package. */
import { isIPv4 } from 'node:net';

export interface IpAddress {
  readonly family: 4 | 6;
  readonly value: bigint;
}

export interface IpNetwork {
  readonly address: IpAddress;
  readonly prefixLength: number;
}

const bitsOf = { 4: 32, 6: 128 } as const;

/** Undefined for what Go's net.ParseIP refuses: zones, leading zeros, anything else. */
export function parseIp(text: string): IpAddress | undefined {
  if (isIPv4(text)) return { family: 4, value: parseIpv4(text) };
  const value = parseIpv6(text);
  if (value === undefined) return undefined;
  // An IPv4-mapped address is an IPv4 address.
  return value >> 32n === 0xffffn ? { family: 4, value: value & 0xffffffffn } : { family: 6, value };
}

function parseIpv4(text: string): bigint {
  return text.split('.').reduce((sum, part) => (sum << 8n) | BigInt(part), 0n);
}

function parseIpv6(text: string): bigint | undefined {
  if (text.length > 45 || !/^[0-9a-fA-F:.]+$/.test(text)) return undefined;
  let groups = text;
  const tail = /:([0-9.]+\.[0-9.]+)$/.exec(text)?.[1];
  if (tail !== undefined) {
    if (!isIPv4(tail)) return undefined;
    const v4 = parseIpv4(tail);
    groups = `${text.slice(0, -tail.length)}${(v4 >> 16n).toString(16)}:${(v4 & 0xffffn).toString(16)}`;
  }
  const halves = groups.split('::');
  if (halves.length > 2) return undefined;
  const [left, right] = halves.map((half) => (half === '' ? [] : half.split(':')));
  if (left === undefined) return undefined;
  const given = left.length + (right?.length ?? 0);
  if (right === undefined ? given !== 8 : given > 7) return undefined;
  const all = [...left, ...Array<string>(8 - given).fill('0'), ...(right ?? [])];
  let value = 0n;
  for (const group of all) {
    if (!/^[0-9a-fA-F]{1,4}$/.test(group)) return undefined;
    value = (value << 16n) | BigInt(`0x${group}`);
  }
  return value;
}

/** Canonical text: dotted quad, or RFC 5952. */
export function formatIp(address: IpAddress): string {
  if (address.family === 4) {
    return [24n, 16n, 8n, 0n].map((shift) => String((address.value >> shift) & 0xffn)).join('.');
  }
  const groups = Array.from({ length: 8 }, (_, i) =>
    ((address.value >> BigInt(112 - 16 * i)) & 0xffffn).toString(16),
  );
  let start = -1;
  let length = 1;
  for (let i = 0; i < 8; i++) {
    let run = 0;
    while (i + run < 8 && groups[i + run] === '0') run++;
    if (run > length) [start, length] = [i, run];
  }
  if (start < 0) return groups.join(':');
  return `${groups.slice(0, start).join(':')}::${groups.slice(start + length).join(':')}`;
}

/** Undefined for what is not `<address>/<prefix length>`; as in Go, the length may begin with zeros. */
export function parseCidr(text: string): IpNetwork | undefined {
  const match = /^([^/]+)\/([0-9]+)$/.exec(text);
  if (match?.[1] === undefined) return undefined;
  const address = parseIp(match[1]);
  const prefixLength = Number(match[2]);
  if (address === undefined || prefixLength > bitsOf[address.family]) return undefined;
  return { address, prefixLength };
}

export function formatCidr(network: IpNetwork): string {
  return `${formatIp(network.address)}/${network.prefixLength}`;
}

/** The network with its host bits cleared. */
export function maskedNetwork(network: IpNetwork): IpNetwork {
  const hostBits = BigInt(bitsOf[network.address.family] - network.prefixLength);
  const value = (network.address.value >> hostBits) << hostBits;
  return { address: { family: network.address.family, value }, prefixLength: network.prefixLength };
}

export function hostBits(network: IpNetwork): number {
  return bitsOf[network.address.family] - network.prefixLength;
}

export function isLinkLocal(address: IpAddress): boolean {
  return address.family === 4 ? address.value >> 16n === 0xa9fen : address.value >> 118n === 0x3fan;
}

/** As Go's IsGlobalUnicast: private and unique-local addresses included. */
export function isGlobalUnicast(address: IpAddress): boolean {
  const { family, value } = address;
  if (value === 0n || isLinkLocal(address)) return false;
  if (family === 4) return value >> 24n !== 127n && value >> 28n !== 0xen && value !== 0xffffffffn;
  return value !== 1n && value >> 120n !== 0xffn;
}

/** Six octets with colons or dashes, or three pairs of them with dots, as lower case with colons. */
export function parseMac(text: string): string | undefined {
  const octets = /^[0-9a-f]{2}(?:(:|-)[0-9a-f]{2}(?:\1[0-9a-f]{2}){4})$|^[0-9a-f]{4}(\.[0-9a-f]{4}){2}$/i;
  if (!octets.test(text)) return undefined;
  return text
    .toLowerCase()
    .replaceAll(/[:.-]/g, '')
    .replaceAll(/..(?!$)/g, '$&:');
}
