/** The pod networks of a migration's target, as far as node and helper prepare them. */
import { randomUUID } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { networksForLiveUpdate } from '../../agent/network/filters.js';
import { interfaceStatuses, vmiInterfaces, vmiNetworks } from '../../agent/network/vmi-network.js';
import { guestVmi } from '../harness/guest/vmi.js';
import { startLauncher } from '../harness/launcher/start.js';
import { plugLink } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { NetworkMemory, networkHelper, nodeName } from './network-agent.js';
import { HelperProcess } from './privhelper-fixture.js';

/** Link of the network `blue` in a pod. */
const blueLink = 'pod16477688c0e';
const made = ['k6t-16477688c0e', 'k6t-eth0', 'tap0', 'tap16477688c0e'];

describe.runIf(process.getuid?.() === 0)('the target of a migration', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let memory: NetworkMemory;
  let nextNumber = 5;
  const vmiUid = randomUUID();

  beforeAll(async () => {
    node = await createNode();
    memory = new NetworkMemory();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    memory?.remove();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  /** A launcher pod of the VMI, to which Multus has given the link of `blue`. */
  async function targetPod() {
    const number = nextNumber++;
    const pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP: `10.244.2.${number}` });
    await plugLink(node.netnsPid, pod.pausePid, `vpblue${number}`, {
      ...{ name: blueLink, mac: '02:00:00:00:00:0b', mtu: 1400 },
    });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    return pod;
  }

  /** As the source shows it while it runs there: a NIC of its own, one plugged later, one that has been unplugged. */
  function migratingVmi(podUid: string): Vmi {
    const activePods = { source: 'elsewhere', [podUid]: nodeName };
    const vmi = guestVmi({
      ...{ namespace: 'default', name: 'vm', uid: vmiUid, nodeName: 'elsewhere' },
      activePods,
      binding: 'masquerade',
    });
    vmi.spec.networks?.push(
      { name: 'blue', multus: { networkName: 'nad' } },
      { name: 'gone', multus: { networkName: 'nad' } },
    );
    vmi.spec.domain.devices.interfaces?.push(
      { name: 'blue', bridge: {} },
      { name: 'gone', bridge: {}, state: 'absent' },
    );
    vmi.status.interfaces = [
      { name: 'default', infoSource: 'domain' },
      { name: 'blue', infoSource: 'domain, multus-status' },
    ];
    return vmi;
  }

  it('NET-027 gets all networks of the spec, absent ones too, and after a failure nothing of it is remembered', async () => {
    for (const attempt of [1, 2]) {
      const pod = await targetPod();
      const vmi = migratingVmi(pod.uid);
      const networks = vmiNetworks(vmi).map(({ name }) => name);
      // By the source's status there would be nothing to do.
      expect(networksForLiveUpdate(vmiNetworks(vmi), vmiInterfaces(vmi), interfaceStatuses(vmi))).toEqual([]);
      const agent = memory.agent(pod.uid, networkHelper(helper));
      await agent.setup(vmi, networks);
      const network = new PodNetwork(pod);
      const links = async () => [...(await network.links()).keys()].sort();
      expect(await links(), `attempt ${attempt}`).toEqual(expect.arrayContaining(made));
      expect((await links()).filter((name) => /^(k6t-|tap)/.test(name))).toHaveLength(made.length);
      expect(readdirSync(memory.directory)).toEqual([vmiUid]);

      const before = [await links(), await network.ruleset()];
      await agent.teardown({ namespace: 'default', name: 'vm', uid: vmiUid });
      expect(readdirSync(memory.directory)).toEqual([]);
      // The network ends with the pod.
      expect([await links(), await network.ruleset()]).toEqual(before);
      await pod.destroy();
    }
  });
});
