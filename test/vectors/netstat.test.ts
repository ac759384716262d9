import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { isIPv4, isIPv6, SocketAddress } from 'node:net';
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
  ips?: string[] | null;
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
          ...(linkState !== undefined && { LinkState: { State: linkState } }),
        })),
        HostDevices: (input.domainHostDeviceAliases ?? []).map((alias) => ({ Alias: { Name: alias } })),
      },
    },
    Status: {
      Interfaces: (input.guestAgentInterfaces ?? []).map(
        ({ mac = '', ip = '', ips = [], interfaceName = '' }) => ({
          Mac: mac,
          Ip: ip,
          IPs: ips ?? [],
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

const byValue = (ip: string) =>
  isIPv6(ip) ? new SocketAddress({ address: ip, family: 'ipv6' }).address : ip;

/** The table of rules for addresses, read anew: what an interface of the spec shows. */
function addressesByTable(input: Input, iface: VmiInterface, reported: string[]): string[] {
  const own = ownAddresses(input, iface.name);
  if (iface.masquerade) return own;
  const onPodNetwork = input.networks?.some(({ name, pod }) => pod && name === iface.name);
  // An address with a zone is none.
  const unscoped = reported.filter((ip) => !ip.includes('%'));
  const values = unscoped.map(byValue);
  const usable = unscoped.filter(
    (ip, i) => values.indexOf(byValue(ip)) === i && !(onPodNetwork && leavesNoLink.test(ip)),
  );
  // An IPv4-mapped address is an IPv4 address.
  const is4 = (ip: string) => isIPv4(ip.replace(/^::ffff:/, ''));
  const v4 = own.some(isIPv4) ? [] : usable.filter(is4);
  const v6 = own.some(isIPv6) ? [] : usable.filter((ip) => isIPv6(ip) && !is4(ip));
  return [...own, ...v4, ...v6];
}

/** KubeVirt's answer with the addresses of the entries that the spec and the domain have by the table. */
function byTable(input: Input, wanted: InterfaceStatus[]): InterfaceStatus[] {
  if (!input.domainExists) return wanted;
  const devices = [
    ...(input.domainInterfaces ?? []).map(({ alias, mac = '' }) => ({ name: alias, mac })),
    ...(input.domainHostDeviceAliases ?? [])
      .filter((alias) => alias.startsWith('sriov-'))
      .map((alias) => {
        const name = alias.slice('sriov-'.length);
        return { name, mac: input.interfaces?.find((iface) => iface.name === name)?.macAddress ?? '' };
      }),
  ];
  return wanted.map((status) => {
    const iface = input.interfaces?.find(({ name }) => name === status.name);
    const device = devices.find(({ name }) => name === status.name);
    if (iface === undefined || device === undefined) return status;
    // A guest interface is that of the first device with its MAC.
    const reported = (input.guestAgentInterfaces ?? [])
      .filter(({ mac = '' }) => devices.find((each) => each.mac === mac) === device)
      .flatMap(({ ips }) => ips ?? []);
    const { ipAddress: _, ipAddresses: __, ...others } = status;
    const addresses = addressesByTable(input, iface, reported);
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

const byText = (one: unknown, other: unknown) => (JSON.stringify(one) < JSON.stringify(other) ? -1 : 1);

describe('netstat', () => {
  it('AFT-006 NET-024 the rule for addresses changes entries of every binding', () => {
    const kinds = new Set(
      changed.map(({ input }) => {
        const podNetwork = input.networks?.find(({ pod }) => pod)?.name;
        const iface = input.interfaces?.find(({ name }) => name === podNetwork);
        return iface?.masquerade
          ? 'masquerade'
          : iface?.bridge
            ? 'bridge'
            : iface?.passtBinding
              ? 'passt'
              : 'plugin';
      }),
    );
    expect([...kinds].sort()).toEqual(['bridge', 'masquerade', 'passt', 'plugin']);
  });

  it.each(cases)('NET-024 $name', async ({ input, expected }) => {
    const statuses = await run(input);
    const wanted = byTable(input, wantedOf(expected));
    if (expected.anyOrderOf === undefined) return expect(statuses).toEqual(wanted);
    // Those known from Multus only come last, in the order of the spec.
    expect(sortKeys(statuses).sort(byText)).toEqual(sortKeys(wanted).sort(byText));
    const order = input.interfaces?.map(({ name }) => name) ?? [];
    const last = statuses.filter(({ infoSource }) => infoSource === 'multus-status');
    expect(last.map(({ name = '' }) => order.indexOf(name))).toEqual(
      last.map(({ name = '' }) => order.indexOf(name)).sort((one, other) => one - other),
    );
  });
});
