import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Domain } from '../../../agent/api/domain.js';
import type { Vmi } from '../../../agent/api/vmi.js';
import { readDomain } from '../../../agent/domains/domain-json.js';
import { PodNetStat } from '../../../agent/network/pod-netstat.js';
import { NetworkStateStore } from '../../../agent/network/state.js';
import { silentLog } from '../status/fakes.js';

const uid = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee';
const mac = '02:00:00:00:00:0a';
let directory: string;
let netStat: PodNetStat;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'netstat-'));
  netStat = new PodNetStat(new NetworkStateStore(directory, silentLog()));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function vmi(iface: object): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid },
    spec: {
      networks: [{ name: 'default', pod: {} }],
      domain: { devices: { interfaces: [{ name: 'default', ...iface }] } },
    },
    status: {},
  } as Vmi;
}

function domain(guest: { mac: string; ips: string[]; name?: string }[]): Domain {
  return readDomain({
    Spec: { Devices: { Interfaces: [{ Alias: { Name: 'default' }, MAC: { MAC: mac } }] } },
    Status: {
      Interfaces: guest.map(({ mac: Mac, ips, name = 'eth0' }) => ({
        Mac,
        Ip: ips[0] ?? '',
        IPs: ips,
        InterfaceName: name,
      })),
    },
  });
}

function putRecord(podIPs: string[]) {
  mkdirSync(join(directory, uid), { recursive: true });
  writeFileSync(
    join(directory, uid, 'default'),
    JSON.stringify({ podIP: podIPs[0], podIPs, networkState: 2 }),
  );
}

describe('status.interfaces', () => {
  it('AFT-007 does not change while the guest lists its NIC twice, first without address', async () => {
    putRecord(['10.244.2.5']);
    const object = vmi({ masquerade: {} });
    const reported = domain([
      { mac, ips: [], name: 'br0' },
      { mac, ips: ['10.0.2.2'], name: 'eth0' },
    ]);
    await netStat.updateStatus(object, reported);
    const first = structuredClone(object.status.interfaces);
    expect(first?.[0]).toMatchObject({ ipAddress: '10.244.2.5', ipAddresses: ['10.244.2.5'] });
    for (let pass = 0; pass < 20; pass++) await netStat.updateStatus(object, reported);
    expect(object.status.interfaces).toEqual(first);
  });

  it('AFT-006 never takes an address from a guest behind masquerade, known or not', async () => {
    const object = vmi({ masquerade: {} });
    await netStat.updateStatus(object, domain([{ mac, ips: ['8.8.8.8', 'fd00::66'] }]));
    expect(object.status.interfaces?.[0]?.ipAddress).toBeUndefined();
    putRecord(['fd00::5']);
    await netStat.updateStatus(object, domain([{ mac, ips: ['8.8.8.8', 'fd00::66'] }]));
    expect(object.status.interfaces?.[0]?.ipAddresses).toEqual(['fd00::5']);
  });

  it('AFT-006 puts guest addresses behind the pod, and only those that may leave a link', async () => {
    putRecord(['10.244.2.5']);
    const object = vmi({ bridge: {} });
    const ips = [
      '10.9.9.9',
      '127.0.0.1',
      '169.254.3.4',
      '224.0.0.1',
      'fe80::1',
      'ff02::1',
      '::1',
      'fd00::7',
      'fd00::7',
      'x',
    ];
    await netStat.updateStatus(object, domain([{ mac, ips }]));
    expect(object.status.interfaces?.[0]?.ipAddresses).toEqual(['10.244.2.5', 'fd00::7']);
  });

  it('AFT-041 shows an address once its record is there', async () => {
    const object = vmi({ masquerade: {} });
    await netStat.updateStatus(object, domain([]));
    expect(object.status.interfaces?.[0]?.ipAddress).toBeUndefined();
    putRecord(['10.244.2.5']);
    await netStat.updateStatus(object, domain([]));
    expect(object.status.interfaces?.[0]?.ipAddress).toBe('10.244.2.5');
  });

  it('lists at most ten interfaces that only the guest knows', async () => {
    const object = vmi({ masquerade: {} });
    const many = Array.from({ length: 40 }, (_, i) => ({
      mac: `0e:0e:0e:0e:0e:${String(i).padStart(2, '0')}`,
      ips: [],
    }));
    await netStat.updateStatus(object, domain(many));
    expect(object.status.interfaces).toHaveLength(11);
  });

  it('NET-024 merges interfaces that only the guest knows by their MAC, as virt-handler does', async () => {
    const object = vmi({ masquerade: {} });
    const vlan = '0e:0e:0e:0e:0e:01';
    await netStat.updateStatus(
      object,
      domain([
        { mac: vlan, ips: ['192.168.7.1', 'x'], name: 'bond0' },
        { mac: '', ips: [], name: 'tun0' },
        { mac: vlan, ips: ['192.168.7.2', 'FD00::7'], name: 'bond0.5' },
        { mac: '', ips: ['10.8.0.2'], name: 'tun1' },
      ]),
    );
    expect(object.status.interfaces?.slice(1)).toEqual([
      {
        mac: vlan,
        interfaceName: 'bond0.5',
        ipAddress: '192.168.7.1',
        ipAddresses: ['192.168.7.1', 'FD00::7'],
        infoSource: 'domain, guest-agent',
      },
      {
        interfaceName: 'tun1',
        ipAddress: '10.8.0.2',
        ipAddresses: ['10.8.0.2'],
        infoSource: 'domain, guest-agent',
      },
    ]);
  });

  it('NET-024 gives a device without an alias no name', async () => {
    const object = vmi({ bridge: {} });
    const nameless = readDomain({
      Spec: {
        Devices: { Interfaces: [{ MAC: { MAC: mac } }], HostDevices: [{ Alias: { Name: 'sriov-' } }] },
      },
    });
    await netStat.updateStatus(object, nameless);
    expect(object.status.interfaces).toEqual([
      { mac, infoSource: 'domain', queueCount: 1, linkState: 'up' },
      { infoSource: 'domain' },
    ]);
  });

  it('leaves the status as it is without a domain', async () => {
    const object = vmi({ masquerade: {} });
    await netStat.updateStatus(object, undefined);
    expect(object.status).toEqual({});
  });

  it('does not keep in memory what it knew of an interface that is absent', async () => {
    const addressesWith = async (iface: object, podIp: string) => {
      putRecord([podIp]);
      const object = vmi(iface);
      await netStat.updateStatus(object, domain([]));
      return object.status.interfaces?.[0]?.ipAddress;
    };
    expect(await addressesWith({ bridge: {} }, '10.244.2.5')).toBe('10.244.2.5');
    expect(await addressesWith({ bridge: {}, state: 'absent' }, '10.244.2.6')).toBe('10.244.2.5');
    expect(await addressesWith({ bridge: {} }, '10.244.2.6')).toBe('10.244.2.6');
  });

  it('NET-026 forgets a VMI that is gone', async () => {
    putRecord(['10.244.2.5']);
    const object = vmi({ masquerade: {} });
    await netStat.updateStatus(object, domain([]));
    putRecord(['10.244.2.6']);
    netStat.teardown({ namespace: 'ns', name: 'vm', uid });
    await netStat.updateStatus(object, domain([]));
    expect(object.status.interfaces?.[0]?.ipAddress).toBe('10.244.2.6');
  });
});
