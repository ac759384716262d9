import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readIfThere } from '../harness/pods/proc.js';
import { run, waitFor } from '../harness/pods/run.js';
import { type LinkFacts, PodNetwork } from '../harness/system/pod-network.js';
import { System, type Vm } from '../harness/system/system.js';
import { loadVectors } from '../vectors/load.js';

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

/** The attributes of a link that the launcher and the guest's network depend on. */
function essence(link: LinkFacts | undefined) {
  if (link === undefined) return undefined;
  const { info_kind, info_data = {}, info_slave_data } = link.linkinfo ?? {};
  const pick = (facts: Readonly<Record<string, unknown>>, names: readonly string[]) =>
    Object.fromEntries(names.filter((name) => name in facts).map((name) => [name, facts[name]]));
  return {
    flags: [...link.flags].sort(),
    mtu: link.mtu,
    operstate: link.operstate,
    master: link.master,
    kind: info_kind,
    data: pick(info_data, [
      ...['stp_state', 'vlan_filtering', 'mcast_snooping', 'nf_call_iptables', 'nf_call_ip6tables'],
      ...['nf_call_arptables', 'type', 'pi', 'vnet_hdr', 'multi_queue', 'persist', 'user', 'group'],
    ]),
    port:
      info_slave_data === undefined
        ? undefined
        : pick(info_slave_data, [
            ...['state', 'hairpin', 'learning', 'flood', 'neigh_suppress', 'group_fwd_mask', 'isolated'],
          ]),
  };
}

const bridgeData = {
  stp_state: 0,
  vlan_filtering: 0,
  mcast_snooping: 1,
  nf_call_iptables: 0,
  nf_call_ip6tables: 0,
  nf_call_arptables: 0,
};
const port = { hairpin: false, flood: true, neigh_suppress: false, group_fwd_mask: '0', isolated: false };
const noCarrier = ['BROADCAST', 'MULTICAST', 'NO-CARRIER', 'UP'];
const withCarrier = ['BROADCAST', 'LOWER_UP', 'MULTICAST', 'UP'];
/** Before a virtual machine opens it. */
const closedTap = {
  flags: noCarrier,
  mtu: 1450,
  operstate: 'DOWN',
  master: 'k6t-eth0',
  kind: 'tun',
  data: {
    type: 'tap',
    pi: true,
    vnet_hdr: false,
    multi_queue: false,
    persist: true,
    user: 107,
    group: 107,
  },
  port: { ...port, state: 'disabled', learning: true },
};

async function runningVm(binding: 'masquerade' | 'bridge', machine: 'fake' | 'qemu') {
  let before: Awaited<ReturnType<typeof snapshot>> | undefined;
  const vm = await system.createVm({
    name: `${binding}-${machine}`,
    binding,
    machine,
    containerDisk: true,
    obeysAcpi: machine === 'fake',
    terminationGracePeriodSeconds: machine === 'fake' ? 30 : 0,
    beforeVmi: async (pod) => {
      before = await snapshot(new PodNetwork(pod));
    },
  });
  await system.waitForPhase(vm, 'Running');
  if (before === undefined) throw new Error('the pod was not looked at before');
  return { vm, before, network: new PodNetwork(vm.pod) };
}

async function snapshot(network: PodNetwork) {
  const { eth0, lo } = Object.fromEntries(await network.links());
  return { eth0, lo, addresses: await network.addresses(), routes: await network.routes('-4') };
}

async function end(vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
  await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
  expect(await system.node.leftovers()).toEqual([]);
}

async function expectMasqueradeRules(network: PodNetwork): Promise<void> {
  const name = 'v4 no ports istio=false gate=false legacyMig=false';
  const golden = loadVectors<unknown, { nftJson: unknown[] }>('network', 'masquerade-ruleset');
  expect(await network.ruleset()).toEqual(golden.find((vector) => vector.name === name)?.expected.nftJson);
  expect(await network.sysctl('ipv4.ip_forward')).toBe('1');
  expect(await network.sysctl('ipv4.conf.all.forwarding')).toBe('1');
  expect(await network.sysctl('ipv4.conf.k6t-eth0.route_localnet')).toBe('1');
  expect(await network.sysctl('ipv4.conf.all.arp_ignore')).toBe('0');
}

