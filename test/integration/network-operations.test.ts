/**
 * The kernel operations that KubeVirt's nmstate driver makes, run one by one with ip(8), against what agent and
 * helper make of the same pod: other operations in another order, and the same in the end.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { NetworkHelper } from '../../agent/network/helper.js';
import type { VmiInterface } from '../../agent/network/vmi-network.js';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { FakeNetworkHelper } from '../unit/network/fakes.js';
import { loadVectors } from '../vectors/load.js';
import { vmiWithNetworks } from '../vectors/objects.js';
import { NetworkMemory, networkHelper, nodeName } from './network-agent.js';
import { networkSnapshot } from './network-snapshot.js';
import { arrange, dummyKind, type RecordedLink } from './network-state.js';
import { HelperProcess } from './privhelper-fixture.js';

interface Tap {
  readonly name: string;
  readonly mtu: number;
  readonly owner: number;
  readonly queues: number;
}
type Operation = readonly [name: string, ...arguments_: readonly (string | number | Tap)[]];
interface Input {
  readonly links: readonly RecordedLink[];
  readonly spec: {
    readonly interfaces?: readonly {
      readonly tap?: { readonly queues?: number };
      readonly Metadata?: object | null;
    }[];
  };
  readonly failOp?: string;
}
interface Case {
  readonly name: string;
  readonly input: Input;
  readonly expected: { readonly error: string; readonly ops: readonly Operation[] };
}

const vectors: readonly Case[] = loadVectors('network', 'nmstate-apply');

const bindings: Readonly<Record<string, Omit<VmiInterface, 'name'>>> = {
  bridge: { bridge: {} },
  masquerade: { masquerade: {} },
  managed: { binding: { name: 'managed' } },
  sidecar: { binding: { name: 'sidecar' } },
  passt: { passtBinding: {} } as Omit<VmiInterface, 'name'>,
  sriov: { sriov: {} },
};
const plugins = { managed: { domainAttachmentType: 'managedTap' }, sidecar: {} };

/** Cases of KubeVirt's generic driver that nobody can ask of the helper, whose requests are closed. */
const inexpressible: readonly [names: RegExp, reason: string][] = [
  [
    /^existing veth /,
    'no request configures a link that is there; a pod link becomes a port and nothing else',
  ],
  [
    / requested type /,
    'no request names the kind of a link; foreign kinds: network-apply, "a name collision"',
  ],
  [/copy-mac-from|^bad mac$/, 'no request names a MAC: bridge and port get one that the helper chose'],
  [/^bad ip$|^ipv4 enabled without address$/, 'no request names an address of a link'],
  [/ is ignored$/, 'no request says what is not to be done'],
  [/^full linux stack order$/, 'no request names kernel parameters, and no binding needs all of them'],
  [/^absent resolved by index/, 'a fault of the driver: links are found by one key here'],
];

/** Written for the driver alone: each link that KubeVirt composes for a binding says which network it is of. */
function isDriversOwn({ input }: Case): boolean {
  return (input.spec.interfaces ?? []).every(({ Metadata }) => Metadata == null);
}

const bindingOf = (name: string): string | undefined => /^(\w+) ip=/.exec(name)?.[1];
const isFailure = ({ expected, name }: Case): boolean =>
  expected.error !== '' && bindingOf(name) !== undefined;

/** The operations that were carried out before and after the one that failed. */
function done({ input, expected }: Case): readonly Operation[] {
  return expected.error === '' ? expected.ops : expected.ops.filter(([name]) => name !== input.failOp);
}

/** KubeVirt has taken the pod link's name, MAC or addresses, and nobody has written them down. */
function isLost(one: Case): boolean {
  const ipv6 = one.input.links.some(
    ({ name, addrs }) => name === 'eth0' && addrs?.some((it) => it.includes(':')),
  );
  return done(one).some(
    ([name]) =>
      name === 'addrDel' ||
      // The MAC is set after that.
      name === 'linkSetName' ||
      // A link that goes down loses its IPv6 addresses.
      (name === 'linkSetDown' && ipv6),
  );
}

function commandOf([name, first, second]: Operation, dummy: string): string {
  switch (name) {
    case 'linkAdd':
      // The recorder gave the first link that it made this address.
      return second === 'bridge'
        ? `ip link add ${first} address 4e:00:00:00:00:65 type bridge`
        : `ip link add ${first} type ${dummy}`;
    case 'linkDel':
      return `ip link del ${first}`;
    case 'linkSetUp':
      return `ip link set ${first} up`;
    case 'linkSetDown':
      return `ip link set ${first} down`;
    case 'linkSetName':
      return `ip link set ${first} name ${second}`;
    case 'linkSetHardwareAddr':
      return `ip link set ${first} address ${second}`;
    case 'linkSetMTU':
      return `ip link set ${first} mtu ${second}`;
    case 'linkSetMaster':
      return `ip link set ${first} master ${second}`;
    case 'linkSetLearningOff':
      return `bridge link set dev ${first} learning off`;
    case 'addrAdd':
      return `ip addr add ${second} ${/:|\/3[12]$/.test(String(second)) ? '' : 'brd +'} dev ${first}`;
    case 'addrDel':
      return `{ ip addr del ${second} dev ${first} 2>/dev/null || true; }`;
    case 'sysctl':
      return `echo ${second} >/proc/sys/${first}`;
    case 'createTap': {
      const { name: tap, mtu, owner, queues } = first as Tap;
      const flags = queues > 1 ? 'multi_queue' : 'one_queue pi';
      return `ip tuntap add dev ${tap} mode tap ${flags} user ${owner} group ${owner} && ip link set ${tap} mtu ${mtu}`;
    }
    default:
      throw new Error(`operation ${name}`);
  }
}

