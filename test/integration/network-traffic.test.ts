/** Traffic of guests through pod networks that the helper has set up, with real kernels at both ends. */
import { randomUUID } from 'node:crypto';
import { chmodSync, chownSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  type AttachmentSchema,
  type MasqueradeBindingSchema,
  NetworkService,
  Protocol,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { type GuestNic, Station, TapGuest } from '../harness/guest/tap-guest.js';
import { startLauncher } from '../harness/launcher/start.js';
import { runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import { type Pod, qemuUser } from '../harness/pods/pod.js';
import { run, waitFor } from '../harness/pods/run.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { HelperProcess } from './privhelper-fixture.js';

type Attachment = MessageInitShape<typeof AttachmentSchema>;
type Family = 'IPv4' | 'IPv6';

const peerNumber = 99;
const addresses = {
  IPv4: {
    guest: '10.0.2.2',
    guestPrefix: 24,
    guestGateway: '10.0.2.1',
    node: '10.244.2.1',
    pod: (number: number) => `10.244.2.${number}`,
  },
  IPv6: {
    guest: 'fd10:0:2::2',
    guestPrefix: 120,
    guestGateway: 'fd10:0:2::1',
    node: 'fd00:10:244:2::1',
    pod: (number: number) => `fd00:10:244:2::${number}`,
  },
} as const;
const podMtu = 1450;
const guestMac = '02:76:70:00:00:01';

function masquerade(binding: MessageInitShape<typeof MasqueradeBindingSchema> = {}, queues = 0): Attachment {
  return {
    network: 'default',
    podInterface: 'eth0',
    primary: true,
    queues,
    binding: { case: 'masquerade', value: binding },
  };
}
const bridge: Attachment = {
  network: 'default',
  podInterface: 'eth0',
  primary: true,
  binding: { case: 'bridge', value: {} },
};

describe.runIf(process.getuid?.() === 0)('traffic of a guest', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let nodeSide: Station;
  let peer: Station;
  let nextNumber = 5;
  const ends: (() => Promise<void>)[] = [];

  beforeAll(async () => {
    node = await createNode();
    nodeSide = new Station(node, node.netnsPid);
    await nodeSide.ip('addr', 'add', `${addresses.IPv6.node}/64`, 'dev', 'cni0', 'nodad');
    const pod = await node.createPod({
      name: 'peer',
      vmiUid: randomUUID(),
      podIP: addresses.IPv4.pod(peerNumber),
    });
    peer = new Station(node, pod.pausePid);
    await addIpv6(peer, peerNumber);
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  async function addIpv6(pod: Station, number: number): Promise<void> {
    await pod.ip('addr', 'add', `${addresses.IPv6.pod(number)}/64`, 'dev', 'eth0', 'nodad');
    await pod.ip('-6', 'route', 'add', 'default', 'via', addresses.IPv6.node);
  }

  /** A launcher pod with addresses of these families. */
  async function createVmPod(families: readonly Family[] = ['IPv4']) {
    const number = nextNumber++;
    const vmiUid = randomUUID();
    const pod = await node.createPod({ name: `vm${number}`, vmiUid, podIP: addresses.IPv4.pod(number) });
    ends.push(() => pod.destroy());
    await startLauncher(pod, { namespace: 'default', name: `vm${number}`, vmiUid, machine: 'fake' });
    const inside = new Station(node, pod.pausePid);
    if (families.includes('IPv6')) await addIpv6(inside, number);
    if (!families.includes('IPv4')) await inside.ip('-4', 'addr', 'flush', 'dev', 'eth0');
    const apply = (...attachments: Attachment[]) =>
      helper.client(NetworkService).apply({ pod: { podUid: pod.uid, vmiUid }, attachments });
    const observe = () => helper.client(NetworkService).observe({ pod: { podUid: pod.uid, vmiUid } });
    return { pod, number, inside, network: new PodNetwork(pod), apply, observe };
  }

  async function startGuest(pod: Pod, ...nics: GuestNic[]): Promise<TapGuest> {
    const guest = await TapGuest.start(node, pod.pausePid, nics);
    ends.push(() => guest.stop());
    return guest;
  }

  async function serve(station: Station, ...ports: number[]): Promise<void> {
    ends.push(await station.serve(...ports));
  }

  function masqueradeNic(families: readonly Family[] = ['IPv4']): GuestNic {
    return {
      tap: 'tap0',
      link: 'eth0',
      mac: guestMac,
      mtu: podMtu,
      addresses: families.map((family) => `${addresses[family].guest}/${addresses[family].guestPrefix}`),
      gateways: families.map((family) => addresses[family].guestGateway),
    };
  }

  /** With the pod's link address, as the launcher gives it to the guest where the VMI names none. */
  function bridgeNic(pod: Pod): GuestNic {
    return {
      tap: 'tap0',
      link: 'eth0',
      mac: pod.mac,
      mtu: podMtu,
      addresses: [`${pod.podIP}/24`],
      gateways: [addresses.IPv4.node],
    };
  }

  /** A node for a macvtap's device, as a device plugin gives it to the launcher. */
  async function macvtapDevice(pod: Pod, link: string): Promise<string> {
    // /sys shows the network namespace that it was mounted from.
    const show = 'mount -t sysfs sysfs /sys && cat /sys/class/net/"$1"/tap*/dev';
    const [major = '', minor = ''] = (
      await runInNetns(pod.pausePid, 'unshare', ['--mount', '--', 'sh', '-c', show, 'sh', link])
    )
      .trim()
      .split(':');
    const directory = mkdtempSync(join(tmpdir(), 'macvtap-'));
    ends.push(async () => rmSync(directory, { recursive: true, force: true }));
    chmodSync(directory, 0o755);
    const path = join(directory, 'tap');
    await run('mknod', [path, 'c', major, minor]);
    chownSync(path, qemuUser, qemuUser);
    return path;
  }

  it.each<{ what: string; families: Family[] }>([
    { what: 'an IPv4 pod', families: ['IPv4'] },
    { what: 'an IPv6-only pod', families: ['IPv6'] },
    { what: 'a dual-stack pod', families: ['IPv4', 'IPv6'] },
  ])(
    'masquerade in $what: out as the pod, in to every port, and from within the pod',
    async ({ families }) => {
      const { pod, number, inside, apply } = await createVmPod(families);
      expect(await apply(masquerade())).toMatchObject({ changed: true });
      const guest = await startGuest(pod, masqueradeNic(families));
      await serve(peer, 7000);
      await serve(guest, 7000);
      for (const family of families) {
        const { guestGateway, node: nodeAddress, pod: addressOf } = addresses[family];
        for (const address of [guestGateway, nodeAddress, addressOf(peerNumber)]) await guest.reach(address);
        for (const protocol of ['tcp', 'udp'] as const) {
          expect(await guest.ask(protocol, addressOf(peerNumber), 7000)).toEqual([addressOf(number)]);
          // The guest sees who asks.
          expect(await peer.ask(protocol, addressOf(number), 7000)).toEqual([addressOf(peerNumber)]);
        }
      }
      // The kernel does not let what is sent to ::1 leave by another link, whatever the rules.
      if (families.includes('IPv4'))
        expect(await inside.ask('tcp', '127.0.0.1', 7000)).toEqual([addresses.IPv4.guestGateway]);
    },
  );

  it.each<Family>(['IPv4', 'IPv6'])(
    'masquerade with ports, %s: those alone are reached from outside',
    async (family) => {
      const { pod, number, apply } = await createVmPod(['IPv4', 'IPv6']);
      const ports = [
        { protocol: Protocol.TCP, port: 7000 },
        { protocol: Protocol.UDP, port: 7001 },
        { protocol: Protocol.TCP, port: 7010, endPort: 7011 },
      ];
      await apply(masquerade({ ports }));
      const guest = await startGuest(pod, masqueradeNic(['IPv4', 'IPv6']));
      await serve(peer, 7000);
      await serve(guest, 7000, 7001, 7010, 7011, 7012);
      const { guestGateway, pod: addressOf } = addresses[family];
      await guest.reach(guestGateway);
      const reached: string[] = [];
      for (const protocol of ['tcp', 'udp'] as const) {
        for (const port of [7000, 7001, 7010, 7011, 7012]) {
          const [answer] = await peer.ask(protocol, addressOf(number), port);
          // Others are for the pod itself, where nobody listens.
          expect([addressOf(peerNumber), 'refused']).toContain(answer);
          if (answer !== 'refused') reached.push(`${protocol} ${port}`);
        }
      }
      expect(reached).toEqual(['tcp 7000', 'tcp 7010', 'tcp 7011', 'udp 7001']);
      expect(await guest.ask('tcp', addressOf(peerNumber), 7000)).toEqual([addressOf(number)]);
    },
  );

  it("bridge in an IPv4 pod: the guest has the pod's address, and nobody else claims it", async () => {
    const { pod, apply } = await createVmPod();
    expect(await apply(bridge)).toMatchObject({ changed: true });
    const guest = await startGuest(pod, bridgeNic(pod));
    await serve(peer, 7000);
    await serve(guest, 7000);
    const peerAddress = addresses.IPv4.pod(peerNumber);
    for (const address of [addresses.IPv4.node, peerAddress]) await guest.reach(address);
    for (const protocol of ['tcp', 'udp'] as const) {
      expect(await guest.ask(protocol, peerAddress, 7000)).toEqual([pod.podIP]);
      expect(await peer.ask(protocol, pod.podIP, 7000)).toEqual([peerAddress]);
    }
    expect(await peer.neighbour(pod.podIP)).toBe(pod.mac);
    // The pod still has the address, on a link that is down: without the guest nobody says where it is.
    await guest.stop();
    await peer.ip('neigh', 'flush', 'dev', 'eth0');
    expect(await peer.ping(pod.podIP, 84)).toMatchObject({ answered: [] });
    expect(await peer.neighbour(pod.podIP)).toBeUndefined();
  });

  it.each(['net1', 'pod16477688c0e'])('a secondary network on %s beside masquerade', async (podInterface) => {
    const { pod, number, network, apply } = await createVmPod();
    const [nodeAddress, guestAddress] = ['192.168.66.1', '192.168.66.2'];
    ends.push(async () => {
      await nodeSide.ip('link', 'del', 'blue0');
    });
    await nodeSide.ip('link', 'add', 'blue0', 'type', 'bridge');
    await nodeSide.ip('addr', 'add', `${nodeAddress}/24`, 'dev', 'blue0');
    await nodeSide.ip('link', 'set', 'blue0', 'up');
    await nodeSide.ip(
      ...['link', 'add', 'blue1', 'type', 'veth', 'peer', 'name', podInterface],
      ...['netns', String(pod.pausePid)],
    );
    ends.push(async () => {
      await nodeSide.ip('link', 'del', 'blue1');
    });
    await nodeSide.ip('link', 'set', 'blue1', 'master', 'blue0', 'up');
    await new Station(node, pod.pausePid).ip('link', 'set', podInterface, 'up');
    const blue: Attachment = {
      network: 'blue',
      podInterface,
      primary: false,
      index: 1,
      binding: { case: 'bridge', value: {} },
    };
    await apply(masquerade(), blue);
    const tap = `tap${podInterface.slice(3)}`;
    expect((await network.links()).get(tap)?.mtu).toBe(1500);
    const guest = await startGuest(pod, masqueradeNic(), {
      tap,
      link: 'eth1',
      mac: '02:76:70:00:00:02',
      mtu: 1500,
      addresses: [`${guestAddress}/24`],
    });
    await serve(nodeSide, 7000);
    for (const address of [addresses.IPv4.node, nodeAddress]) await guest.reach(address);
    expect(await guest.ask('tcp', nodeAddress, 7000)).toEqual([guestAddress]);
    expect(await guest.ask('tcp', addresses.IPv4.node, 7000)).toEqual([addresses.IPv4.pod(number)]);
    expect(await nodeSide.neighbour(guestAddress)).toBe('02:76:70:00:00:02');
  });

  it('a macvtap of a binding plugin beside masquerade: seen, not touched, and it carries frames', async () => {
    const { pod, inside, network, apply, observe } = await createVmPod();
    const [nodeAddress, guestAddress] = ['192.168.67.1', '192.168.67.2'];
    const name = 'pod16477688c0e';
    // A network of the node's that the macvtap of CNI is made on.
    ends.push(async () => {
      await nodeSide.ip('link', 'del', 'mac0');
    });
    await nodeSide.ip('link', 'add', 'mac0', 'type', 'veth', 'peer', 'name', 'mac1');
    await nodeSide.ip('addr', 'add', `${nodeAddress}/24`, 'dev', 'mac0');
    for (const link of ['mac0', 'mac1']) await nodeSide.ip('link', 'set', link, 'up');
    await nodeSide.ip('link', 'add', 'link', 'mac1', 'name', name, 'type', 'macvtap', 'mode', 'bridge');
    await nodeSide.ip('link', 'set', name, 'netns', String(pod.pausePid));
    await inside.ip('link', 'set', name, 'up');
    const facts = async () => ({
      link: (await network.links()).get(name),
      addresses: (await network.addresses())[name],
    });
    const before = await facts();
    const mac = before.link?.address ?? '';
    const seen = (await observe()).links.find((link) => link.name === name);
    expect(seen).toMatchObject({ kind: 'macvtap', up: true, mac, mtu: 1500 });

    await apply(masquerade());
    expect(await facts()).toEqual(before);
    const guest = await startGuest(pod, masqueradeNic(), {
      tap: await macvtapDevice(pod, name),
      link: 'eth1',
      mac,
      mtu: 1500,
      addresses: [`${guestAddress}/24`],
    });
    await serve(nodeSide, 7000);
    for (const address of [addresses.IPv4.node, nodeAddress]) await guest.reach(address);
    expect(await guest.ask('tcp', nodeAddress, 7000)).toEqual([guestAddress]);
    expect(await nodeSide.neighbour(guestAddress)).toBe(mac);
  });

  it.each([
    ['masquerade', 1400],
    ['masquerade', 9000],
    ['bridge', 1400],
    ['bridge', 9000],
  ] as const)(
    '%s with an MTU of %i: packets of that size pass whole, larger ones do not',
    async (binding, mtu) => {
      const { pod, inside, network, apply } = await createVmPod();
      ends.push(async () => {
        await nodeSide.ip('link', 'set', 'cni0', 'mtu', String(podMtu));
      });
      await nodeSide.ip('link', 'set', pod.hostLink, 'mtu', String(mtu));
      await nodeSide.ip('link', 'set', 'cni0', 'mtu', String(mtu));
      await inside.ip('link', 'set', 'eth0', 'mtu', String(mtu));
      await apply(binding === 'bridge' ? bridge : masquerade());
      const links = await network.links();
      expect(links.get('tap0')?.mtu).toBe(mtu);
      expect(links.get('k6t-eth0')?.mtu).toBe(mtu);
      // The guest could send more than the pod carries.
      const guestMtu = mtu + 100;
      const nic = binding === 'bridge' ? bridgeNic(pod) : masqueradeNic();
      const guest = await startGuest(pod, { ...nic, mtu: guestMtu });
      await guest.reach(addresses.IPv4.node);
      expect(await guest.ping(addresses.IPv4.node, mtu, guestMtu, 84)).toEqual({
        answered: [mtu, 84],
        // A router says what it carries, a bridge does not.
        mtu: binding === 'bridge' ? guestMtu : mtu,
      });
    },
  );

  it('NET-011 a tap of four queues: all of them open, and flows are spread over them', async () => {
    const { pod, number, network, apply } = await createVmPod();
    await apply(masquerade({}, 4));
    const tap = async () => (await network.links()).get('tap0')?.linkinfo?.info_data;
    expect(await tap()).toMatchObject({ multi_queue: true, numqueues: 0, user: 107, group: 107 });
    // A process that takes it for a tap of one queue does not get it.
    await expect(startGuest(pod, { ...masqueradeNic(), queues: 1 })).rejects.toThrow('Invalid argument');
    const guest = await startGuest(pod, { ...masqueradeNic(), queues: 4 });
    expect(await tap()).toMatchObject({ multi_queue: true, numqueues: 4 });
    await serve(guest, 7000);
    await guest.reach(addresses.IPv4.guestGateway);
    const flows = 64;
    const answers = await peer.ask('udp', addresses.IPv4.pod(number), 7000, flows);
    expect(answers).toEqual(Array.from({ length: flows }, () => addresses.IPv4.pod(peerNumber)));
    await waitFor('frames from each queue', 10_000, () => guest.usedQueues('tap0').length === 4);
  });
});