describe("the pod's network", () => {
  it('NET-015 NET-010 NET-011 masquerade IPv4, before the virtual machine opens its tap', async () => {
    const { vm, before, network } = await runningVm('masquerade', 'fake');
    const links = await network.links();
    expect([...links.keys()].sort()).toEqual(['eth0', 'k6t-eth0', 'lo', 'tap0']);
    expect(links.get('eth0')).toEqual(before.eth0);
    expect(links.get('lo')).toEqual(before.lo);
    expect(links.get('k6t-eth0')?.address).toBe('02:00:00:00:00:00');
    expect(essence(links.get('k6t-eth0'))).toEqual({
      flags: noCarrier,
      mtu: 1450,
      operstate: 'DOWN',
      master: undefined,
      kind: 'bridge',
      data: bridgeData,
      port: undefined,
    });
    expect(essence(links.get('tap0'))).toEqual(closedTap);
    expect(links.get('tap0')?.qdisc).toBe('pfifo_fast');
    expect(await network.addresses()).toEqual({
      ...before.addresses,
      'k6t-eth0': ['10.0.2.1/24 brd 10.0.2.255 global'],
      tap0: [],
    });
    expect((await network.routes('-4')).sort()).toEqual(
      [
        ...before.routes,
        '10.0.2.0/24 dev k6t-eth0 src 10.0.2.1 linkdown',
        'local 10.0.2.1 dev k6t-eth0 src 10.0.2.1',
        'broadcast 10.0.2.255 dev k6t-eth0 src 10.0.2.1 linkdown',
      ].sort(),
    );
    await expectMasqueradeRules(network);
    await end(vm);
  });

  it('NET-015 masquerade IPv4, while a virtual machine runs: only the carrier differs', async () => {
    const { vm, before, network } = await runningVm('masquerade', 'qemu');
    const links = await network.links();
    expect(links.get('eth0')).toEqual(before.eth0);
    const bridge = essence(links.get('k6t-eth0'));
    expect(bridge).toMatchObject({ flags: withCarrier, operstate: 'UP', data: bridgeData });
    const tap = essence(links.get('tap0'));
    expect(tap).toMatchObject({
      flags: withCarrier,
      operstate: 'UP',
      port: { ...closedTap.port, state: 'forwarding' },
    });
    // How QEMU uses the tap is its own choice; whose it is and that it stays is not.
    expect(tap?.data).toMatchObject({ type: 'tap', persist: true, user: 107, group: 107 });
    const addresses = await network.addresses();
    expect(addresses['k6t-eth0']?.filter((address) => !address.startsWith('fe80:'))).toEqual([
      '10.0.2.1/24 brd 10.0.2.255 global',
    ]);
    expect(await network.routes('-4')).toContain('10.0.2.0/24 dev k6t-eth0 src 10.0.2.1');
    await expectMasqueradeRules(network);
    await end(vm);
  });

  it('NET-015 bridge IPv4, before the virtual machine opens its tap', async () => {
    const { vm, before, network } = await runningVm('bridge', 'fake');
    const links = await network.links();
    expect([...links.keys()].sort()).toEqual(['eth0', 'eth0-nic', 'k6t-eth0', 'lo', 'tap0']);
    const [nic, bridge, note] = ['eth0-nic', 'k6t-eth0', 'eth0'].map((name) => links.get(name));

    // The pod link, renamed, with another address.
    expect(nic?.ifindex).toBe(before.eth0?.ifindex);
    expect(essence(nic)).toEqual({
      flags: withCarrier,
      mtu: 1450,
      operstate: 'UP',
      master: 'k6t-eth0',
      kind: 'veth',
      data: {},
      port: { ...port, state: 'forwarding', learning: false },
    });
    expect(nic?.address).not.toBe(vm.pod.mac);
    expect(essence(bridge)).toMatchObject({
      flags: withCarrier,
      mtu: 1450,
      operstate: 'UP',
      kind: 'bridge',
      data: bridgeData,
      port: undefined,
    });
    // Set at creation, so that a tap with a lower address does not change it.
    expect(bridge?.address).toBe(nic?.address);
    expect(essence(links.get('tap0'))).toEqual(closedTap);
    // It only notes the pod's addresses: a dummy, or a bridge without ports where the kernel has none.
    expect(['dummy', 'bridge']).toContain(note?.linkinfo?.info_kind);
    expect(note).toMatchObject({ mtu: 1450, operstate: 'DOWN', address: vm.pod.mac });
    expect(note?.flags).not.toContain('UP');
    expect(note?.master).toBeUndefined();

    const linkLocal = /^fe80:.*\/64 link$/;
    const addresses = await network.addresses();
    expect(addresses).toEqual({
      lo: before.addresses['lo'],
      'eth0-nic': [expect.stringMatching(linkLocal)],
      'k6t-eth0': ['169.254.75.10/32 global', expect.stringMatching(linkLocal)],
      tap0: [],
      eth0: before.addresses['eth0'],
    });
    expect((await network.routes('-4')).sort()).toEqual(
      [
        ...before.routes.filter((route) => route.includes('dev lo')),
        `local ${vm.pod.podIP} dev eth0 src ${vm.pod.podIP}`,
        'local 169.254.75.10 dev k6t-eth0 src 169.254.75.10',
      ].sort(),
    );
    expect((await network.routes('-6')).filter((route) => route.startsWith('default'))).toEqual([]);
    expect(await network.ruleset()).toEqual([]);
    expect(await network.sysctl('ipv4.conf.all.arp_ignore')).toBe('1');
    expect(await network.sysctl('ipv4.ip_forward')).toBe('0');
    expect(await network.sysctl('ipv4.conf.k6t-eth0.route_localnet')).toBe('0');
    await end(vm);
  });
});

describe('a container disk', () => {
  it("STO-009 is read-only, nosuid, nodev and noexec in the launcher's view, for root too", async () => {
    const vm = await system.createVm({ name: 'disk', machine: 'fake', containerDisk: true });
    await system.waitForPhase(vm, 'Running');
    const disk = '/run/kubevirt/container-disks/disk_0.img';
    const mounts = readIfThere(`/proc/${vm.launcher.pid}/mountinfo`)
      .split('\n')
      .map((line) => line.split(' '));
    const found = mounts.filter(([, , , , target]) => target === disk);
    expect(found).toHaveLength(1);
    const options = found[0]?.[5]?.split(',');
    expect(options).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec']));

    const inLauncher = (script: string) =>
      run('nsenter', [`--mount=/proc/${vm.launcher.pid}/ns/mnt`, '--', 'python3', '-c', script]);
    // Whole and readable, and root itself cannot open it for writing.
    expect(await inLauncher(`print(len(open('${disk}', 'rb').read()))`)).not.toBe('0\n');
    const attempt = `
import errno, os
try:
    os.open('${disk}', os.O_WRONLY)
    print('opened')
except OSError as error:
    print(errno.errorcode[error.errno])`;
    expect(await inLauncher(attempt)).toBe('EROFS\n');
    await end(vm);
  });
});
