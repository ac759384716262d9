/** Agent or helper dies before each of its steps in the pod's network; the next try brings it to the same end. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { NetworkHelper } from '../../../agent/network/helper.js';
import { HelperPodNetworks } from '../../../agent/network/pod-networks.js';
import { type NetworkRecord, NetworkStateStore } from '../../../agent/network/state.js';
import type { VmiInterface, VmiNetwork } from '../../../agent/network/vmi-network.js';
import type { ObserveResponse } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { vmiWithNetworks } from '../../vectors/objects.js';
import { silentLog } from '../status/fakes.js';
import { type FakeLink, type FakeRoute, helperUnavailable, observation, onePod, podUid } from './fakes.js';
import { critical } from './world.js';

const uid = 'uid-1';
const mac = '0a:58:0a:f4:02:05';
const blueLink = 'pod16477688c0e';
const defaultRoute = { destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' };

/** Lets so many steps happen; at the next one the agent is dead, and nothing that it waits for comes. */
class Life {
  steps = 0;
  #die: () => void = () => undefined;
  readonly death = new Promise<void>((resolve) => {
    this.#die = resolve;
  });

  constructor(private readonly last: number) {}

  async step<T>(body: () => Promise<T>): Promise<T> {
    if (this.steps === this.last) {
      this.#die();
      return new Promise(() => undefined);
    }
    this.steps++;
    return body();
  }
}

/** A pod whose links change as the helper changes them. */
class PodModel {
  readonly links: Map<string, FakeLink>;
  routes: readonly FakeRoute[] = [defaultRoute];
  /** Pod interface -> what the guest is told of it. */
  readonly records = new Map<string, unknown>();

  constructor(links: readonly FakeLink[]) {
    this.links = new Map(links.map((link) => [link.name, link]));
  }

  observe(): ObserveResponse {
    return observation([...this.links.values()], this.routes);
  }

  /** Changes at most as much as `limit` steps, after which the helper is dead. */
  apply(request: ApplyRequest, limit = Number.POSITIVE_INFINITY): boolean {
    const steps = this.#steps(request);
    for (const step of steps.slice(0, limit)) step();
    if (limit < steps.length) throw helperUnavailable();
    return true;
  }

  #steps({ attachments, detachments }: ApplyRequest): (() => void)[] {
    return [
      ...attachments.flatMap((attachment) => this.#attach(attachment)),
      ...detachments.map(({ podInterface }) => () => {
        const stem = podInterface.replace(/^pod/, '');
        for (const name of [`k6t-${stem}`, `tap${stem}`, podInterface]) this.links.delete(name);
        this.records.delete(podInterface);
      }),
    ];
  }

  /** In the helper's order: the pod link loses its routes, its IPv6 addresses and then its name. */
  #attach({ podInterface, primary, binding }: ApplyRequest['attachments'][number]): (() => void)[] {
    const stem = podInterface.replace(/^pod/, '');
    const [standIn, renamed] = [`k6d-${stem}`, `${stem}-nic`];
    const link = this.links.get(podInterface);
    const plumb = () => {
      this.#put({ name: `k6t-${stem}`, index: 20, kind: 'bridge' });
      this.#put({ name: primary ? 'tap0' : `tap${stem}`, index: 21, kind: 'tun' });
    };
    if (binding.case === 'masquerade') return [plumb];
    const record = () => {
      if (binding.case === 'bridge') this.records.set(podInterface, binding.value.dhcp);
    };
    const moveLink = [
      () => {
        if (!this.links.has(standIn))
          this.#put({ ...this.#link(podInterface), name: standIn, index: 22, kind: 'dummy' });
        plumb();
      },
      () => {
        const down = this.#link(podInterface);
        this.#put({ ...down, addresses: down.addresses?.filter((text) => !text.includes(':')) ?? [] });
        this.routes = this.routes.filter((route) => route.link !== podInterface);
      },
      () => {
        this.#put({ ...this.#link(podInterface), name: renamed, addresses: [] });
        this.links.delete(podInterface);
      },
    ];
    const finish = () => {
      this.#put({ ...this.#link(standIn), name: podInterface });
      this.links.delete(standIn);
    };
    if (link === undefined) return [record, finish];
    return this.links.has(renamed) ? [record] : [record, ...moveLink, finish];
  }

  #link(name: string): FakeLink {
    const link = this.links.get(name);
    if (link === undefined) throw new Error(`no link ${name}`);
    return link;
  }

  #put(link: FakeLink) {
    this.links.set(link.name, link);
  }
}

