/** Pod networks as the helper sets them up, seen with the tools of an administrator. */
import { statSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { NetworkPlan } from '../../native/binding.js';
import { ProcessTrace } from '../harness/system/process-trace.js';
import {
  bridge,
  kernelHasDummy,
  masquerade,
  NetworkNode,
  type NetworkPod,
  planOf,
} from './network-fixture.js';

interface IpLink {
  readonly ifname: string;
  readonly flags: string[];
  readonly mtu: number;
  readonly master?: string;
  readonly address: string;
  readonly linkinfo?: {
    readonly info_kind: string;
    readonly info_data?: Record<string, unknown>;
    readonly info_slave_data?: Record<string, unknown>;
  };
  readonly addr_info?: { readonly local: string; readonly prefixlen: number; readonly broadcast?: string }[];
}

const link = async (pod: NetworkPod, name: string): Promise<IpLink> => {
  const [found] = await pod.json<IpLink[]>('ip', '-d', '-j', 'addr', 'show', name);
  if (found === undefined) throw new Error(`no link ${name}`);
  return found;
};
const names = async (pod: NetworkPod): Promise<string[]> =>
  (await pod.json<IpLink[]>('ip', '-j', 'link')).map(({ ifname }) => ifname).sort();
const addresses = (of: IpLink): string[] => (of.addr_info ?? []).map((it) => `${it.local}/${it.prefixlen}`);
const sysctl = async (pod: NetworkPod, name: string): Promise<string> =>
  (await pod.run('cat', `/proc/sys/net/${name}`)).trim();
const addIpv6 = (pod: NetworkPod): Promise<string> =>
  pod.shell('ip -6 addr add fd00:10:244:2::5/64 dev eth0 nodad');

describe('pod networks', () => {
  let node: NetworkNode;

  beforeAll(async () => {
    node = await NetworkNode.create();
  });
  afterEach(async () => {
    await node.destroyPods();
  });
  afterAll(async () => {
    await node?.destroy();
  });

  it('NET-015 masquerade binding, dual stack: bridge, tap, sysctls; the pod link untouched', async () => {
    const pod = await node.createPod();
    await addIpv6(pod);
    const before = await pod.shell(
      'ip addr show eth0 | grep -v tentative; ip route; ip -6 route show dev eth0',
    );
    expect(await pod.apply(planOf(masquerade))).toBe(true);
    const bridgeLink = await link(pod, 'k6t-eth0');
    expect(bridgeLink).toMatchObject({
      address: '02:00:00:00:00:00',
      mtu: 1450,
      linkinfo: { info_kind: 'bridge', info_data: { stp_state: 0, vlan_filtering: 0, mcast_snooping: 1 } },
    });
    expect(bridgeLink.flags).toEqual(expect.arrayContaining(['UP', 'NO-CARRIER']));
    expect(addresses(bridgeLink)).toEqual(['10.0.2.1/24', 'fd10:0:2::1/120']);
    expect(bridgeLink.addr_info?.[0]?.broadcast).toBe('10.0.2.255');
    const tap = await link(pod, 'tap0');
    expect(tap).toMatchObject({
      mtu: 1450,
      master: 'k6t-eth0',
      linkinfo: { info_kind: 'tun', info_slave_data: { learning: true } },
    });
    expect(addresses(tap)).toEqual([]);
    const after = await pod.shell(
      'ip addr show eth0 | grep -v tentative; ip route; ip -6 route show dev eth0',
    );
    expect(
      after
        .split('\n')
        .filter((line) => !line.includes('k6t-eth0'))
        .join('\n'),
    ).toBe(before);
    expect(await sysctl(pod, 'ipv4/ip_forward')).toBe('1');
    expect(await sysctl(pod, 'ipv6/conf/all/forwarding')).toBe('1');
    expect(await sysctl(pod, 'ipv4/conf/k6t-eth0/route_localnet')).toBe('1');
    expect(await sysctl(pod, 'ipv4/conf/all/arp_ignore')).toBe('0');
    expect(await pod.apply(planOf(masquerade))).toBe(false);
  });

  it('NET-015 bridge binding: port, dummy with the pod address, no IPv4 routes', async () => {
    const pod = await node.createPod();
    expect(await pod.apply(planOf(bridge))).toBe(true);
    const nic = await link(pod, 'eth0-nic');
    expect(nic).toMatchObject({ master: 'k6t-eth0', linkinfo: { info_slave_data: { learning: false } } });
    expect(nic.address).not.toBe('0a:58:0a:f4:02:05');
    expect(addresses(nic).filter((it) => !it.startsWith('fe80'))).toEqual([]);
    expect(addresses(await link(pod, 'k6t-eth0'))).toContain('169.254.75.10/32');
    const dummy = await link(pod, 'eth0');
    expect(dummy).toMatchObject({ address: '0a:58:0a:f4:02:05', mtu: 1450 });
    // A bridge without ports stands in where the kernel has no dummy links.
    expect(dummy.linkinfo?.info_kind).toBe((await kernelHasDummy()) ? 'dummy' : 'bridge');
    expect(dummy.flags).not.toContain('UP');
    expect(addresses(dummy)).toContain(`${pod.pod.podIP}/24`);
    expect(await pod.run('ip', '-4', 'route')).toBe('');
    expect(await sysctl(pod, 'ipv4/conf/all/arp_ignore')).toBe('1');
    expect(await pod.apply(planOf(bridge))).toBe(false);
  });

  it('NET-011 taps: owner, persistence, queues and MTU', async () => {
    const pod = await node.createPod();
    const of = (owner: number, queues: number): NetworkPlan => ({
      attachments: [{ ...masquerade, queues }],
      detachments: [],
      uid: owner,
      gid: owner,
    });
    for (const { owner, queues, expected } of [
      {
        owner: 107,
        queues: 0,
        expected: { user: 107, group: 107, persist: true, multi_queue: false, pi: true },
      },
      {
        owner: 107,
        queues: 4,
        expected: { user: 107, group: 107, persist: true, multi_queue: true, pi: false },
      },
      {
        owner: 0,
        queues: 1,
        expected: { user: 'root', group: 'root', persist: true, multi_queue: false, pi: true },
      },
    ]) {
      expect(await pod.apply(of(owner, queues))).toBe(true);
      const tap = await link(pod, 'tap0');
      expect(tap.mtu).toBe(1450);
      expect({ ...tap.linkinfo?.info_data, type: undefined }).toMatchObject(expected);
    }
  });

  it('AFT-042 dual stack where new links have IPv6 disabled', async () => {
    const pod = await node.createPod();
    await addIpv6(pod);
    await pod.shell('echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6');
    expect(await pod.apply(planOf(masquerade))).toBe(true);
    expect(addresses(await link(pod, 'k6t-eth0'))).toEqual(['10.0.2.1/24', 'fd10:0:2::1/120']);
  });

  it('NET-032 what a killed call left is completed', async () => {
    const pod = await node.createPod();
    await pod.shell('ip link add k6t-eth0 type bridge; ip addr add 10.9.9.9/24 dev k6t-eth0');
    await pod.shell('ip tuntap add dev tap0 mode tap user 107 group 107');
    await pod.shell(
      'nft add table ip nat; nft add chain ip nat output "{ type nat hook output priority -100; }"',
    );
    expect(await pod.apply(planOf(masquerade))).toBe(true);
    const bridgeLink = await link(pod, 'k6t-eth0');
    expect(bridgeLink.address).toBe('02:00:00:00:00:00');
    expect(addresses(bridgeLink)).toEqual(['10.0.2.1/24']);
    expect((await link(pod, 'tap0')).master).toBe('k6t-eth0');
    expect(await pod.apply(planOf(masquerade))).toBe(false);
  });

  it('NET-031 refuses namespaces, names and numbers out of bounds, and changes nothing', async () => {
    const pod = await node.createPod();
    const before = await names(pod);
    const { dev, ino } = statSync(pod.pod.netns, { bigint: true });
    const own = { dev, ino };
    expect(await pod.failure(planOf(masquerade), [own])).toMatchObject({
      code: 'EPERM',
      refused: true,
      unchanged: true,
    });
    expect(await pod.observeFailure([own])).toMatchObject({ code: 'EPERM', refused: true });
    const { binding } = masquerade;
    if (binding.kind !== 'masquerade') throw new Error('not a masquerade binding');
    const bad: Partial<typeof masquerade>[] = [
      { podInterface: 'lo' },
      { podInterface: 'sixteen-letters-' },
      { podInterface: '../eth0' },
      { podInterface: 'k6t-eth0' },
      { podInterface: '' },
      { index: 100 },
      { queues: 257 },
      { binding: { ...binding, ports: [{ protocol: 'tcp', port: 0, endPort: 0 }] } },
      { binding: { ...binding, ports: [{ protocol: 'tcp', port: 65_536, endPort: 0 }] } },
      { binding: { ...binding, ports: [{ protocol: 'tcp', port: 80, endPort: 79 }] } },
      { binding: { ...binding, ipv4: { network: '10.0.2.0', prefixLength: 31 } } },
      { binding: { ...binding, ipv4: { network: '127.0.0.0', prefixLength: 24 } } },
      { binding: { ...binding, ipv6: { network: '10.0.2.0', prefixLength: 24 } } },
    ];
    for (const change of bad) {
      expect(await pod.failure(planOf({ ...masquerade, ...change })), JSON.stringify(change)).toMatchObject({
        code: 'EINVAL',
        refused: true,
        unchanged: true,
      });
    }
    expect(await pod.failure(planOf(masquerade, { ...masquerade, primary: false }))).toMatchObject({
      code: 'EINVAL',
    });
    expect(await pod.failure({ ...planOf(masquerade), gid: 0 })).toMatchObject({ code: 'EINVAL' });
    expect(await names(pod)).toEqual(before);
  });

  it('a name collision with a foreign link is refused and leaves no remains', async () => {
    const pod = await node.createPod();
    await pod.shell('ip link add tap0 type veth peer name other');
    const before = await names(pod);
    expect(await pod.failure(planOf(masquerade))).toMatchObject({
      code: 'EEXIST',
      operation: 'type collision on link tap0: actual veth, requested tap',
      refused: true,
      unchanged: true,
    });
    expect(await names(pod)).toEqual(before);
    expect(await sysctl(pod, 'ipv4/ip_forward')).toBe('0');
  });

  it('NET-034 concurrent set-ups of two pods do not mix', async () => {
    const pods = [await node.createPod(), await node.createPod()];
    const plans = pods.map((_, i) =>
      planOf({
        ...masquerade,
        binding: {
          ...masquerade.binding,
          ipv4: { network: `10.${i + 1}.0.0`, prefixLength: 24 },
        } as typeof masquerade.binding,
      }),
    );
    const work = pods.map(async (pod, i) => {
      for (let round = 0; round < 10; round++) {
        await pod.apply(plans[i] as NetworkPlan);
        const state = await pod.observe();
        expect(state.links.find(({ name }) => name === 'k6t-eth0')?.addresses).toEqual([
          { ip: `10.${i + 1}.0.1`, prefixLength: 24 },
        ]);
        expect(state.links.find(({ name }) => name === 'eth0')?.addresses[0]?.ip).toBe(pod.pod.podIP);
        await pod.apply({
          attachments: [],
          detachments: [{ podInterface: 'eth0', primary: true }],
          uid: 107,
          gid: 107,
        });
      }
    });
    await Promise.all(work);
  });

  it('NET-033 no program is started', async () => {
    const pod = await node.createPod();
    const attempts = async (work: () => Promise<void>) => {
      const trace = await ProcessTrace.attach([node.child.pid], node.node.root);
      await work();
      expect(trace.complete).toBe(true);
      return trace.stop();
    };
    const ofApply = await attempts(async () => {
      expect(await pod.apply(planOf(masquerade))).toBe(true);
    });
    expect(ofApply).toEqual([]);
    // Nor could one be: the filter of every thread refuses. The trace would have shown it.
    const ofProgram = await attempts(async () => {
      expect(await node.child.call('execute')).not.toBe('allowed');
    });
    expect(ofProgram.join('\n')).toMatch(/(fork|clone|exec)\w*\(.*EPERM/);
  });
});
