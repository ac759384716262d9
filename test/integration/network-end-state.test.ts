/** The pod's network after the agent's and the helper's work, beside what KubeVirt v1.9.0 left in such a pod. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import type { VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import { startLauncher } from '../harness/launcher/start.js';
import { plugLink, runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import {
  captured,
  loadCaptures,
  type NetworkText,
  type NetworkView,
  networkView,
  sections,
  sysctls,
} from '../vectors/network-captures.js';
import { vmiWithNetworks } from '../vectors/objects.js';
import { NetworkMemory, networkHelper, nodeName } from './network-agent.js';
import { kernelHasDummy } from './network-fixture.js';
import { HelperProcess } from './privhelper-fixture.js';

const vmiUid = '6a1a24a1-4061-4607-8bf4-a3963d0c5895';
const plugins = { managed: { domainAttachmentType: 'managedTap' } };
const defaultNetwork: VmiNetwork = { name: 'default', pod: {} };
const blueNetwork: VmiNetwork = { name: 'blue', multus: { networkName: 'blue' } };
/** Time for duplicate address detection, and for a carrier that was there while a tap was made. */
const settleMs = 20_000;

interface Row {
  /** Of the capture. */
  readonly name: string;
  readonly file: 'end-state-links' | 'end-state-masquerade';
  readonly dualStack: boolean;
  readonly iface: Omit<VmiInterface, 'name'>;
  readonly queues?: number;
  readonly transport?: 'Unix';
  readonly annotations?: Record<string, string>;
}

const rows: readonly Row[] = [
  { name: 'bridge', file: 'end-state-links', dualStack: false, iface: { bridge: {} } },
  { name: 'bridge-mq', file: 'end-state-links', dualStack: true, iface: { bridge: {} }, queues: 4 },
  { name: 'managedtap', file: 'end-state-links', dualStack: false, iface: { binding: { name: 'managed' } } },
  { name: 'passt', file: 'end-state-links', dualStack: true, iface: { passtBinding: {} } },
  {
    name: 'masq',
    file: 'end-state-masquerade',
    dualStack: true,
    iface: { masquerade: {} },
    transport: 'Unix',
  },
  {
    name: 'masq-ports',
    file: 'end-state-masquerade',
    dualStack: true,
    iface: { masquerade: {}, ports: [{ port: 80 }, { port: 53, protocol: 'UDP' }] },
    queues: 4,
  },
  {
    name: 'masq-istio',
    file: 'end-state-masquerade',
    dualStack: true,
    iface: { masquerade: {} },
    transport: 'Unix',
    annotations: { 'sidecar.istio.io/inject': 'true' },
  },
];

/**
 * For a kernel without links of kind `dummy`, where a bridge stands in: it differs in kind and flags, and as it
 * could be asked for its neighbours its IPv6 addresses wait to be tried.
 */
function withoutDummies(view: NetworkView, names: readonly string[]): NetworkView {
  const bare = (lines: readonly string[] = []) =>
    lines
      .filter((line) => !/^(dummy|bridge )/.test(line))
      .map((line) => line.replace(/^BROADCAST,(NOARP|MULTICAST) | minmtu .*| tentative$/g, ''));
  const each = (of: NetworkView['links']) =>
    Object.fromEntries(
      Object.entries(of).map(([name, lines]) => [name, names.includes(name) ? bare(lines) : lines]),
    );
  const isOfOne = (line: string) => names.some((name) => line.includes(` dev ${name} `));
  return {
    ...view,
    links: each(view.links),
    addresses: each(view.addresses),
    routes: view.routes.filter((line) => !(isOfOne(line) && /^(local|anycast) \S+:/.test(line))),
  };
}

