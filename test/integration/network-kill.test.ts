/**
 * The helper is killed around the files and the namespace of a network set-up. native/test/net_fault_test.cc has it
 * die before each of the changes in between.
 */
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AttachmentSchema, NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { removeTree } from '../harness/pods/remove.js';
import { killInSystemCall } from '../harness/system/process-trace.js';
import { networkSnapshot } from './network-snapshot.js';
import { arrange, type RecordedLink } from './network-state.js';
import { HelperProcess } from './privhelper-fixture.js';

type Attachment = MessageInitShape<typeof AttachmentSchema>;

const mac = '0a:58:0a:f4:02:05';
const primary = { network: 'default', podInterface: 'eth0', primary: true };
const blue = { network: 'blue', podInterface: 'pod16477688c0e' };
const links: readonly RecordedLink[] = [
  {
    ...{ name: 'eth0', index: 2, type: 'veth', operState: 'up', mac, mtu: 1450 },
    addrs: ['10.244.2.5/24', 'fd00:10:244:2::5/64'],
  },
  {
    ...{ name: blue.podInterface, index: 3, type: 'veth', operState: 'up', mtu: 1500 },
    mac: '02:00:00:aa:bb:cc',
  },
];
const routes = [
  { dst: '10.244.2.0/24', link: 'eth0', table: 254 },
  { gw: '10.244.2.1', link: 'eth0', table: 254 },
];

const bridge: Attachment = {
  ...primary,
  binding: {
    case: 'bridge',
    value: { dhcp: { address: '10.244.2.5/24', gateway: '10.244.2.1', mac } },
  },
};
const masquerade: Attachment = { ...primary, binding: { case: 'masquerade', value: {} } };
const plugged: Attachment = {
  ...{ ...blue, index: 1 },
  binding: { case: 'bridge', value: { dhcp: { ipamDisabled: true } } },
};

interface Scenario {
  readonly ids: string;
  readonly what: string;
  /** Before which system calls: of the record's file, or entering the pod's namespace and leaving it with all done. */
  readonly calls: readonly (readonly [call: string, nth: number])[];
  readonly earlier: Attachment[];
  readonly request: { readonly attachments?: Attachment[]; readonly detachments?: (typeof blue)[] };
}
const scenarios: readonly Scenario[] = [
  {
    ids: 'NET-032',
    what: 'sets up a bridge',
    calls: [
      ['fsync', 1],
      ['renameat', 1],
      ['setns', 1],
      ['setns', 2],
    ],
    ...{ earlier: [], request: { attachments: [bridge] } },
  },
  {
    ids: 'NET-032 AFT-044',
    what: 'sets up masquerade',
    calls: [['setns', 2]],
    ...{ earlier: [], request: { attachments: [masquerade] } },
  },
  {
    ids: 'NET-032',
    what: 'plugs a network',
    calls: [
      ['renameat', 1],
      ['setns', 2],
    ],
    ...{ earlier: [masquerade], request: { attachments: [plugged] } },
  },
  {
    ids: 'NET-032',
    what: 'unplugs a network',
    calls: [
      ['setns', 2],
      ['unlinkat', 1],
    ],
    ...{ earlier: [masquerade, plugged], request: { detachments: [blue] } },
  },
];

describe.runIf(process.getuid?.() === 0)('the helper is killed', () => {
  const vmiUid = randomUUID();
  let node: HarnessNode;
  let helper: HelperProcess;
  let pod: Pod;

  beforeAll(async () => {
    node = await createNode();
    pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP: '10.244.2.5' });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  const apply = (request: Scenario['request']) =>
    helper.client(NetworkService).apply({ pod: { podUid: pod.uid, vmiUid }, ...request });

  async function begin({ earlier }: Scenario): Promise<void> {
    for (const name of readdirSync(pod.emptyDir('private')))
      await removeTree(join(pod.emptyDir('private'), name));
    await arrange(pod, links, routes);
    if (earlier.length > 0) await apply({ attachments: earlier });
  }

  async function end() {
    const directory = pod.emptyDir('private');
    const files = readdirSync(directory).sort();
    return {
      ...(await networkSnapshot(pod)),
      files: files.map((name) => [name, readFileSync(join(directory, name), 'utf8')]),
    };
  }

  it.each(scenarios)(
    '$ids while it $what, at any of its edges: the next call completes it',
    async (scenario) => {
      await begin(scenario);
      await apply(scenario.request);
      const wanted = await end();
      for (const [call, nth] of scenario.calls) {
        await begin(scenario);
        const killed = await killInSystemCall(helper.pid, call, nth);
        await expect(apply(scenario.request), `${call} ${nth}`).rejects.toThrow();
        await killed.death;
        await helper.stop('SIGKILL');
        await helper.start();
        await apply(scenario.request);
        expect(await end(), `${call} ${nth}`).toEqual(wanted);
        expect((await apply(scenario.request)).changed).toBe(false);
      }
    },
  );
});
