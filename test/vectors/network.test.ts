import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { requiresTun, requiresVhostNet } from '../../agent/devices/requirements.js';
import type { BindingPlugins } from '../../agent/network/bindings.js';
import { domainAttachments, interfaceMigrations } from '../../agent/network/domain-attachment.js';
import {
  networksForLiveUpdate,
  networksForMigrationTarget,
  networksForStart,
} from '../../agent/network/filters.js';
import { addInfoSource, containsInfoSource, removeInfoSource } from '../../agent/network/infosource.js';
import { formatCidr, maskedNetwork, parseCidr } from '../../agent/network/ip.js';
import { istioInjected } from '../../agent/network/istio.js';
import { guestAddresses } from '../../agent/network/masquerade.js';
import { bridgeName, isOrdinalName, podInterfaces, renamedLink, tapName } from '../../agent/network/names.js';
import { HelperPodNetworks } from '../../agent/network/pod-networks.js';
import { queueCapacity } from '../../agent/network/queues.js';
import { NetworkStateStore } from '../../agent/network/state.js';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import { CriticalNetworkError } from '../../agent/reconcile/ports.js';
import { networkObstacle } from '../../agent/reconcile/status/network-migratable.js';
import type { DhcpRecord } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { FakeNetworkHelper, helperFailure, observation, onePod, podUid } from '../unit/network/fakes.js';
import { silentLog } from '../unit/status/fakes.js';
import { loadVectors } from './load.js';
import { type JsonObject, vmiOf } from './objects.js';

function vmiWith(
  networks: readonly VmiNetwork[] | null,
  interfaces: readonly VmiInterface[] | null,
  statuses: readonly InterfaceStatus[] | null = [],
  devices: object = {},
  cpu: object = {},
) {
  return vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { networks, domain: { cpu, devices: { interfaces, ...devices } } },
    status: { interfaces: statuses, activePods: { [podUid]: 'node01' } },
  } as never);
}

describe('naming', () => {
  interface Input {
    networks: VmiNetwork[];
    interfaceStatuses: InterfaceStatus[] | null;
  }
  interface Names {
    hashedPodInterfaceName: string;
    ordinalPodInterfaceName: string;
    hashedTap: string;
    hashedBridge: string;
    hashedNic: string;
    ordinalTap: string;
    ordinalBridge: string;
    ordinalNic: string;
  }
  interface Expected {
    hashedScheme: Record<string, string>;
    ordinalScheme: Record<string, string>;
    hashedSchemeAfterPrimaryOverride: Record<string, string>;
    perNetwork: Record<string, Names>;
  }
  it.each(loadVectors<Input, Expected>('network', 'naming'))(
    'NET-001 NET-023 $name',
    ({ input, expected }) => {
      const hashed = podInterfaces(input.networks, 'hashed');
      const ordinal = podInterfaces(input.networks, 'ordinal');
      const overridden = podInterfaces(input.networks, 'hashed', input.interfaceStatuses ?? []);
      expect(Object.fromEntries(hashed)).toEqual(expected.hashedScheme);
      expect(Object.fromEntries(ordinal)).toEqual(expected.ordinalScheme);
      expect(Object.fromEntries(overridden)).toEqual(expected.hashedSchemeAfterPrimaryOverride);
      for (const network of input.networks) {
        const wanted = expected.perNetwork[network.name];
        const pod = overridden.get(network.name);
        // Networks that get no name are never plumbed; KubeVirt's single-name functions still answer eth0.
        if (wanted === undefined || pod === undefined) continue;
        expect(pod).toBe(wanted.hashedPodInterfaceName);
        expect([tapName(network, pod), bridgeName(pod), renamedLink(pod)]).toEqual([
          wanted.hashedTap,
          wanted.hashedBridge,
          wanted.hashedNic,
        ]);
        const old = ordinal.get(network.name) ?? '';
        expect([old, tapName(network, old), bridgeName(old), renamedLink(old)]).toEqual([
          wanted.ordinalPodInterfaceName,
          wanted.ordinalTap,
          wanted.ordinalBridge,
          wanted.ordinalNic,
        ]);
      }
    },
  );
});