type ApplyRequest = Parameters<NetworkHelper['applyNetwork']>[0];

class MortalStore extends NetworkStateStore {
  constructor(
    directory: string,
    private readonly life: Life,
  ) {
    super(directory, silentLog());
  }

  override write(vmiUid: string, network: string, record: NetworkRecord): Promise<void> {
    return this.life.step(() => super.write(vmiUid, network, record));
  }

  override remove(vmiUid: string, network: string): Promise<void> {
    return this.life.step(() => super.remove(vmiUid, network));
  }
}

const eth0 = { name: 'eth0', index: 2, kind: 'veth', mac, mtu: 1450 };
const ipv4 = ['10.244.2.5/24', 'fe80::858:aff:fef4:205/64'];
const dual = ['10.244.2.5/24', 'fd00:10:244:2::5/64'];
const blue = { name: 'blue', multus: { networkName: 'nad' } };
const primary = { name: 'default', pod: {} };
const masquerade = { name: 'default', masquerade: {} };

interface Scenario {
  readonly what: string;
  readonly links: readonly FakeLink[];
  readonly networks: readonly VmiNetwork[];
  readonly interfaces: readonly VmiInterface[];
  /** Undisturbed, before. */
  readonly earlier?: { readonly networks: readonly string[]; readonly interfaces: readonly VmiInterface[] };
  readonly passed: readonly string[];
}
const scenarios: readonly Scenario[] = [
  {
    what: 'a bridge is set up',
    links: [{ ...eth0, addresses: ipv4 }],
    ...{ networks: [primary], interfaces: [{ name: 'default', bridge: {} }], passed: ['default'] },
  },
  ...[
    { what: 'IPv6 only', addresses: ['fd00:10:244:2::5/64'] },
    { what: 'without an address', addresses: [] },
  ].map(({ what, addresses }) => ({
    what: `a bridge is set up, ${what}`,
    links: [{ ...eth0, addresses }],
    ...{ networks: [primary], interfaces: [{ name: 'default', bridge: {} }], passed: ['default'] },
  })),
  {
    what: 'a managed tap is set up, dual stack',
    links: [{ ...eth0, addresses: dual }],
    networks: [primary],
    interfaces: [{ name: 'default', binding: { name: 'mesh' } }],
    passed: ['default'],
  },
  {
    what: 'a bridge is set up beside a secondary one',
    links: [
      { ...eth0, addresses: ipv4 },
      { name: blueLink, index: 3, kind: 'veth', mac: '02:00:00:aa:bb:cc', mtu: 1500 },
    ],
    networks: [primary, blue],
    interfaces: [
      { name: 'default', bridge: {} },
      { name: 'blue', bridge: {} },
    ],
    passed: ['default', 'blue'],
  },
  {
    what: 'masquerade is set up, dual stack',
    links: [{ ...eth0, addresses: dual }],
    ...{ networks: [primary], interfaces: [masquerade], passed: ['default'] },
  },
  {
    what: 'a secondary network is plugged',
    links: [
      { ...eth0, addresses: dual },
      { name: blueLink, index: 3, kind: 'veth', mac: '02:00:00:aa:bb:cc', mtu: 1500 },
    ],
    networks: [primary, blue],
    interfaces: [masquerade, { name: 'blue', bridge: {} }],
    earlier: { networks: ['default'], interfaces: [masquerade] },
    passed: ['blue'],
  },
  {
    what: 'a secondary network is unplugged',
    links: [
      { ...eth0, addresses: dual },
      { name: blueLink, index: 3, kind: 'veth', mac: '02:00:00:aa:bb:cc', mtu: 1500 },
    ],
    networks: [primary, blue],
    interfaces: [masquerade, { name: 'blue', bridge: {}, state: 'absent' }],
    earlier: { networks: ['default', 'blue'], interfaces: [masquerade, { name: 'blue', bridge: {} }] },
    passed: ['blue'],
  },
];

