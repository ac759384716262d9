import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { ApplyRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { dhcpRecordFileName, dhcpRecordText } from '../../../privhelper/network/dhcp-record.js';
import { apply } from '../../../privhelper/policy/network.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { refA } from './fakes.js';

interface IpNet {
  readonly IP?: string;
  readonly Mask?: string;
}

/** The members of a recorded file that vary. */
interface Recorded {
  readonly IP: IpNet;
  readonly MAC: string | null;
  readonly Routes: { readonly Dst: IpNet | null; readonly Gw: string }[] | null;
  readonly IPAMDisabled: boolean;
  readonly Gateway: string;
}

const directory = new URL('../../vectors/network/', import.meta.url);

/** Every vif-cache file that virt-handler wrote in the recorded set-ups, by name. */
function recordedFiles(): { name: string; file: string; recorded: Recorded }[] {
  const found: { name: string; file: string; recorded: Recorded }[] = [];
  const walk = (name: string, value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    for (const [key, member] of Object.entries(value)) {
      if (key.includes('vif-cache') && typeof member === 'object' && member !== null) {
        found.push({ name, file: key.slice(key.lastIndexOf('/') + 1), recorded: member as Recorded });
      } else walk(name, member);
    }
  };
  for (const file of ['netpod-setup', 'netpod-sequences']) {
    const text = gunzipSync(readFileSync(new URL(`${file}.json.gz`, directory))).toString();
    for (const { name, expected } of JSON.parse(text)) walk(name, expected);
  }
  return found;
}

function cidr({ IP = '', Mask = '' }: IpNet): string {
  const bits = [...Buffer.from(Mask, 'base64')].map((byte) => byte.toString(2)).join('');
  return `${IP}/${bits.replaceAll('0', '').length}`;
}

function request({ IP, MAC, Routes, IPAMDisabled, Gateway }: Recorded, podInterface: string) {
  const dhcp = {
    ipamDisabled: IPAMDisabled,
    address: IP.IP === undefined ? '' : cidr(IP),
    mac: MAC === null ? '' : (Buffer.from(MAC, 'base64').toString('hex').match(/../g) ?? []).join(':'),
    gateway: Gateway,
    routes: (Routes ?? []).map(({ Dst, Gw }) => ({
      destination: Dst === null ? '' : cidr(Dst),
      gateway: Gw,
    })),
  };
  return create(ApplyRequestSchema, {
    pod: refA,
    attachments: [{ network: 'n', podInterface, binding: { case: 'bridge', value: { dhcp } } }],
  });
}

describe('DHCP record', () => {
  const files = recordedFiles();

  it('has recorded files to compare with', () => {
    expect(files.length).toBeGreaterThan(20);
  });

  it.each(files)('equals byte for byte what virt-handler wrote: $name, $file', ({ file, recorded }) => {
    const podInterface = file.slice('vif-cache-'.length, -'.json'.length);
    const { records } = apply.parse(createPolicy(), request(recorded, podInterface));
    expect(records).toHaveLength(1);
    for (const { podInterface: name, record } of records) {
      expect(dhcpRecordFileName(name)).toBe(file);
      expect(dhcpRecordText(record)).toBe(JSON.stringify(recorded, null, 2));
    }
  });
});
