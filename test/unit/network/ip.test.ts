import { isIPv6 } from 'node:net';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  formatCidr,
  formatIp,
  isGlobalUnicast,
  isLinkLocal,
  maskedNetwork,
  parseCidr,
  parseIp,
  parseMac,
} from '../../../agent/network/ip.js';

function canonical(text: string): string | undefined {
  const address = parseIp(text);
  return address && formatIp(address);
}

function global(text: string): boolean | undefined {
  const address = parseIp(text);
  return address && isGlobalUnicast(address);
}

describe('parseIp and formatIp', () => {
  it.each([
    ['10.0.0.1', '10.0.0.1'],
    ['::', '::'],
    ['::1', '::1'],
    ['FD00:0:0::5', 'fd00::5'],
    ['2001:db8:0:1:1:1:1:1', '2001:db8:0:1:1:1:1:1'],
    ['2001:0:0:1:0:0:0:1', '2001:0:0:1::1'],
    ['1:0:0:2:0:0:3:4', '1::2:0:0:3:4'],
    ['1:2:3:4:5:6:7::', '1:2:3:4:5:6:7:0'],
    ['::ffff:10.1.2.3', '10.1.2.3'],
    ['64:ff9b::192.0.2.33', '64:ff9b::c000:221'],
  ])('%s is written %s', (text, wanted) => expect(canonical(text)).toBe(wanted));

  it.each([
    '',
    '10.0.0',
    '10.0.0.256',
    '010.0.0.1',
    '10.0.0.1 ',
    ':',
    ':::',
    '1::2::3',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '1:2:3:4:5:6:7:8::',
    '12345::',
    'fe80::1%eth0',
    '::1.2.3',
    '::1.2.3.4:5',
    'x',
    `${'1:'.repeat(1000)}1`,
  ])('%j is no address', (text) => expect(parseIp(text)).toBeUndefined());

  it('agrees with the platform on every IPv6 address', () => {
    fc.assert(
      fc.property(fc.ipV6(), (text) => {
        const viaUrl = new URL(`http://[${text}]/`).hostname.slice(1, -1);
        const address = parseIp(text);
        if (address?.family === 6) expect(formatIp(address)).toBe(viaUrl);
        else expect(viaUrl.startsWith('::ffff:')).toBe(true);
      }),
    );
  });

  it('never throws and accepts nothing that the platform refuses', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'0123456789abcdefF:.%/ ') }), (text) => {
        if (parseIp(text)?.family === 6) expect(isIPv6(text)).toBe(true);
      }),
    );
  });
});

describe('classes of addresses', () => {
  it.each([
    ['10.0.0.1', true],
    ['100.64.0.1', true],
    ['127.0.0.1', false],
    ['169.254.1.1', false],
    ['224.0.0.1', false],
    ['239.255.255.255', false],
    ['240.0.0.1', true],
    ['255.255.255.255', false],
    ['0.0.0.0', false],
    ['fd00::1', true],
    ['2001:db8::1', true],
    ['fe80::1', false],
    ['febf::1', false],
    ['fec0::1', true],
    ['ff02::1', false],
    ['::1', false],
    ['::', false],
    ['::2', true],
  ])('%s is global unicast: %s', (text, wanted) => expect(global(text)).toBe(wanted));

  it('knows link-local addresses', () => {
    expect(
      ['169.254.0.1', 'fe80::1', '10.0.0.1'].map((text) => isLinkLocal(parseIp(text) ?? never())),
    ).toEqual([true, true, false]);
  });
});

describe('networks and MACs', () => {
  it('clears host bits', () => {
    const network = parseCidr('10.11.12.77/20') ?? never();
    expect(formatCidr(maskedNetwork(network))).toBe('10.11.0.0/20');
    expect(formatCidr(maskedNetwork(parseCidr('fd10::ff/120') ?? never()))).toBe('fd10::/120');
  });

  it.each(['10.0.0.0', '10.0.0.0/', '10.0.0.0/33', 'fd::/129', '/24', 'x/24', '10.0.0.0/-1'])(
    '%j is no network',
    (text) => expect(parseCidr(text)).toBeUndefined(),
  );

  it('NET-005 reads a prefix length as Go does', () => {
    expect(formatCidr(parseCidr('10.0.2.0/024') ?? never())).toBe('10.0.2.0/24');
  });

  it('NET-016 reads the spellings of a MAC that virt-api admits, and no other', () => {
    expect(parseMac('0A:58:0a:f4:02:05')).toBe('0a:58:0a:f4:02:05');
    expect(parseMac('DE-AD-00-00-BE-AF')).toBe('de:ad:00:00:be:af');
    expect(parseMac('DEAD.0000.beaf')).toBe('de:ad:00:00:be:af');
    const bad = ['', 'de:ad:00:00:be', 'de-ad:00:00:be:af', 'bad', '0a:58:0a:f4:02:05:06:07', 'dead.0000'];
    for (const text of [...bad, 'dead:0000:beaf']) expect(parseMac(text)).toBeUndefined();
  });
});

function never(): never {
  throw new Error('the address of the test is none');
}
