/** X.509 certificates for tests: an authority and what it signs, made without other programs. */
import { createPrivateKey, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import { isIPv4 } from 'node:net';

export interface Certificate {
  /** PEM. */
  readonly cert: string;
  /** PEM, PKCS #8. */
  readonly key: string;
}

export interface CertificateRequest {
  readonly commonName: string;
  readonly organization?: string;
  readonly dns?: readonly string[];
  readonly ips?: readonly string[];
}

export interface Authority extends Certificate {
  /** A certificate for server and client use, valid for a day. */
  issue(request: CertificateRequest): Certificate;
}

export function createAuthority(commonName: string): Authority {
  const keys = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
  const name = distinguishedName({ commonName });
  const key = keys.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  const signer = createPrivateKey(key);
  const extensions = [
    extension('2.5.29.19', true, sequence(boolean(true))),
    extension('2.5.29.15', true, bitString(Buffer.from([0x06]), 1)), // Key usage: sign certificates, CRLs.
  ];
  return {
    cert: certificate(name, name, keys.publicKey, extensions, signer),
    key,
    issue(request) {
      const own = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
      const names = [
        ...(request.dns ?? []).map((dns) => tagged(0x82, Buffer.from(dns))),
        ...(request.ips ?? []).map((ip) => tagged(0x87, addressBytes(ip))),
      ];
      const usages = sequence(oid('1.3.6.1.5.5.7.3.1'), oid('1.3.6.1.5.5.7.3.2'));
      return {
        cert: certificate(
          name,
          distinguishedName(request),
          own.publicKey,
          [
            extension('2.5.29.19', true, sequence()),
            extension('2.5.29.15', true, bitString(Buffer.from([0x80]), 7)), // Digital signature.
            extension('2.5.29.37', false, usages),
            ...(names.length === 0 ? [] : [extension('2.5.29.17', false, sequence(...names))]),
          ],
          signer,
        ),
        key: own.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
      };
    },
  };
}

const day = 86_400_000;

function certificate(
  issuer: Buffer,
  subject: Buffer,
  publicKey: KeyObject,
  extensions: readonly Buffer[],
  signer: KeyObject,
): string {
  const algorithm = sequence(oid('1.2.840.10045.4.3.2')); // ecdsa-with-SHA256
  const now = Date.now();
  const serial = randomBytes(16);
  serial[0] = ((serial[0] ?? 0) & 0x3f) | 0x40; // Positive, no leading zero.
  const body = sequence(
    tagged(0xa0, tagged(0x02, Buffer.from([2]))), // Version 3.
    tagged(0x02, serial),
    algorithm,
    issuer,
    sequence(time(now - day), time(now + day)),
    subject,
    publicKey.export({ type: 'spki', format: 'der' }),
    tagged(0xa3, sequence(...extensions)),
  );
  const der = sequence(body, algorithm, bitString(sign('sha256', body, signer), 0));
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

function distinguishedName(request: CertificateRequest): Buffer {
  const part = (type: string, text: string) =>
    tagged(0x31, sequence(oid(type), tagged(0x0c, Buffer.from(text))));
  const organization = request.organization === undefined ? [] : [part('2.5.4.10', request.organization)];
  return sequence(...organization, part('2.5.4.3', request.commonName));
}

function extension(type: string, critical: boolean, value: Buffer): Buffer {
  return sequence(oid(type), ...(critical ? [boolean(true)] : []), tagged(0x04, value));
}

function tagged(tag: number, content: Buffer): Buffer {
  const size = content.length;
  if (size < 0x80) return Buffer.concat([Buffer.from([tag, size]), content]);
  if (size > 0xffff) throw new RangeError('DER element too long');
  const head = size < 0x100 ? [tag, 0x81, size] : [tag, 0x82, size >> 8, size & 0xff];
  return Buffer.concat([Buffer.from(head), content]);
}

function sequence(...parts: readonly Buffer[]): Buffer {
  return tagged(0x30, Buffer.concat(parts));
}

function boolean(value: boolean): Buffer {
  return tagged(0x01, Buffer.from([value ? 0xff : 0]));
}

function bitString(bits: Buffer, unused: number): Buffer {
  return tagged(0x03, Buffer.concat([Buffer.from([unused]), bits]));
}

function time(ms: number): Buffer {
  const text = new Date(ms).toISOString().replace(/[-:T]/g, '');
  return tagged(0x17, Buffer.from(`${text.slice(2, 14)}Z`));
}

function oid(text: string): Buffer {
  const [first = 0, second = 0, ...rest] = text.split('.').map(Number);
  const bytes = [first * 40 + second];
  for (const arc of rest) {
    const groups = [arc & 0x7f];
    for (let left = arc >> 7; left > 0; left >>= 7) groups.unshift((left & 0x7f) | 0x80);
    bytes.push(...groups);
  }
  return tagged(0x06, Buffer.from(bytes));
}

function addressBytes(ip: string): Buffer {
  if (isIPv4(ip)) return Buffer.from(ip.split('.').map(Number));
  const [head = '', tail = ''] = ip.split('::');
  const groups = (text: string) => text.split(':').filter((group) => group !== '');
  const missing = ip.includes('::') ? 8 - groups(head).length - groups(tail).length : 0;
  const all = [...groups(head), ...Array<string>(missing).fill('0'), ...groups(tail)];
  return Buffer.from(all.map((group) => group.padStart(4, '0')).join(''), 'hex');
}
