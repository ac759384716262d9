/** IP addresses and networks as bytes. */
import { isIPv4, isIPv6, SocketAddress } from 'node:net';
import { malformed } from '../failure.js';

/** A network: address bytes (4 or 16, host bits kept) and prefix length. */
export interface Cidr {
  readonly bytes: Uint8Array;
  readonly prefixLength: number;
}

/** Bytes of an address; undefined when the text is not one. Scoped addresses are not accepted. */
export function addressBytes(text: string): Uint8Array | undefined {
  if (isIPv4(text)) return Uint8Array.from(text.split('.'), Number);
  if (!isIPv6(text) || text.includes('%')) return undefined;
  const [head = '', tail] = text.split('::', 2);
  const front = groups(head);
  const back = tail === undefined ? [] : groups(tail);
  const bytes = new Uint8Array(16);
  bytes.set(front, 0);
  bytes.set(back, 16 - back.length);
  return bytes;
}

function groups(text: string): number[] {
  if (text === '') return [];
  return text.split(':').flatMap((group) => {
    if (group.includes('.')) return group.split('.').map(Number);
    const value = Number.parseInt(group, 16);
    return [value >> 8, value & 0xff];
  });
}

/** The canonical text of an address. */
export function addressText(bytes: Uint8Array): string {
  if (bytes.length === 4) return bytes.join('.');
  const words = Array.from({ length: 8 }, (_, i) =>
    (((bytes[2 * i] ?? 0) << 8) | (bytes[2 * i + 1] ?? 0)).toString(16),
  );
  return new SocketAddress({ address: words.join(':'), family: 'ipv6' }).address;
}

/** Parses `address/prefix` of one family. */
export function cidrField(field: string, text: string, family: 4 | 6): Cidr {
  const match = /^([0-9a-fA-F.:]{2,45})\/(\d{1,3})$/.exec(text);
  const bytes = match?.[1] === undefined ? undefined : addressBytes(match[1]);
  const width = family === 4 ? 4 : 16;
  if (bytes?.length !== width) throw malformed(field, `not an IPv${family} network`);
  const prefixLength = Number(match?.[2]);
  if (prefixLength > 8 * width) throw malformed(field, 'prefix length out of range');
  return { bytes, prefixLength };
}

/** Parses an IPv4 address. */
export function ipv4Field(field: string, text: string): Uint8Array {
  const bytes = addressBytes(text);
  if (bytes?.length !== 4) throw malformed(field, 'not an IPv4 address');
  return bytes;
}

/** The mask of a prefix, `width` bytes long. */
export function maskBytes(prefixLength: number, width: number): Uint8Array {
  return Uint8Array.from({ length: width }, (_, i) => {
    const bits = Math.min(8, Math.max(0, prefixLength - 8 * i));
    return (0xff << (8 - bits)) & 0xff;
  });
}

/** The network with its host bits cleared. */
export function networkOf(cidr: Cidr): Cidr {
  const mask = maskBytes(cidr.prefixLength, cidr.bytes.length);
  return { bytes: cidr.bytes.map((byte, i) => byte & (mask[i] ?? 0)), prefixLength: cidr.prefixLength };
}

/** RFC 1918, RFC 6598 (shared) and RFC 4193 (unique local). */
const privateNetworks: readonly Cidr[] = [
  { bytes: Uint8Array.of(10, 0, 0, 0), prefixLength: 8 },
  { bytes: Uint8Array.of(172, 16, 0, 0), prefixLength: 12 },
  { bytes: Uint8Array.of(192, 168, 0, 0), prefixLength: 16 },
  { bytes: Uint8Array.of(100, 64, 0, 0), prefixLength: 10 },
  { bytes: Uint8Array.of(0xfc, ...new Array<number>(15).fill(0)), prefixLength: 7 },
];

function contains(outer: Cidr, inner: Cidr): boolean {
  if (outer.bytes.length !== inner.bytes.length || inner.prefixLength < outer.prefixLength) return false;
  const masked = networkOf({ bytes: inner.bytes, prefixLength: outer.prefixLength });
  return masked.bytes.every((byte, i) => byte === outer.bytes[i]);
}

/** A guest network: private and with room for a gateway and a guest. Host bits are cleared. */
export function guestNetworkField(field: string, text: string, family: 4 | 6): Cidr {
  const network = networkOf(cidrField(field, text, family));
  if (network.prefixLength > network.bytes.length * 8 - 2) {
    throw malformed(field, 'no room for two hosts');
  }
  if (!privateNetworks.some((outer) => contains(outer, network))) {
    throw malformed(field, 'not a private network');
  }
  return network;
}
