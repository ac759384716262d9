/** Pod networks set up and taken down many times leave what was there before. */
import { randomUUID } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NetworkService, Protocol } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import { readlinkIfThere } from '../harness/pods/proc.js';
import { waitFor } from '../harness/pods/run.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { HelperProcess } from './privhelper-fixture.js';

// 1000 of them take minutes, nearly all of it the kernel's when it takes links away.
const cycles = Number(process.env['NETWORK_CYCLES'] ?? 40);
const ports = Array.from({ length: 16 }, (_, i) => ({ protocol: Protocol.TCP, port: 7000 + i }));

describe.runIf(process.getuid?.() === 0)('the network of a pod', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let nextNumber = 5;

  beforeAll(async () => {
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  /** What the helper has open, by kind: `anon_inode:[pidfd]`, `socket`, ... */
  function descriptors(): string[] {
    const directory = `/proc/${helper.pid}/fd`;
    return readdirSync(directory)
      .map((fd) => readlinkIfThere(`${directory}/${fd}`)?.replace(/:\[\d+\]$/, '') ?? '')
      .filter((target) => target !== '')
      .sort();
  }

  /** A bridge keeps what was the pod link; the next set-up begins with that. */
  const bindings = {
    masquerade: (round: number) => ({
      case: 'masquerade' as const,
      value: round % 2 === 0 ? {} : { ports },
    }),
    bridge: () => ({ case: 'bridge' as const, value: { dhcp: { ipamDisabled: true } } }),
    managedTap: () => ({ case: 'managedTap' as const, value: {} }),
  };
  it.each(Object.entries(bindings).map(([name, bindingOf]) => ({ name, bindingOf })))(
    `$name set up and taken down ${cycles} times, leaves no link, rule, file, thread or descriptor`,
    async ({ bindingOf }) => {
      const vmiUid = randomUUID();
      const podIP = `10.244.2.${nextNumber++}`;
      const pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP });
      await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
      const network = new PodNetwork(pod);
      const client = helper.client(NetworkService);
      const ref = { podUid: pod.uid, vmiUid };
      const primary = { network: 'default', podInterface: 'eth0', primary: true };
      const cycle = async (round: number) => {
        const attachment = { ...primary, queues: round % 4, binding: bindingOf(round) };
        expect(await client.apply({ pod: ref, attachments: [attachment] })).toMatchObject({ changed: true });
        expect(await client.apply({ pod: ref, detachments: [primary] })).toMatchObject({ changed: true });
      };
      const facts = async () => ({
        links: [...(await network.links()).keys()],
        rules: await network.ruleset(),
        files: readdirSync(pod.emptyDir('private')),
      });
      // The first round opens what stays open: the launcher is pinned, the connection made.
      await cycle(0);
      const before = await facts();
      expect(before.links.filter((name) => /^(k6t-|k6d-|tap)/.test(name))).toEqual([]);
      expect(before.rules).toEqual([]);
      const open = descriptors();
      const threads = readdirSync(`/proc/${helper.pid}/task`).length;
      for (let round = 1; round < cycles; round++) await cycle(round);
      expect(await facts()).toEqual(before);
      expect(readdirSync(`/proc/${helper.pid}/task`)).toHaveLength(threads);
      await waitFor('the descriptors of before', 20_000, () => descriptors().length <= open.length).catch(
        () => expect(descriptors()).toEqual(open),
      );
    },
  );
});