describe.runIf(process.getuid?.() === 0)('the end state of a pod network', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let hasDummy: boolean;
  let memory: NetworkMemory;

  beforeAll(async () => {
    hasDummy = await kernelHasDummy();
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  beforeEach(() => {
    memory = new NetworkMemory();
  });
  afterEach(async () => {
    memory.remove();
    await node.destroyPods();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  /** A launcher pod as the captured ones. */
  async function createPod(dualStack: boolean): Promise<Pod> {
    const pod = await node.createPod({ name: 'vm', vmiUid, podIP: '10.244.2.5', mac: '0a:58:0a:f4:02:05' });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    const addIpv6 =
      'ip addr add fd00:10:244:2::5/64 dev eth0 nodad && ip -6 route add default via fd00:10:244:2::1';
    await inside(
      pod,
      `${dualStack ? addIpv6 : 'true'} && echo 1024 >/proc/sys/net/ipv4/ip_unprivileged_port_start`,
    );
    return pod;
  }

  const inside = (pod: Pod, script: string) => runInNetns(pod.pausePid, 'sh', ['-c', script]);

  /** Lets the agent set up networks of the pod through the helper. */
  const setUp = (pod: Pod, vmi: Vmi, ...names: string[]): Promise<void> =>
    memory.agent(pod.uid, networkHelper(helper), plugins).setup(vmi, names);

  function vmiOf(
    pod: Pod,
    row: Pick<Row, 'iface' | 'queues' | 'transport' | 'annotations'>,
    ...more: VmiInterface[]
  ) {
    const vmi = vmiWithNetworks(
      [defaultNetwork, ...more.map(() => blueNetwork)],
      [{ name: 'default', ...row.iface }, ...more],
      [],
      { networkInterfaceMultiqueue: row.queues !== undefined },
      { cores: row.queues ?? 1 },
      { [pod.uid]: nodeName },
    );
    vmi.metadata.uid = vmiUid;
    vmi.metadata.annotations = row.annotations ?? {};
    if (row.transport !== undefined) vmi.status.migrationTransport = row.transport;
    return vmi;
  }

  async function textOf(pod: Pod): Promise<NetworkText> {
    const outputs = Object.entries(sections).map(async ([key, [, command]]) => [
      key,
      await inside(pod, command),
    ]);
    const values = sysctls.map((name) => `echo "${name} = $(cat /proc/sys/net/${name} 2>/dev/null)"`);
    return {
      ...(Object.fromEntries(await Promise.all(outputs)) as Record<keyof typeof sections, string>),
      sysctls: await inside(pod, values.join(';')),
      ruleset: await inside(pod, 'nft -n -s list ruleset'),
    };
  }

  /** Waits until the pod is as captured; `rules`: the capture that has its NAT rules, none for no rules. */
  async function expectAsCaptured(pod: Pod, file: Row['file'], name: string, rules?: string): Promise<void> {
    const text = captured(loadCaptures(file), name);
    const ruleset = rules === undefined ? '' : captured(loadCaptures('end-state-masquerade'), rules).ruleset;
    const wanted = networkView({ ...text, ruleset });
    const dummies = Object.keys(wanted.links).filter((link) => wanted.links[link]?.at(-1) === 'dummy');
    const comparable = (view: NetworkView) => (hasDummy ? view : withoutDummies(view, dummies));
    await expect
      .poll(async () => comparable(networkView(await textOf(pod))), { timeout: settleMs, interval: 50 })
      .toEqual(comparable(wanted));
  }

  it.each(rows)('NET-015 is as captured from KubeVirt: $name', async (row) => {
    const pod = await createPod(row.dualStack);
    await setUp(pod, vmiOf(pod, row), 'default');
    const rules = row.file === 'end-state-masquerade' ? `${row.name}-after` : undefined;
    await expectAsCaptured(pod, row.file, `${row.name}-after`, rules);
  });

  it('NET-015 NET-020 is as captured from KubeVirt: masquerade, a secondary bridge, and without it again', async () => {
    const pod = await createPod(true);
    const blue = { name: 'pod16477688c0e', mac: '02:00:00:aa:bb:cc', mtu: 1500 };
    await plugLink(node.netnsPid, pod.pausePid, 'blue0', blue);
    await expectAsCaptured(pod, 'end-state-links', 'secondary-before');
    const row = { iface: { masquerade: {} }, transport: 'Unix' } as const;
    await setUp(pod, vmiOf(pod, row, { name: 'blue', bridge: {} }), 'default', 'blue');
    await expectAsCaptured(pod, 'end-state-links', 'secondary-after', 'masq-after');
    await setUp(pod, vmiOf(pod, row, { name: 'blue', bridge: {}, state: 'absent' }), 'default', 'blue');
    await expectAsCaptured(pod, 'end-state-links', 'unplug-after', 'masq-after');
  });
});
