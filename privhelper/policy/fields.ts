/** Checks of single fields. Each throws a failure that names the field. */
import { malformed } from '../failure.js';

const uuid = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/;
const dnsLabel = /^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$/;
const dnsSubdomain = /^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$/;
const networkName = /^[A-Za-z0-9_-]{1,240}$/;
const linkName = /^[A-Za-z0-9._-]{1,15}$/;
const macAddress = /^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$/;

export function isUuid(text: string): boolean {
  return uuid.test(text);
}

export function isDnsLabel(text: string): boolean {
  return dnsLabel.test(text);
}

/** A canonical lower-case UUID. */
export function uuidField(field: string, value: string): string {
  if (!uuid.test(value)) throw malformed(field, 'not a canonical UUID');
  return value;
}

/** A DNS label (RFC 1123) of at most 63 characters. */
export function dnsLabelField(field: string, value: string): string {
  if (!dnsLabel.test(value)) throw malformed(field, 'not a DNS label');
  return value;
}

/** The name of a VMI's network, as virt-api admits it (KubeVirt pkg/network/admitter/netiface.go). */
export function networkNameField(field: string, value: string): string {
  if (!networkName.test(value)) throw malformed(field, 'not a network name');
  return value;
}

/** A DNS subdomain (RFC 1123): labels with dots between them, at most 253 characters. */
export function dnsSubdomainField(field: string, value: string): string {
  if (value.length > 253 || !dnsSubdomain.test(value)) throw malformed(field, 'not a DNS subdomain');
  return value;
}

export function integerField(field: string, value: number, min: number, max: number): number {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw malformed(field, `not in ${min}..${max}`);
  }
  return value;
}

export function bigintField(field: string, value: bigint, min: bigint, max: bigint): bigint {
  if (value < min || value > max) throw malformed(field, `not in ${min}..${max}`);
  return value;
}

export function listField<T>(field: string, list: readonly T[], max: number): readonly T[] {
  if (list.length > max) throw malformed(field, `more than ${max} entries`);
  return list;
}

/** Throws for the second occurrence of a value, naming the field that holds it. */
export class Unique {
  private readonly seen = new Set<string | number>();

  add(field: string, value: string | number): void {
    if (this.seen.has(value)) throw malformed(field, 'occurs twice');
    this.seen.add(value);
  }
}

/** The name of a pod link, and of the links that are derived from it, fits the kernel's 15 bytes. */
export function podInterfaceField(field: string, value: string): string {
  if (!linkName.test(value) || value === '.' || value === '..') throw malformed(field, 'not a link name');
  if (value === 'lo') throw malformed(field, 'the loopback link is never touched');
  const stem = value.startsWith('pod') ? value.slice(3) : value;
  if (stem.length > 11) throw malformed(field, 'derived link names would exceed 15 bytes');
  return value;
}

/** Six bytes of a lower-case, colon-separated link address; undefined for the empty string. */
export function macField(field: string, value: string): Uint8Array | undefined {
  if (value === '') return undefined;
  if (!macAddress.test(value)) throw malformed(field, 'not a link address');
  return Uint8Array.from(value.split(':'), (byte) => Number.parseInt(byte, 16));
}

const maxNameBytes = 255;

/** The name of an entry of a directory. */
export function fileNameField(field: string, value: string): string {
  const length = Buffer.byteLength(value);
  if (length < 1 || length > maxNameBytes || /[/\0]/.test(value) || value === '.' || value === '..') {
    throw malformed(field, 'not one path element');
  }
  return value;
}

/** A path inside an image; the empty string is allowed. */
export function imagePathField(field: string, value: string, maxBytes: number): string {
  if (value.includes('\0')) throw malformed(field, 'contains a NUL');
  if (Buffer.byteLength(value) > maxBytes) throw malformed(field, `longer than ${maxBytes} bytes`);
  if (value.split('/').some((name) => Buffer.byteLength(name) > maxNameBytes)) {
    throw malformed(field, `has a component longer than ${maxNameBytes} bytes`);
  }
  return value;
}
