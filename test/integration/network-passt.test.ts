/** passt in a pod that the helper has prepared for it, and in one that it has not. */
import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PasstGuest } from '../harness/guest/passt-guest.js';
import { Station } from '../harness/guest/tap-guest.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { HelperProcess } from './privhelper-fixture.js';

const nodeIpv6 = 'fd00:10:244:2::1';
const podIpv6 = 'fd00:10:244:2::5';
const peerIpv4 = '10.244.2.99';
const peerIpv6 = 'fd00:10:244:2::99';
/** A port that only root may listen on, unless the pod says otherwise, and one for everybody. */
const [lowPort, highPort] = [80, 7000];

describe.runIf(process.getuid?.() === 0)('passt', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let peer: Station;
  const ends: (() => Promise<void>)[] = [];

  beforeAll(async () => {
    node = await createNode();
    await new Station(node, node.netnsPid).ip('addr', 'add', `${nodeIpv6}/64`, 'dev', 'cni0', 'nodad');
    const pod = await node.createPod({ name: 'peer', vmiUid: randomUUID(), podIP: peerIpv4 });
    peer = new Station(node, pod.pausePid);
    await peer.ip('addr', 'add', `${peerIpv6}/64`, 'dev', 'eth0', 'nodad');
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterEach(async () => {
    for (const each of ends.splice(0).reverse()) await each();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  /** A guest that has its addresses and answers on both ports. */
  async function startGuest(pod: Pod): Promise<PasstGuest> {
    const guest = await PasstGuest.start(node, pod, [lowPort, highPort]);
    ends.push(() => guest.stop());
    expect(await guest.dhcp()).toEqual({ address: `${pod.podIP}/24`, gateway: node.gateway });
    ends.push(await guest.serve(lowPort, highPort));
    return guest;
  }

  /** passt may lose a connection; the guest sees who asks. */
  const expectAnswer = (address: string, port: number, from: string) =>
    expect.poll(() => peer.ask('tcp', address, port), { timeout: 20_000 }).toEqual([from]);
  const facts = async (network: PodNetwork) => ({
    links: await network.links(),
    addresses: await network.addresses(),
    routes: [await network.routes('-4'), await network.routes('-6')],
    rules: await network.ruleset(),
  });
  const sysctls = async (network: PodNetwork) => [
    await network.sysctl('ipv4.ping_group_range'),
    await network.sysctl('ipv4.ip_unprivileged_port_start'),
  ];

  it('NET-015 pings and listens on low ports for the guest once the helper has allowed it, and not before', async () => {
    const vmiUid = randomUUID();
    const pod = await node.createPod({ name: 'vm', vmiUid, podIP: '10.244.2.5' });
    ends.push(() => pod.destroy());
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    const inside = new Station(node, pod.pausePid);
    await inside.ip('addr', 'add', `${podIpv6}/64`, 'dev', 'eth0', 'nodad');
    await inside.ip('-6', 'route', 'add', 'default', 'via', nodeIpv6);
    const network = new PodNetwork(pod);
    // What a kernel starts with; container runtimes may have changed it.
    await network.setSysctl('ipv4.ip_unprivileged_port_start', '1024');
    expect(await sysctls(network)).toEqual(['1 0', '1024']);

    const early = await startGuest(pod);
    await expectAnswer(pod.podIP, highPort, peerIpv4);
    expect(await peer.ask('tcp', pod.podIP, lowPort)).toEqual(['refused']);
    expect(await early.ping(node.gateway, 84)).toMatchObject({ answered: [] });
    for (const each of ends.splice(1).reverse()) await each();

    const before = await facts(network);
    const apply = () =>
      helper.client(NetworkService).apply({ pod: { podUid: pod.uid, vmiUid }, passt: true });
    expect(await apply()).toMatchObject({ changed: true });
    expect(await apply()).toMatchObject({ changed: false });
    expect(await sysctls(network)).toEqual(['107 107', '0']);
    expect(await facts(network)).toEqual(before);

    const guest = await startGuest(pod);
    await guest.autoconfigured();
    for (const address of [node.gateway, peerIpv4, peerIpv6]) await guest.reach(address);
    for (const port of [lowPort, highPort]) {
      await expectAnswer(pod.podIP, port, peerIpv4);
      await expectAnswer(podIpv6, port, peerIpv6);
    }
  });
});