describe('names of links', () => {
  it.each(loadVectors<string, boolean>('network', 'ordinal-name-match'))(
    'NET-001 NET-022 ordinal $name',
    ({ input, expected }) => expect(isOrdinalName(input)).toBe(expected),
  );

  it.each(loadVectors<string, { bridge: string; nic: string }>('network', 'link-names'))(
    'NET-001 $name',
    ({ input, expected }) => {
      expect({ bridge: bridgeName(input), nic: renamedLink(input) }).toEqual(expected);
    },
  );
});

describe('filters', () => {
  interface Input {
    networks: VmiNetwork[] | null;
    interfaces: VmiInterface[] | null;
    statusInterfaces: InterfaceStatus[] | null;
  }
  interface Expected {
    vmStartup: string[];
    liveUpdate: string[];
    migrationTarget: string[];
  }
  it.each(loadVectors<Input, Expected>('network', 'filters'))('NET-025 $name', ({ input, expected }) => {
    const networks = input.networks ?? [];
    const interfaces = input.interfaces ?? [];
    expect({
      vmStartup: networksForStart(networks, interfaces),
      liveUpdate: networksForLiveUpdate(networks, interfaces, input.statusInterfaces ?? []),
      migrationTarget: networksForMigrationTarget(networks),
    }).toEqual(expected);
  });
});

describe('small rules', () => {
  it.each(
    loadVectors<{ current: string; name: string }, { add: string; contains: boolean; remove: string }>(
      'network',
      'infosource',
    ),
  )('NET-025 infosource $name', ({ input: { current, name }, expected }) => {
    expect({
      add: addInfoSource(current, name),
      contains: containsInfoSource(current, name),
      remove: removeInfoSource(current, name),
    }).toEqual(expected);
  });

  it.each(
    loadVectors<{ cpu: object | null; networkInterfaceMultiqueue: boolean | null }, number>(
      'network',
      'queues',
    ),
  )('NET-025 queues $name', ({ input, expected }) => {
    const { cpu, networkInterfaceMultiqueue } = input;
    const vmi = vmiWith([], [], [], { networkInterfaceMultiqueue }, cpu ?? {});
    expect(queueCapacity(vmi)).toBe(expected);
  });

  it.each(loadVectors<{ annotations: Record<string, string> | null }, boolean>('network', 'istio-injection'))(
    'NET-025 istio $name',
    ({ input, expected }) => {
      expect(istioInjected(vmiOf({ metadata: { annotations: input.annotations } }))).toBe(expected);
    },
  );

  it.each(
    loadVectors<VmiNetwork, { error: string; gateway: string; vm: string }>(
      'network',
      'masquerade-guest-address',
    ),
  )('NET-025 guest address $name', ({ name, input, expected }) => {
    const family = name.startsWith('v6') ? 6 : 4;
    if (expected.error !== '') {
      // The launcher's own wording differs from the agent's, which the spec fixes.
      expect(() => guestAddresses(input, family)).toThrow(/failed to parse VM CIDR|subnet is too small/);
      return;
    }
    const { gateway, guest } = guestAddresses(input, family);
    expect([formatCidr(gateway), formatCidr(guest)]).toEqual([expected.gateway, expected.vm]);
  });

  interface DeviceInput {
    allowEmulation: boolean;
    autoattachPodInterface: boolean | null;
    interfaces: VmiInterface[] | null;
  }
  it.each(
    loadVectors<DeviceInput, { requiresTun: boolean; requiresVhostNet: boolean }>('network', 'devices'),
  )('NET-025 devices $name', ({ input, expected }) => {
    const { autoattachPodInterface } = input;
    const vmi = vmiWith(
      [],
      input.interfaces,
      [],
      autoattachPodInterface === null ? {} : { autoattachPodInterface },
    );
    expect({
      requiresTun: requiresTun(vmi),
      requiresVhostNet: requiresVhostNet(vmi, input.allowEmulation),
    }).toEqual(expected);
  });

  interface AttachmentInput {
    bindingPlugins: BindingPlugins;
    interfaces: VmiInterface[];
  }
  interface AttachmentExpected {
    interfaceDomainAttachment: Record<string, string>;
    interfaceMigration: Record<string, { Method: string }>;
  }
  it.each(loadVectors<AttachmentInput, AttachmentExpected>('network', 'domain-attachment'))(
    'NET-025 domain attachment $name',
    ({ input, expected }) => {
      const migrations = interfaceMigrations(input.interfaces, input.bindingPlugins);
      expect(domainAttachments(input.interfaces, input.bindingPlugins)).toEqual(
        expected.interfaceDomainAttachment,
      );
      expect(
        Object.fromEntries(
          Object.entries(migrations).map(([name, { method }]) => [name, { Method: method }]),
        ),
      ).toEqual(expected.interfaceMigration);
    },
  );

  interface MigratableInput {
    annotations: Record<string, string> | null;
    bindingPlugins: BindingPlugins;
    networks: VmiNetwork[] | null;
    interfaces: VmiInterface[] | null;
  }
  it.each(loadVectors<MigratableInput, { migratable: boolean; message: string }>('network', 'migratable'))(
    'NET-025 migratable $name',
    ({ input, expected }) => {
      const vmi = vmiWith(input.networks, input.interfaces);
      vmi.metadata.annotations = input.annotations ?? {};
      const obstacle = networkObstacle(vmi, input.bindingPlugins);
      expect({ migratable: obstacle === undefined, message: obstacle ?? '' }).toEqual(expected);
    },
  );
});

