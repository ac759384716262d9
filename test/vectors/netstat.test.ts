import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { isIPv4, isIPv6 } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PodNetStat } from '../../agent/network/pod-netstat.js';
import { NetworkStateStore } from '../../agent/network/state.js';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import { silentLog } from '../unit/status/fakes.js';
import { loadVectors } from './load.js';
import { domainOf, vmiOf } from './objects.js';

interface GuestInterface {
  mac?: string;
  ip?: string;
  ips?: string[];
  interfaceName?: string;
}
interface Input {
  domainExists: boolean;
  networks: VmiNetwork[] | null;
  interfaces: VmiInterface[] | null;
  statusInterfaces: InterfaceStatus[] | null;
  podCacheFiles: Record<string, { podIP?: string; podIPs?: string[] }>;
  domainInterfaces: { alias: string; mac?: string; queues?: number; linkState?: string }[] | null;
  domainHostDeviceAliases: string[] | null;
  guestAgentInterfaces: GuestInterface[] | null;
}
interface Expected {
  statusInterfaces?: InterfaceStatus[] | null;
  anyOrderOf?: InterfaceStatus[];
}

const cases = loadVectors<Input, Expected>('network', 'netstat');

let root: string;
let runs = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'netstat-vectors-'));
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** status.interfaces as the agent writes it with these files of KubeVirt on the node. */
async function run(input: Input): Promise<InterfaceStatus[]> {
  const directory = join(root, String(runs++));
  mkdirSync(join(directory, 'uid-1'), { recursive: true });
  for (const [network, file] of Object.entries(input.podCacheFiles)) {
    writeFileSync(join(directory, 'uid-1', network), JSON.stringify(file, undefined, 2));
  }
  const vmi = vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { networks: input.networks ?? [], domain: { devices: { interfaces: input.interfaces ?? [] } } },
    status: { interfaces: input.statusInterfaces ?? [] },
  } as never);
  const domain = domainOf({
    Spec: {
      Devices: {
        Interfaces: (input.domainInterfaces ?? []).map(({ alias, mac, queues, linkState }) => ({
          Alias: { Name: alias },
          ...(mac && { MAC: { MAC: mac } }),
          ...(queues !== undefined && { Driver: { Queues: queues } }),
          ...(linkState && { LinkState: { State: linkState } }),
        })),
        HostDevices: (input.domainHostDeviceAliases ?? []).map((alias) => ({ Alias: { Name: alias } })),
      },
    },
    Status: {
      Interfaces: (input.guestAgentInterfaces ?? []).map(
        ({ mac = '', ip = '', ips = [], interfaceName = '' }) => ({
          Mac: mac,
          Ip: ip,
          IPs: ips,
          InterfaceName: interfaceName,
        }),
      ),
    },
  });
  const netStat = new PodNetStat(new NetworkStateStore(directory, silentLog()));
  await netStat.updateStatus(vmi, input.domainExists ? domain : undefined);
  return vmi.status.interfaces ?? [];
}

/** A file of an old release has podIP alone. */
function ownAddresses(input: Input, name: string): string[] {
  const { podIP, podIPs } = input.podCacheFiles[name] ?? {};
  return podIPs ?? (podIP === undefined ? [] : [podIP]);
}

const leavesNoLink =
  /^(127\.|169\.254\.|0\.0\.0\.0$|255\.255\.255\.255$|22[4-9]\.|23\d\.|::$|::1$|fe[89ab][0-9a-f]:|ff)/i;

/** The table of rules for addresses, read anew: what a spec interface shows. */
function addressesByTable(input: Input, iface: VmiInterface): string[] {
  const own = ownAddresses(input, iface.name);
  if (iface.masquerade) return own;
  const sriov = input.domainHostDeviceAliases?.includes(`sriov-${iface.name}`);
  const mac = sriov
    ? (iface.macAddress ?? '')
    : (input.domainInterfaces?.find(({ alias }) => alias === iface.name)?.mac ?? '');
  const reported = (input.guestAgentInterfaces ?? [])
    .filter((entry) => (entry.mac ?? '') === mac)
    .flatMap(({ ips = [] }) => ips)
    .filter((ip, position, all) => all.indexOf(ip) === position);
  const onPodNetwork = input.networks?.some(({ name, pod }) => pod && name === iface.name);
  const usable = reported.filter((ip) => !(onPodNetwork && leavesNoLink.test(ip)));
  const v4 = own.some(isIPv4) ? [] : usable.filter(isIPv4);
  const v6 = own.some(isIPv6) ? [] : usable.filter(isIPv6);
  return [...own, ...v4, ...v6];
}

/** KubeVirt's answer with the addresses of the entries that the spec and the domain have by the table. */
function byTable(input: Input, wanted: InterfaceStatus[]): InterfaceStatus[] {
  if (!input.domainExists) return wanted;
  return wanted.map((status) => {
    const iface = input.interfaces?.find(({ name }) => name === status.name);
    if (iface === undefined || !/domain/.test(status.infoSource ?? '')) return status;
    const { ipAddress: _, ipAddresses: __, ...others } = status;
    const addresses = addressesByTable(input, iface);
    return addresses[0] === undefined
      ? others
      : { ...others, ipAddress: addresses[0], ipAddresses: addresses };
  });
}

const wantedOf = (expected: Expected) => expected.statusInterfaces ?? expected.anyOrderOf ?? [];
const changed = cases.filter(
  ({ input, expected }) =>
    JSON.stringify(sortKeys(byTable(input, wantedOf(expected)))) !==
    JSON.stringify(sortKeys(wantedOf(expected))),
);

function sortKeys(statuses: InterfaceStatus[]) {
  return statuses.map((status) => Object.entries(status).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

// KubeVirt shows such an address in ipAddress only.
const podIpAlone = 'pod cache with podIP but no podIPs';

describe('netstat', () => {
  it('AFT-006 NET-024 the rule for addresses changes exactly the cases that it is meant to', () => {
    const kinds = { masquerade: 0, bridge: 0, passt: 0, plugin: 0 };
    for (const { input } of changed.filter(({ name }) => name !== podIpAlone)) {
      const podNetwork = input.networks?.find(({ pod }) => pod)?.name;
      const iface = input.interfaces?.find(({ name }) => name === podNetwork);
      if (iface?.masquerade) kinds.masquerade++;
      else if (iface?.bridge) kinds.bridge++;
      else if (iface?.passtBinding) kinds.passt++;
      else kinds.plugin++;
    }
    expect(kinds).toEqual({ masquerade: 43, bridge: 25, passt: 25, plugin: 48 });
  });

  it.each(cases)('NET-024 $name', async ({ input, expected }) => {
    expect(await run(input)).toEqual(byTable(input, wantedOf(expected)));
  });
});