describe.each(scenarios)('NET-032 agent or helper dies while $what', (scenario) => {
  let directories: string[];
  beforeEach(() => {
    directories = [];
  });
  afterEach(() => {
    for (const directory of directories) rmSync(directory, { recursive: true, force: true });
  });

  function setUp(
    directory: string,
    pod: PodModel,
    life: Life,
    interfaces: readonly VmiInterface[],
    passed: readonly string[],
    applySteps?: number,
  ): Promise<void> {
    const vmi = vmiWithNetworks(scenario.networks, interfaces, [], {}, {}, { [podUid]: 'node01' });
    return new HelperPodNetworks({
      helper: {
        observeNetwork: () => life.step(async () => pod.observe()),
        applyNetwork: (request) => life.step(async () => pod.apply(request, applySteps)),
      },
      pods: onePod,
      state: new MortalStore(directory, life),
      node: 'node01',
      agentPodIp: '10.0.0.1',
      config: () => ({ plugins: { mesh: { domainAttachmentType: 'managedTap' } }, portRanges: true }),
      log: silentLog(),
    }).setup(vmi, passed);
  }

  async function begin() {
    const directory = mkdtempSync(join(tmpdir(), 'kill-matrix-'));
    directories.push(directory);
    const pod = new PodModel(scenario.links);
    const { earlier } = scenario;
    const forever = new Life(Number.POSITIVE_INFINITY);
    if (earlier !== undefined) await setUp(directory, pod, forever, earlier.interfaces, earlier.networks);
    return { directory, pod };
  }

  /** What there is afterwards: links, what guests are told, and what the agent remembers. */
  function endOf({ directory, pod }: Awaited<ReturnType<typeof begin>>) {
    const files = readdirSync(join(directory, uid)).sort();
    return {
      links: [...pod.links.values()].sort((one, other) => one.name.localeCompare(other.name)),
      routes: pod.routes,
      records: new Map([...pod.records].sort()),
      memory: files.map((name) => [name, JSON.parse(readFileSync(join(directory, uid, name), 'utf8'))]),
    };
  }

  it('and all is as if it had not', async () => {
    const undisturbed = await begin();
    const whole = new Life(Number.POSITIVE_INFINITY);
    await setUp(undisturbed.directory, undisturbed.pod, whole, scenario.interfaces, scenario.passed);
    const wanted = endOf(undisturbed);
    // Look, apply, note or forget at least.
    expect(whole.steps).toBeGreaterThanOrEqual(3);
    for (let last = 0; last < whole.steps; last++) {
      const world = await begin();
      const life = new Life(last);
      const never = setUp(world.directory, world.pod, life, scenario.interfaces, scenario.passed);
      const outcome = await Promise.race([life.death.then(() => 'dead'), never.then(() => 'done')]);
      expect(outcome, `before step ${last + 1}`).toBe('dead');
      const next = new Life(Number.POSITIVE_INFINITY);
      await setUp(world.directory, world.pod, next, scenario.interfaces, scenario.passed);
      expect(endOf(world), `before step ${last + 1}`).toEqual(wanted);
    }
  });

  it('and all is as if the helper had not', async () => {
    const undisturbed = await begin();
    const forever = new Life(Number.POSITIVE_INFINITY);
    await setUp(undisturbed.directory, undisturbed.pod, forever, scenario.interfaces, scenario.passed);
    const wanted = endOf(undisturbed);
    let outcome: unknown;
    for (let steps = 0; outcome !== 'done'; steps++) {
      const world = await begin();
      const setUpHere = (applySteps?: number) =>
        setUp(world.directory, world.pod, forever, scenario.interfaces, scenario.passed, applySteps);
      outcome = await setUpHere(steps).then(
        () => 'done',
        (error: unknown) => error,
      );
      if (outcome !== 'done') expect(outcome).not.toEqual(critical);
      await setUpHere();
      expect(endOf(world), `after ${steps} steps of the helper`).toEqual(wanted);
      expect(steps).toBeLessThan(20);
    }
  });
});