// Set-up ---------------------------------------------------------------------------------------------

interface Address {
  IP: string;
  'prefix-length'?: number;
}
interface NmstateInterface {
  name: string;
  index?: number;
  type?: string;
  state?: string;
  'mac-address'?: string;
  mtu?: number;
  tap?: { queues?: number };
  IPv4?: { address?: Address[] };
  IPv6?: { address?: Address[] };
  Metadata?: { NetworkName: string } | null;
}
interface NmstateStatus {
  interfaces: NmstateInterface[];
  routes: {
    running?: {
      destination: string;
      'next-hop-interface'?: string;
      'next-hop-address'?: string;
      'table-id'?: number;
    }[];
  };
}
interface SetupStep {
  networks: VmiNetwork[];
  interfaces: VmiInterface[];
  interfaceStatuses: InterfaceStatus[] | null;
  currentStatus: NmstateStatus;
  queuesCapacity: number;
  MY_POD_IP: string;
  bindingPlugins?: BindingPlugins;
  netnsEnterFails?: boolean;
  nmstateReadFails?: boolean;
  nmstateApplyFails?: boolean;
  masqueradeFails?: boolean;
  agentRestartBefore?: boolean;
}
interface SetupResult {
  error: string;
  criticalNetworkError: boolean;
  nmstateReads: number;
  desiredSpec: { interfaces?: NmstateInterface[] } | null;
  filesAfter: Record<string, JsonObject>;
}

const cacheDirectory = '/var/run/kubevirt-private/network-info-cache/uid-1/';
const vifCache = /vif-cache-(.*)\.json$/;

let root: string;
let runs = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'network-vectors-'));
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

function observed(status: NmstateStatus) {
  return observation(
    status.interfaces.map((link) => ({
      name: link.name,
      index: link.index ?? 0,
      kind: link.type === 'tap' ? 'tun' : (link.type ?? ''),
      mac: link['mac-address'] ?? '',
      mtu: link.mtu ?? 0,
      addresses: [...(link.IPv4?.address ?? []), ...(link.IPv6?.address ?? [])].map(
        (address) => `${address.IP}/${address['prefix-length'] ?? 0}`,
      ),
    })),
    (status.routes.running ?? [])
      .filter((route) => (route['table-id'] ?? 254) === 254)
      .map((route) => ({
        destination: route.destination,
        gateway: route['next-hop-address'] ?? '',
        link: route['next-hop-interface'] ?? '',
      })),
  );
}

function bindingName(iface: VmiInterface, plugins: BindingPlugins = {}) {
  if (iface.binding) {
    const type = plugins[iface.binding.name]?.domainAttachmentType;
    return type === 'managedTap' ? 'managedTap' : 'plugin';
  }
  return ['bridge', 'masquerade', 'passtBinding', 'sriov'].find((key) => key in iface) ?? 'undefined';
}

/** Bindings whose plumbing this version does not have. */
function unsupported({ interfaces, bindingPlugins }: SetupStep): boolean {
  return interfaces.some(
    (iface) =>
      iface.state !== 'absent' && ['managedTap', 'passtBinding'].includes(bindingName(iface, bindingPlugins)),
  );
}

