/** What a guest behind a bridge is told by DHCP, from the pod's links through agent, helper and launcher. */
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import { Station, TapGuest } from '../harness/guest/tap-guest.js';
import { leaseFor, type VifCache } from '../harness/launcher/dhcp.js';
import { startLauncher } from '../harness/launcher/start.js';
import { plugLink } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { vmiWithNetworks } from '../vectors/objects.js';
import { NetworkMemory, networkHelper, nodeName } from './network-agent.js';
import { HelperProcess } from './privhelper-fixture.js';

const gateway = '10.244.2.1';
const podMtu = 1450;
const primary = { name: 'default', pod: {} };
const blue = { name: 'blue', multus: { networkName: 'nad' } };
const blueLink = 'pod16477688c0e';
const [ofSpec, ofStatus] = ['02:00:00:00:00:51', '02:00:00:00:00:52'];

describe.runIf(process.getuid?.() === 0)('a guest with bridge binding', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let memory: NetworkMemory;
  let nextNumber = 5;
  const ends: (() => Promise<void>)[] = [];

  beforeAll(async () => {
    memory = new NetworkMemory();
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    memory?.remove();
    expect(await node?.leftovers()).toEqual([]);
  });

  async function createPod(vmiUid: string): Promise<Pod> {
    const number = nextNumber++;
    const podIP = `10.244.2.${number}`;
    const pod = await node.createPod({ name: `vm${number}`, vmiUid, podIP });
    ends.push(() => pod.destroy());
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    return pod;
  }

  interface Guest {
    readonly networks: readonly VmiNetwork[];
    readonly interfaces: readonly VmiInterface[];
    readonly statuses?: readonly InterfaceStatus[];
    /** Prepares the pod's links as CNI would. */
    readonly links?: (inside: Station, pod: Pod) => Promise<unknown>;
  }

  /** Sets the networks up, starts the launcher's DHCP servers from what is in the pod then, and tells what they serve. */
  async function prepare({ networks, interfaces, statuses = [], links }: Guest) {
    const vmiUid = randomUUID();
    const pod = await createPod(vmiUid);
    const inside = new Station(node, pod.pausePid);
    await links?.(inside, pod);
    const vmi = vmiWithNetworks(networks, interfaces, statuses, {}, {}, { [pod.uid]: nodeName });
    vmi.metadata.uid = vmiUid;
    await memory.agent(pod.uid, networkHelper(helper)).setup(
      vmi,
      networks.map(({ name }) => name),
    );
    const record = (podInterface: string) => join(pod.emptyDir('private'), `vif-cache-${podInterface}.json`);
    const facts = await new PodNetwork(pod).links();
    const leases = interfaces.map((iface, index) =>
      leaseFor(
        vmi,
        iface,
        index,
        (podInterface) => JSON.parse(readFileSync(record(podInterface), 'utf8')) as VifCache,
        (link, attribute) => String(facts.get(link)?.[attribute]),
        [],
      ),
    );
    for (const lease of leases) if (lease !== undefined) ends.push(await inside.serveLease(lease));
    return { pod, inside, leases, record };
  }

  async function startGuest(
    pod: Pod,
    ...nics: { tap: string; link: string; mac: string }[]
  ): Promise<TapGuest> {
    const guest = await TapGuest.start(
      node,
      pod.pausePid,
      nics.map((nic) => ({ ...nic, mtu: podMtu, addresses: [] })),
    );
    ends.push(() => guest.stop());
    return guest;
  }

  it.each<{ rule: string; spec?: string; status?: string; mac?: string }>([
    { rule: 'of the spec', spec: ofSpec, status: ofStatus, mac: ofSpec },
    { rule: 'else of the status', status: ofStatus, mac: ofStatus },
    { rule: 'else of the pod link' },
  ])(
    'NET-016 gets the pod’s address, gateway and routes under the MAC $rule',
    async ({ spec, status, mac: expected }) => {
      const { pod } = await prepare({
        networks: [primary],
        interfaces: [{ name: 'default', bridge: {}, ...(spec !== undefined && { macAddress: spec }) }],
        statuses: status === undefined ? [] : [{ name: 'default', mac: status }],
        links: async (inside) => {
          await inside.ip('route', 'add', '10.96.0.0/12', 'via', '10.244.2.254', 'dev', 'eth0');
          await inside.ip('route', 'add', '10.244.0.0/16', 'via', gateway, 'dev', 'eth0');
        },
      });
      const mac = expected ?? pod.mac;
      const guest = await startGuest(pod, { tap: 'tap0', link: 'eth0', mac });
      const lease = await guest.askLease('eth0', 20);
      expect(lease).toEqual({
        address: pod.podIP,
        mask: '255.255.255.0',
        router: gateway,
        server: '169.254.75.10',
        mtu: podMtu,
        hostname: 'vm',
        // The local network itself is no route; one that is wider is.
        routes: [
          ['10.96.0.0', 12, '10.244.2.254'],
          ['10.244.0.0', 16, gateway],
          ['0.0.0.0', 0, gateway],
        ],
      });
      await guest.ip('addr', 'add', `${lease?.address}/24`, 'dev', 'eth0');
      await guest.ip('route', 'add', 'default', 'via', lease?.router ?? '');
      await guest.reach(gateway);
    },
  );

  it('NET-016 is told nothing of a secondary network without IPAM, and the addresses of one with it', async () => {
    const red = { name: 'red', multus: { networkName: 'nad' } };
    const redLink = 'podb1f51a511f1';
    const { pod, leases, record } = await prepare({
      networks: [primary, blue, red],
      interfaces: [
        { name: 'default', masquerade: {} },
        { name: 'blue', bridge: {} },
        { name: 'red', bridge: {} },
      ],
      links: async (_inside, { pausePid }) => {
        const mtu = podMtu;
        const [blueMac, redMac] = ['02:00:00:aa:bb:cc', '02:00:00:aa:bb:dd'];
        await plugLink(node.netnsPid, pausePid, 'blue1', { name: blueLink, mac: blueMac, mtu });
        const address = '192.168.66.2/24';
        await plugLink(node.netnsPid, pausePid, 'red1', { name: redLink, mac: redMac, mtu, address });
      },
    });
    expect(JSON.parse(readFileSync(record(blueLink), 'utf8'))).toMatchObject({ IPAMDisabled: true });
    expect(leases[1]).toBeUndefined();
    const guest = await startGuest(
      pod,
      { tap: 'tapb1f51a511f1', link: 'eth2', mac: '02:00:00:aa:bb:dd' },
      { tap: 'tap0', link: 'eth0', mac: pod.mac },
    );
    expect(await guest.askLease('eth2', 20)).toMatchObject({
      address: '192.168.66.2',
      mask: '255.255.255.0',
      router: '',
      server: '169.254.75.12',
      routes: [],
    });
    // Behind masquerade there is no record: all follows from the guest's network.
    expect(existsSync(record('eth0'))).toBe(false);
    expect(await guest.askLease('eth0', 20)).toMatchObject({ address: '10.0.2.2', router: '10.0.2.1' });
  });

  it('NET-016 is told nothing in a pod that has IPv6 only', async () => {
    const { leases, record } = await prepare({
      networks: [primary],
      interfaces: [{ name: 'default', bridge: {} }],
      links: async (inside) => {
        await inside.ip('addr', 'add', 'fd00:10:244:2::5/64', 'dev', 'eth0', 'nodad');
        await inside.ip('-4', 'addr', 'flush', 'dev', 'eth0');
      },
    });
    expect(JSON.parse(readFileSync(record('eth0'), 'utf8'))).toMatchObject({
      IPAMDisabled: true,
      IP: { Label: '' },
      MAC: null,
      Gateway: '',
      Routes: null,
    });
    expect(leases).toEqual([undefined]);
  });
});
