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

// 1000 of them take two minutes, nearly all of it the kernel's when it takes links away.
const cycles = Number(process.env['NETWORK_CYCLES'] ?? 100);

describe.runIf(process.getuid?.() === 0)('the network of a pod', () => {
  let node: HarnessNode;
  let helper: HelperProcess;

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

  it(`set up and taken down ${cycles} times, leaves no link, no NAT table and no descriptor`, async () => {
    const vmiUid = randomUUID();
    const pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP: '10.244.2.5' });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    const network = new PodNetwork(pod);
    const client = helper.client(NetworkService);
    const ref = { podUid: pod.uid, vmiUid };
    const primary = { network: 'default', podInterface: 'eth0', primary: true };
    const ports = Array.from({ length: 16 }, (_, i) => ({ protocol: Protocol.TCP, port: 7000 + i }));
    const cycle = async (round: number) => {
      const value = round % 2 === 0 ? {} : { ports };
      const attachment = { ...primary, queues: round % 4, binding: { case: 'masquerade', value } as const };
      expect(await client.apply({ pod: ref, attachments: [attachment] })).toMatchObject({ changed: true });
      expect(await client.apply({ pod: ref, detachments: [primary] })).toMatchObject({ changed: true });
    };
    const before = { links: await network.links(), rules: await network.ruleset() };
    // The first round opens what stays open: the launcher is pinned, the connection made.
    await cycle(0);
    const open = descriptors();
    for (let round = 1; round < cycles; round++) await cycle(round);
    expect({ links: await network.links(), rules: await network.ruleset() }).toEqual(before);
    await waitFor('the descriptors of before', 20_000, () => descriptors().length <= open.length).catch(() =>
      expect(descriptors()).toEqual(open),
    );
  });
});