class World {
  readonly directory = join(root, String(runs++));
  readonly helper = new FakeNetworkHelper();
  #store = this.#newStore();

  #newStore() {
    return new NetworkStateStore(this.directory, silentLog());
  }

  restartAgent() {
    this.#store = this.#newStore();
  }

  async setup(step: SetupStep) {
    const before = { calls: this.helper.calls.length, applied: this.helper.applied.length };
    this.helper.observed = observed(step.currentStatus);
    this.helper.observeError = step.netnsEnterFails
      ? helperFailure('do-netns failure', { unchanged: true })
      : step.nmstateReadFails
        ? helperFailure('nmstate read failed', { unchanged: true })
        : undefined;
    const natFails = step.masqueradeFails && step.interfaces.some((iface) => iface.masquerade);
    this.helper.applyError = step.nmstateApplyFails
      ? helperFailure('nmstate apply failed', { unchanged: false })
      : natFails
        ? helperFailure('masquerade failed', { unchanged: false })
        : undefined;
    const networks = new HelperPodNetworks({
      helper: this.helper,
      pods: onePod,
      state: this.#store,
      node: 'node01',
      agentPodIp: step.MY_POD_IP === '' ? undefined : step.MY_POD_IP,
      config: () => ({ plugins: step.bindingPlugins ?? {}, portRanges: true }),
      log: silentLog(),
    });
    const multiqueue = step.queuesCapacity > 0;
    const vmi = vmiWith(
      step.networks,
      step.interfaces,
      step.interfaceStatuses,
      { networkInterfaceMultiqueue: multiqueue },
      { cores: step.queuesCapacity },
    );
    let error: Error | undefined;
    try {
      await networks.setup(
        vmi,
        step.networks.map(({ name }) => name),
      );
    } catch (thrown) {
      error = thrown as Error;
    }
    return {
      error: (error?.message ?? '').replace('setup failed, err: ', ''),
      critical: error?.cause instanceof CriticalNetworkError,
      calls: this.helper.calls.slice(before.calls),
      applied: this.helper.applied.slice(before.applied),
      files: this.files(),
    };
  }

  /** Node-side files without the keys that KubeVirt does not have. */
  files(): Record<string, JsonObject> {
    const directory = join(this.directory, 'uid-1');
    let names: string[] = [];
    try {
      names = readdirSync(directory);
    } catch {
      // No file was written yet.
    }
    return Object.fromEntries(
      names.map((name) => {
        const { podUID, dhcp: _, ...stock } = JSON.parse(readFileSync(join(directory, name), 'utf8'));
        expect(podUID).toBe(podUid);
        return [name, stock];
      }),
    );
  }
}

function nodeFiles(filesAfter: SetupResult['filesAfter']): Record<string, JsonObject> {
  return Object.fromEntries(
    Object.entries(filesAfter)
      .filter(([path]) => path.startsWith(cacheDirectory))
      .map(([path, content]) => [path.slice(cacheDirectory.length), content]),
  );
}

/** KubeVirt's DHCP record in the helper's terms. */
function dhcpOf(file: JsonObject) {
  const bytes = (text: unknown) => [...Buffer.from(String(text), 'base64')];
  const prefix = (mask: unknown) =>
    bytes(mask)
      .map((byte) => byte.toString(2).replaceAll('0', '').length)
      .reduce((sum, ones) => sum + ones, 0);
  const cidr = (ip: JsonObject) => `${ip['IP']}/${prefix(ip['Mask'])}`;
  const ip = file['IP'] as JsonObject;
  const routes = (file['Routes'] as JsonObject[] | null) ?? [];
  return {
    ipamDisabled: file['IPAMDisabled'],
    address: ip['IP'] === undefined ? '' : cidr(ip),
    mac:
      file['MAC'] === null
        ? ''
        : bytes(file['MAC'])
            .map((byte) => byte.toString(16).padStart(2, '0'))
            .join(':'),
    gateway: file['Gateway'],
    routes: routes.map((route) => ({
      destination: route['Dst'] === null ? '' : cidr(route['Dst'] as JsonObject),
      gateway: route['Gw'],
    })),
  };
}

