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
const withCarrier = ['BROADCAST', 'LOWER_UP', 'MULTICAST', 'UP'];

async function end(vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
  await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
  expect(await system.node.leftovers()).toEqual([]);
}

/** Before the machine opens its tap the pod's network is as in test/integration/network-end-state.test.ts. */
describe("the pod's network", () => {
  it('NET-015 masquerade IPv4, while a virtual machine runs: only the carrier differs', async () => {
    let eth0: LinkFacts | undefined;
    const vm = await system.createVm({
      name: 'masquerade',
      binding: 'masquerade',
      machine: 'qemu',
      containerDisk: true,
      terminationGracePeriodSeconds: 0,
      beforeVmi: async (pod) => {
        eth0 = (await new PodNetwork(pod).links()).get('eth0');
      },
    });
    await system.waitForPhase(vm, 'Running');
    const network = new PodNetwork(vm.pod);
    const links = await network.links();
    expect(eth0).toBeDefined();
    expect(links.get('eth0')).toEqual(eth0);
    const bridge = essence(links.get('k6t-eth0'));
    expect(bridge).toMatchObject({ flags: withCarrier, operstate: 'UP', data: bridgeData });
    const tap = essence(links.get('tap0'));
    expect(tap).toMatchObject({
      flags: withCarrier,
      mtu: 1450,
      operstate: 'UP',
      master: 'k6t-eth0',
      port: { ...port, state: 'forwarding', learning: true },
    });
    // How QEMU uses the tap is its own choice; whose it is and that it stays is not.
    expect(tap?.data).toMatchObject({ type: 'tap', persist: true, user: 107, group: 107 });
    const addresses = await network.addresses();
    expect(addresses['k6t-eth0']?.filter((address) => !address.startsWith('fe80:'))).toEqual([
      '10.0.2.1/24 brd 10.0.2.255 global',
    ]);
    expect(await network.routes('-4')).toContain('10.0.2.0/24 dev k6t-eth0 src 10.0.2.1');
    // The gate matters to ranges only.
    const name = /^v4 no ports istio=false gate=\w+ legacyMig=false$/;
    const golden = loadVectors<unknown, { nftJson: unknown[] }>('network', 'masquerade-ruleset');
    expect(await network.ruleset()).toEqual(
      golden.find((vector) => name.test(vector.name))?.expected.nftJson,
    );
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
      run('nsenter', [`--mount=/proc/${vm.launcher.pid}/ns/mnt`, '--', '/usr/bin/python3', '-c', script]);
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