describe('the cases of the driver', () => {
  it('are all run below, or cannot be asked for', () => {
    const left = vectors.filter(
      ({ name }) => bindingOf(name) === undefined && !/^absent (existing|missing)$/.test(name),
    );
    const reasons = (name: string) => inexpressible.filter(([names]) => names.test(name));
    expect(left.filter(({ name }) => reasons(name).length > 1).map(({ name }) => name)).toEqual([]);
    expect(left.filter((one) => !isDriversOwn(one)).map(({ name }) => name)).toEqual([]);
  });

  it('that stop with the pod link’s name, MAC or addresses gone are undone here instead', () => {
    // native/test/net_fault_test.cc has each operation of these bindings fail.
    const lost = vectors.filter((one) => isFailure(one) && isLost(one));
    expect(lost.every(({ name }) => /^(bridge|managed) /.test(name))).toBe(true);
  });
});

describe.runIf(process.getuid?.() === 0)('NET-008 a pod network', () => {
  const vmiUid = randomUUID();
  let node: HarnessNode;
  let helper: HelperProcess;
  let pod: Pod;
  let dummy: string;
  const memories: NetworkMemory[] = [];
  /** End state of KubeVirt's operations, where they are recorded, by what was wanted. */
  const ends = new Map<string, unknown>();

  beforeAll(async () => {
    dummy = await dummyKind();
    node = await createNode();
    pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP: '10.244.2.5' });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    for (const memory of memories) memory.remove();
    expect(await node?.leftovers()).toEqual([]);
  });

  /** With the default route that a pod with an IPv4 address has. */
  async function begin({ input }: Case): Promise<void> {
    const addressed = input.links.some(
      ({ name, addrs }) => name === 'eth0' && addrs?.[0]?.includes('10.244.2.5'),
    );
    const routes = [
      { dst: '10.244.2.0/24', link: 'eth0', table: 254 },
      { gw: '10.244.2.1', link: 'eth0', table: 254 },
    ];
    await arrange(pod, input.links, addressed ? routes : []);
  }

  async function operate(one: Case): Promise<void> {
    const script = done(one).map((operation) => commandOf(operation, dummy));
    await runInNetns(pod.pausePid, 'sh', ['-c', ['set -e', ...script].join('\n')]);
  }

  /** The driver knows nothing of NAT rules. */
  async function linksNow(): Promise<unknown> {
    const { rules: _, ...links } = await networkSnapshot(pod);
    return links;
  }

  async function endOf(one: Case): Promise<unknown> {
    const key = JSON.stringify([one.input.links, one.input.spec]);
    const known = ends.get(key);
    if (known !== undefined) return known;
    const whole = vectors.find(
      ({ input, expected }) => expected.error === '' && JSON.stringify([input.links, input.spec]) === key,
    );
    await begin(whole ?? one);
    // Without such a case what the product makes of an untouched pod has to do.
    await (whole === undefined ? setUp(one, networkHelper(helper)) : operate(whole));
    const end = await linksNow();
    ends.set(key, end);
    return end;
  }

  function setUp({ name, input }: Case, by: NetworkHelper): Promise<void> {
    const queues = input.spec.interfaces?.map(({ tap }) => tap?.queues ?? 0).find((count) => count > 0) ?? 0;
    const vmi = vmiWithNetworks(
      [{ name: 'default', pod: {} }],
      [{ name: 'default', ...bindings[bindingOf(name) ?? ''] }],
      [],
      { networkInterfaceMultiqueue: queues > 0 },
      { cores: queues },
      { [pod.uid]: nodeName },
    );
    vmi.metadata.uid = vmiUid;
    const memory = new NetworkMemory();
    memories.push(memory);
    return memory.agent(pod.uid, by, plugins).setup(vmi, ['default']);
  }

  const whole = vectors.filter(
    (one) => /^(bridge|masquerade|managed|passt) /.test(one.name) && one.expected.error === '',
  );
  it.each(whole)('$name: is as after the operations', async (one) => {
    const end = await endOf(one);
    await begin(one);
    await setUp(one, networkHelper(helper));
    expect(await linksNow()).toEqual(end);
  });

  it.each(vectors.filter((one) => isFailure(one) && !isLost(one)))(
    '$name: what the operations left is completed',
    async (one) => {
      const end = await endOf(one);
      await begin(one);
      await operate(one);
      await setUp(one, networkHelper(helper));
      expect(await linksNow()).toEqual(end);
    },
  );

  it.each(vectors.filter(({ name }) => /^(sidecar|sriov) /.test(name)))(
    '$name: is left alone',
    async (one) => {
      expect(one.expected.ops).toEqual([]);
      const fake = new FakeNetworkHelper();
      await setUp(one, fake);
      expect(fake.applied).toEqual([]);
    },
  );

  it.each(vectors.filter(({ name }) => /^absent (existing|missing)$/.test(name)))(
    '$name: is as after the operations',
    async (one) => {
      await begin(one);
      await operate(one);
      const end = await linksNow();
      await begin(one);
      const detachments = [{ network: 'default', podInterface: 'eth0', primary: true }];
      await helper.client(NetworkService).apply({ pod: { podUid: pod.uid, vmiUid }, detachments });
      expect(await linksNow()).toEqual(end);
    },
  );
});