function shownDhcp(dhcp: DhcpRecord | undefined) {
  return (
    dhcp && {
      ipamDisabled: dhcp.ipamDisabled,
      address: dhcp.address,
      mac: dhcp.mac,
      gateway: dhcp.gateway,
      routes: dhcp.routes.map(({ destination, gateway }) => ({ destination, gateway })),
    }
  );
}

/** What the helper is told, where KubeVirt's desired state says it too. */
function shownAttachments(applied: FakeNetworkHelper['applied']) {
  return applied.flatMap(({ attachments }) =>
    attachments.map((attachment) => ({
      network: attachment.network,
      podInterface: attachment.podInterface,
      primary: attachment.primary,
      index: attachment.index,
      queues: attachment.queues,
      binding: attachment.binding.case,
      ...(attachment.binding.case === 'bridge' && { dhcp: shownDhcp(attachment.binding.value.dhcp) }),
      ...(attachment.binding.case === 'masquerade' && {
        ipv4: attachment.binding.value.ipv4Cidr,
        ipv6: attachment.binding.value.ipv6Cidr,
      }),
    })),
  );
}

function networkOfGateway(addresses: Address[] | undefined): string {
  const first = addresses?.[0];
  const gateway = first && parseCidr(`${first.IP}/${first['prefix-length'] ?? 0}`);
  return gateway === undefined ? '' : formatCidr(maskedNetwork(gateway));
}

/** The attachments that lead to KubeVirt's desired state. */
function expectedAttachments(step: SetupStep, expected: SetupResult) {
  const entries = (expected.desiredSpec?.interfaces ?? []).filter(({ state }) => state !== 'absent');
  const bridges = entries.filter(({ type }) => type === 'bridge');
  return bridges.map((bridge) => {
    const network = bridge.Metadata?.NetworkName ?? '';
    const own = entries.filter(({ Metadata }) => Metadata?.NetworkName === network);
    const tap = own.find(({ type }) => type === 'tap');
    const dummy = own.find(({ type }) => type === 'dummy');
    const podInterface = bridge.name.replace(/^k6t-/, '').replace(/^[0-9a-f]{11}$/, 'pod$&');
    const common = {
      network,
      podInterface,
      primary: tap?.name === 'tap0',
      index: step.interfaces.findIndex(({ name }) => name === network),
      queues: tap?.tap?.queues ?? 0,
    };
    if (dummy === undefined) {
      return {
        ...common,
        binding: 'masquerade',
        ipv4: networkOfGateway(bridge.IPv4?.address),
        ipv6: networkOfGateway(bridge.IPv6?.address),
      };
    }
    const file = Object.entries(expected.filesAfter).find(
      ([path]) => vifCache.exec(path)?.[1] === podInterface,
    );
    const linkAddress = bridge.IPv4?.address?.[0]?.IP;
    if (linkAddress !== undefined) expect(linkAddress).toBe(`169.254.75.1${common.index}`);
    return { ...common, binding: 'bridge', dhcp: file && dhcpOf(file[1]) };
  });
}

/** Up to the parts that a dump or the Go runtime fills in; the helper's errors name the call. */
function expectError(error: string, wanted: string) {
  const [start = ''] = wanted.split('<LIST>');
  const shown = error.replace(/helper \S+: /, '');
  expect(wanted === '' ? shown : shown.slice(0, start.length)).toBe(start);
}

// A plugin that only has a sidecar needs nothing from the node: there is no call that could fail.
const applyNotNeeded = /^sidecar: apply fails|^hotplug fails, then unplugged \(started state\) sidecar/;

const noDhcpRecord = new Set([
  'bridge dhcp routes: no routes at all',
  'bridge dhcp routes: unparsable destination',
  'bridge dhcp mac spec="" status="bad"',
]);
const wrongFamily = new Set([
  'masquerade vmNetworkCIDR="fd10:0:2::/120" ip=dual',
  'masquerade vmIPv6NetworkCIDR="10.0.2.0/24"',
]);
// An absent interface that was never plumbed is ignored, whatever its binding.
const absentIgnored = /^secondary (slirp|macvtap|deprecated-passt|none|managed) state=absent$/;

describe.each(['netpod-setup', 'netpod-queues'])('%s', (file) => {
  const all = loadVectors<SetupStep, SetupResult>('network', file).map((vector) => ({
    ...vector,
    input: {
      ...vector.input,
      networks: vector.input.networks ?? [],
      interfaces: vector.input.interfaces ?? [],
    },
  }));
  const [later, now] = [
    all.filter(({ input }) => unsupported(input)),
    all.filter(({ input }) => !unsupported(input)),
  ];

  it.each(now)('NET-005 NET-012 NET-013 NET-018 NET-022 NET-023 $name', async ({ name, input, expected }) => {
    const result = await new World().setup(input);
    if (wrongFamily.has(name)) {
      expect(result.error).toMatch(
        /^Critical network error: failed to parse VM CIDR: .*, not an IPv[46] network$/,
      );
      expect(result.critical).toBe(true);
      return;
    }
    if (absentIgnored.test(name)) {
      expect(result.error).toBe('');
      expect(shownAttachments(result.applied).map(({ network }) => network)).toEqual(['default']);
      return;
    }
    expectError(result.error, expected.error);
    expect(result.critical).toBe(expected.criticalNetworkError);
    expect(result.calls.filter((call) => call === 'observe')).toHaveLength(expected.nmstateReads);
    expect(shownAttachments(result.applied)).toEqual(expectedAttachments(input, expected));
    expect(result.applied.flatMap(({ detachments }) => detachments)).toEqual([]);
    // Addresses are written once what goes with them is known.
    const files = noDhcpRecord.has(name) ? {} : nodeFiles(expected.filesAfter);
    expect(result.files).toEqual(files);
  });

  it.each(later)('is refused by this version: $name', async ({ input, expected }) => {
    const result = await new World().setup(input);
    expect(result.applied).toEqual([]);
    if (expected.error !== '' && !expected.criticalNetworkError) {
      expect(result.error).toContain(expected.error);
      expect(result.critical).toBe(false);
    } else {
      expect(result.error).toMatch(
        /^Critical network error: interface \S+: .* is not supported by this version$/,
      );
      expect(result.critical).toBe(true);
    }
  });
});

describe('netpod-sequences', () => {
  const all = loadVectors<{ steps: SetupStep[] }, { steps: SetupResult[] }>('network', 'netpod-sequences');
  const now = all.filter(({ input }) => !input.steps.some(unsupported));

  it('leaves out passt and managedTap only', () => {
    const left = all.filter((vector) => !now.includes(vector)).map(({ name }) => name);
    expect(left.every((name) => /managed|^passt:/.test(name))).toBe(true);
  });

  it.each(now)('NET-003 NET-004 NET-005 NET-007 $name', async ({ name, input, expected }) => {
    const world = new World();
    for (const [position, step] of input.steps.entries()) {
      const wanted = expected.steps[position];
      if (wanted === undefined) throw new Error(`no expectation for step ${position}`);
      if (step.agentRestartBefore) world.restartAgent();
      const before = world.files();
      const result = await world.setup(step);
      if (applyNotNeeded.test(name) && step.nmstateApplyFails) {
        expect([result.error, result.calls]).toEqual(['', ['observe']]);
        return;
      }
      expectError(result.error, wanted.error);
      expect(result.critical).toBe(wanted.criticalNetworkError);
      // Entering the namespace and reading it is one call here.
      expect(result.calls.filter((call) => call === 'observe')).toHaveLength(
        step.netnsEnterFails && wanted.error !== '' ? 1 : wanted.nmstateReads,
      );
      expect(result.files).toEqual(nodeFiles(wanted.filesAfter));

      const changed = step.networks
        .map(({ name }) => name)
        .filter((name) => {
          const state = (files: Record<string, JsonObject>) => files[name]?.['networkState'] ?? 0;
          return state(before) !== state(result.files);
        });
      const binding = (name: string) => step.interfaces.find((iface) => iface.name === name);
      const isPlumbed = (name: string) => !!binding(name)?.bridge || !!binding(name)?.masquerade;
      const isAbsent = (name: string) => binding(name)?.state === 'absent';
      expect(result.applied.flatMap(({ attachments }) => attachments.map(({ network }) => network))).toEqual(
        changed.filter((name) => isPlumbed(name) && !isAbsent(name)),
      );
      expect(result.applied.flatMap(({ detachments }) => detachments.map(({ network }) => network))).toEqual(
        changed.filter((name) => isPlumbed(name) && isAbsent(name)),
      );
    }
  });
});
