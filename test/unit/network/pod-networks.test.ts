import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { readDomain } from '../../../agent/domains/domain-json.js';
import type { BindingPlugins } from '../../../agent/network/bindings.js';
import { PodNetStat } from '../../../agent/network/pod-netstat.js';
import { HelperPodNetworks } from '../../../agent/network/pod-networks.js';
import { NetworkStateStore } from '../../../agent/network/state.js';
import { CriticalNetworkError, type PodNetworks } from '../../../agent/reconcile/ports.js';
import { silentLog } from '../status/fakes.js';
import {
  type FailureFields,
  FakeNetworkHelper,
  helperFailure,
  helperUnavailable,
  observation,
  podUid,
} from './fakes.js';

const uid = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee';
let directory: string;
let helper: FakeNetworkHelper;
let finds: number;
let lines: string[];
let networks: PodNetworks;

function startAgent(
  over: { podUid?: string; agentPodIp?: string | undefined; plugins?: BindingPlugins } = {},
): PodNetworks {
  return new HelperPodNetworks({
    helper,
    pods: {
      find: async (vmi) => {
        finds++;
        return { podUid: over.podUid ?? podUid, vmiUid: vmi.metadata.uid };
      },
    },
    state: new NetworkStateStore(directory, silentLog(lines)),
    node: 'node01',
    agentPodIp: 'agentPodIp' in over ? over.agentPodIp : '10.0.0.1',
    config: () => ({ plugins: over.plugins ?? {}, portRanges: true }),
    log: silentLog(lines),
  });
}

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'pod-networks-'));
  helper = new FakeNetworkHelper();
  helper.observed = beforePlumbing;
  finds = 0;
  lines = [];
  networks = startAgent();
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const mac = '0a:58:0a:f4:02:05';
const beforePlumbing = observation(
  [
    { name: 'lo', index: 1, addresses: ['127.0.0.1/8', '::1/128'] },
    {
      name: 'eth0',
      index: 2,
      kind: 'veth',
      mac,
      mtu: 1450,
      addresses: ['10.244.2.5/24', 'fe80::858:aff:fef4:205/64'],
    },
  ],
  [
    { destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' },
    { destination: '10.244.2.0/24', link: 'eth0' },
  ],
);
/** Plumbing a bridge renames the pod link, puts a dummy in its place and loses the routes. */
const afterPlumbing = observation([
  { name: 'lo', index: 1, addresses: ['127.0.0.1/8'] },
  { name: 'eth0-nic', index: 2, kind: 'veth', mac: '02:00:00:00:00:01', mtu: 1450 },
  { name: 'k6t-eth0', index: 3, kind: 'bridge', addresses: ['169.254.75.10/32'] },
  { name: 'tap0', index: 4, kind: 'tun' },
  { name: 'eth0', index: 5, kind: 'dummy', mac, mtu: 1450, addresses: ['10.244.2.5/24'] },
]);

function vmi(
  over: { interface?: object; activePods?: Record<string, string>; statuses?: object[] } = {},
): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid },
    spec: {
      networks: [{ name: 'default', pod: {} }],
      domain: { devices: { interfaces: [{ name: 'default', bridge: {}, ...over.interface }] } },
    },
    status: { activePods: over.activePods ?? { [podUid]: 'node01' }, interfaces: over.statuses ?? [] },
  } as Vmi;
}

const record = (network = 'default') => JSON.parse(readFileSync(join(directory, uid, network), 'utf8'));
const critical = expect.objectContaining({ cause: expect.any(CriticalNetworkError) });

function putRecord(content: object) {
  mkdirSync(join(directory, uid), { recursive: true });
  writeFileSync(join(directory, uid, 'default'), JSON.stringify(content));
}

describe('setup', () => {
  it('NET-002 does nothing for an empty list', async () => {
    await networks.setup(vmi(), []);
    expect([finds, helper.calls, readdirSync(directory)]).toEqual([0, [], []]);
  });

  it('NET-003 makes no call once everything is finished, also after a restart', async () => {
    await networks.setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    await networks.setup(vmi(), ['default']);
    await startAgent().setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    expect(finds).toBe(1);
  });

  it('NET-003 takes over a network that KubeVirt has set up', async () => {
    putRecord({
      iface: { name: 'default', bridge: {} },
      podIP: '10.244.2.5',
      podIPs: ['10.244.2.5'],
      networkState: 2,
    });
    await networks.setup(vmi(), ['default']);
    expect(helper.calls).toEqual([]);
  });

  it('plumbs the pod anew when the record is about another pod of the same VMI', async () => {
    await networks.setup(vmi(), ['default']);
    const other = '99999999-2222-3333-4444-555555555555';
    networks = startAgent({ podUid: other });
    await networks.setup(vmi({ activePods: { [other]: 'node01', [podUid]: 'node02' } }), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply', 'observe', 'apply']);
    expect(record()).toMatchObject({ podUID: other, networkState: 2 });
  });

  it('asks which pod it is while two are active on the node', async () => {
    const pods = { [podUid]: 'node01', '99999999-2222-3333-4444-555555555555': 'node01' };
    await networks.setup(vmi({ activePods: pods }), ['default']);
    await networks.setup(vmi({ activePods: pods }), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    expect(finds).toBeGreaterThan(1);
  });

  it('NET-004 fails for good where a set-up was left half done', async () => {
    putRecord({ networkState: 1 });
    const setup = networks.setup(vmi(), ['default']);
    await expect(setup).rejects.toThrow(
      'setup failed, err: Critical network error: preparation for networks [default] cannot be restarted',
    );
    await expect(setup).rejects.toEqual(critical);
    expect(helper.calls).toEqual([]);
  });

  it('NET-007 stays pending after what may pass, and the next try succeeds', async () => {
    helper.observeError = helperUnavailable();
    await expect(networks.setup(vmi(), ['default'])).rejects.not.toEqual(critical);
    helper.observeError = undefined;
    helper.observed = observation([]);
    await expect(networks.setup(vmi(), ['default'])).rejects.toThrow('pod link (eth0) is missing');
    helper.observed = beforePlumbing;
    await networks.setup(vmi(), ['default']);
    expect(record().networkState).toBe(2);
  });

  it('does not look at the pod for SR-IOV', async () => {
    await networks.setup(vmi({ interface: { bridge: undefined, sriov: {} } }), ['default']);
    expect([finds, helper.calls]).toEqual([0, []]);
  });

  it('says which network has no interface', async () => {
    await expect(networks.setup(vmi(), ['blue'])).rejects.toThrow('no iface matching with network blue');
  });

  it('NET-018 wants to know the primary family of a dual-stack pod', async () => {
    helper.observed = observation([
      { name: 'eth0', index: 2, mac, addresses: ['10.244.2.5/24', 'fd00::5/64'] },
    ]);
    const masquerade = vmi({ interface: { bridge: undefined, masquerade: {} } });
    networks = startAgent({ agentPodIp: undefined });
    await expect(networks.setup(masquerade, ['default'])).rejects.toThrow('MY_POD_IP doesnt exists');
    networks = startAgent({ agentPodIp: 'fd00::1' });
    await networks.setup(masquerade, ['default']);
    expect(record().podIPs).toEqual(['fd00::5', '10.244.2.5']);
  });
});

it('NET-017 knows no IPv6 address of a bridge, and shows the one that the guest tells', async () => {
  helper.observed = observation(
    [{ name: 'eth0', index: 2, kind: 'veth', mac, mtu: 1450, addresses: ['10.244.2.5/24', 'fd00:10::5/64'] }],
    [{ destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' }],
  );
  await networks.setup(vmi(), ['default']);
  expect(record().podIPs).toEqual(['10.244.2.5']);

  const guest = vmi();
  const domain = readDomain({
    Spec: { Devices: { Interfaces: [{ Alias: { Name: 'default' }, MAC: { MAC: mac } }] } },
    Status: { Interfaces: [{ Mac: mac, Ip: 'fd00:10::77', IPs: ['fd00:10::77'], InterfaceName: 'eth0' }] },
  });
  await new PodNetStat(new NetworkStateStore(directory, silentLog(lines))).updateStatus(guest, domain);
  expect(guest.status.interfaces?.[0]?.ipAddresses).toEqual(['10.244.2.5', 'fd00:10::77']);
});

describe('unplug', () => {
  const blue = (interfaces: object, statuses: object[] = []) => {
    const object = vmi({ statuses });
    object.spec.networks = [{ name: 'blue', multus: { networkName: 'nad' } }];
    object.spec.domain.devices.interfaces = [{ name: 'blue', bridge: {}, ...interfaces }];
    return object;
  };
  const link = (name: string, address: string[] = []) =>
    observation([{ name, index: 7, kind: 'veth', mac, mtu: 1500, addresses: address }]);
  const stored = () => readdirSync(join(directory, uid));

  beforeEach(async () => {
    helper.observed = link('pod16477688c0e', ['192.168.77.2/24']);
    helper.observed.routes = observation(
      [{ name: 'pod16477688c0e', index: 7 }],
      [{ destination: '192.168.77.0/24', link: 'pod16477688c0e' }],
    ).routes;
    await networks.setup(blue({}), ['blue']);
    helper.observed = link('16477688c0e-nic', ['fe80::1/64']);
  });

  it('NET-020 forgets the network once the helper has removed it, and not before', async () => {
    helper.applyError = helperFailure('failed', { unchanged: true, errnoName: 'EISDIR' });
    await expect(networks.setup(blue({ state: 'absent' }), ['blue'])).rejects.toThrow('failed');
    expect(stored()).toEqual(['blue']);
    helper.applyError = undefined;
    await networks.setup(blue({ state: 'absent' }), ['blue']);
    expect(helper.applied.at(-1)).toMatchObject({
      attachments: [],
      detachments: [{ network: 'blue', podInterface: 'pod16477688c0e', primary: false }],
    });
    expect(stored()).toEqual([]);
    await networks.setup(blue({ state: 'absent' }), ['blue']);
    expect(helper.applied).toHaveLength(3);
  });

  it('NET-020 does not let a removal that fails spoil what was plugged in the same pass', async () => {
    const both = blue({ state: 'absent' });
    both.spec.networks?.push({ name: 'red', multus: { networkName: 'nad' } });
    both.spec.domain.devices.interfaces?.push({ name: 'red', bridge: {} });
    const red = 'podb1f51a511f1';
    helper.observed = observation([
      { name: '16477688c0e-nic', index: 7, kind: 'veth', mac, mtu: 1500 },
      { name: red, index: 8, kind: 'veth', mac, mtu: 1500 },
    ]);
    helper.detachError = helperFailure('failed', { unchanged: false, errnoName: 'EIO' });
    await expect(networks.setup(both, ['red', 'blue'])).rejects.toEqual(critical);
    expect([record('red').networkState, record('blue').networkState]).toEqual([2, 2]);
    helper.detachError = undefined;
    await networks.setup(both, ['red', 'blue']);
    expect(stored()).toEqual(['red']);
    expect(
      helper.applied.map(({ attachments, detachments }) => [attachments.length, detachments.length]),
    ).toEqual([
      [1, 0],
      [1, 0],
      [0, 1],
      [0, 1],
    ]);
  });

  it('NET-021 leaves the pod link renamed, which a bridge can be plugged on again', async () => {
    await networks.setup(blue({ state: 'absent' }), ['blue']);
    await networks.setup(blue({}), ['blue']);
    expect(helper.applied.at(-1)?.attachments).toMatchObject([
      { podInterface: 'pod16477688c0e', binding: { value: { dhcp: { ipamDisabled: true } } } },
    ]);
    expect(record('blue')).toEqual({ networkState: 2, podUID: podUid });
  });

  it('takes no renamed link for that of another binding', async () => {
    await networks.setup(blue({ state: 'absent' }), ['blue']);
    const masquerade = blue({ bridge: undefined, masquerade: {} });
    await expect(networks.setup(masquerade, ['blue'])).rejects.toThrow(
      'pod link (pod16477688c0e) is missing',
    );
  });
});

describe('binding plugins and passt', () => {
  const plugins = {
    mesh: { domainAttachmentType: 'managedTap' },
    hidden: {},
    direct: { domainAttachmentType: 'tap' },
  };
  const bound = (name: string, over: object = {}) =>
    vmi({ interface: { bridge: undefined, binding: { name }, ...over } });
  const passt = vmi({ interface: { bridge: undefined, passtBinding: {} } });

  beforeEach(() => {
    networks = startAgent({ plugins });
  });

  it('plumb a managed tap without a DHCP record', async () => {
    await networks.setup(bound('mesh'), ['default']);
    expect(helper.applied).toMatchObject([
      { attachments: [{ podInterface: 'eth0', binding: { case: 'managedTap' } }], passt: false },
    ]);
    expect(record()).toMatchObject({ podIP: '10.244.2.5', networkState: 2 });
  });

  it('complete a managed tap whose first set-up was cut short, on the renamed link', async () => {
    helper.applyError = helperUnavailable();
    await expect(networks.setup(bound('mesh'), ['default'])).rejects.not.toEqual(critical);
    helper.applyError = undefined;
    helper.observed = observation([{ name: 'eth0-nic', index: 2, kind: 'veth', mac, mtu: 1450 }]);
    await startAgent({ plugins }).setup(bound('mesh'), ['default']);
    expect(record()).toMatchObject({ podIP: '10.244.2.5', networkState: 2 });
  });

  it('are critical where the pod link of a managed tap is missing', async () => {
    helper.observed = observation([]);
    const setup = networks.setup(bound('mesh'), ['default']);
    await expect(setup).rejects.toThrow('Critical network error: pod link (eth0) is missing');
    await expect(setup).rejects.toEqual(critical);
  });

  it('remove a managed tap that is absent, with or without its link', async () => {
    await networks.setup(bound('mesh'), ['default']);
    helper.observed = observation([]);
    await networks.setup(bound('mesh', { state: 'absent' }), ['default']);
    expect(helper.applied.at(-1)).toMatchObject({
      attachments: [],
      detachments: [{ network: 'default', podInterface: 'eth0', primary: true }],
    });
    expect(readdirSync(join(directory, uid))).toEqual([]);
  });

  it.each(['direct', 'hidden', 'unknown', 'toString'])(
    'leave the pod as it is for plugin %s',
    async (name) => {
      await networks.setup(bound(name), ['default']);
      await networks.setup(bound(name, { state: 'absent' }), ['default']);
      expect(helper.calls).toEqual(['observe', 'observe']);
    },
  );

  it('prepare the pod for passt, once, and note the addresses of both families', async () => {
    helper.observed = observation([
      { name: 'eth0', index: 2, mac, addresses: ['10.244.2.5/24', 'fd00::5/64'] },
    ]);
    await networks.setup(passt, ['default']);
    await networks.setup(passt, ['default']);
    expect(helper.applied).toEqual([{ attachments: [], detachments: [], passt: true }]);
    expect(record()).toMatchObject({ podIPs: ['10.244.2.5', 'fd00::5'], networkState: 2 });
  });

  it('count SR-IOV in the index of what is plumbed beside it', async () => {
    const object = vmi();
    object.spec.networks = [
      { name: 'vf', multus: { networkName: 'vf' } },
      { name: 'default', pod: {} },
    ];
    object.spec.domain.devices.interfaces = [
      { name: 'vf', sriov: {} },
      { name: 'default', bridge: {} },
    ];
    await networks.setup(object, ['vf', 'default']);
    expect(helper.applied).toMatchObject([{ attachments: [{ network: 'default', index: 1 }] }]);
    expect(readdirSync(join(directory, uid))).toEqual(['default']);
  });
});

describe('failures of apply', () => {
  const passing: [string, FailureFields][] = [
    ['EBUSY', { unchanged: true, errnoName: 'EBUSY' }],
    ['ENOBUFS', { unchanged: true, errnoName: 'ENOBUFS' }],
    ['a launcher that is not known yet', { unchanged: true, refused: true }],
    ['a deadline', { unchanged: false, code: Code.DeadlineExceeded }],
  ];
  it.each(passing)('go back to pending after %s', async (_what, failure) => {
    helper.applyError = helperFailure('failed', failure);
    await expect(networks.setup(vmi(), ['default'])).rejects.not.toEqual(critical);
    expect(record().networkState).toBeUndefined();
    helper.applyError = undefined;
    await startAgent().setup(vmi(), ['default']);
    expect(record().networkState).toBe(2);
  });

  const lasting: [string, FailureFields][] = [
    ['what could not be undone', { unchanged: false, errnoName: 'EBUSY' }],
    ['a lack of permission', { unchanged: true, errnoName: 'EPERM' }],
    ['a foreign link of the same name', { unchanged: true, errnoName: 'EEXIST' }],
    ['an invalid request', { unchanged: true, refused: true, field: 'attachments[0].index' }],
  ];
  it.each(lasting)('NET-004 are critical for %s', async (_what, failure) => {
    helper.applyError = helperFailure('failed', failure);
    await expect(networks.setup(vmi(), ['default'])).rejects.toEqual(critical);
    expect(record().networkState).toBe(1);
    await expect(startAgent().setup(vmi(), ['default'])).rejects.toThrow('cannot be restarted');
    expect(helper.calls).toEqual(['observe', 'apply']);
  });

  it('are forgotten where the helper died: the guest is told the same once it is back', async () => {
    helper.applyError = helperUnavailable();
    await expect(networks.setup(vmi(), ['default'])).rejects.not.toEqual(critical);
    helper.applyError = undefined;
    helper.observed = afterPlumbing;
    await startAgent().setup(vmi(), ['default']);
    const [first, second] = helper.applied.map(({ attachments }) => attachments[0]);
    expect(first?.binding.value).toMatchObject({
      dhcp: { address: '10.244.2.5/24', gateway: '10.244.2.1', mac },
    });
    expect(second).toEqual(first);
    expect(record()).toEqual({
      iface: { name: 'default', bridge: {} },
      podIP: '10.244.2.5',
      podIPs: ['10.244.2.5'],
      networkState: 2,
      podUID: podUid,
    });
  });

  it('are critical when the outcome cannot be recorded', async () => {
    helper.observed = observation([{ name: 'eth0', index: 2, mac }]);
    writeFileSync(join(directory, uid), 'in the way of the directory');
    await expect(networks.setup(vmi(), ['default'])).rejects.toEqual(critical);
  });
});

describe('what the helper is told', () => {
  const masqueradeOf = async (iface: object, annotations: Record<string, string> = {}) => {
    const object = vmi({ interface: { bridge: undefined, masquerade: {}, ...iface } });
    object.metadata.annotations = annotations;
    object.status.migrationTransport = 'Unix';
    await networks.setup(object, ['default']);
    return helper.applied[0]?.attachments[0]?.binding.value;
  };

  it('ports, ranges, istio and transport of masquerade', async () => {
    const binding = await masqueradeOf(
      {
        ports: [{ port: 80 }, { port: 53, protocol: 'UDP' }, { port: 9, protocol: 'SCTP' }],
        portRanges: [{ start: 1000, end: 2000, protocol: 'TCP' }],
      },
      { 'sidecar.istio.io/inject': 'True' },
    );
    expect(binding).toMatchObject({
      ipv4Cidr: '10.0.2.0/24',
      ipv6Cidr: '',
      istio: true,
      migrationOverTcp: false,
      ports: [
        { protocol: 1, port: 80, endPort: 0 },
        { protocol: 2, port: 53, endPort: 0 },
        { protocol: 3, port: 9, endPort: 0 },
        { protocol: 1, port: 1000, endPort: 2000 },
      ],
    });
  });

  it('nothing for a protocol that is none', async () => {
    await expect(masqueradeOf({ ports: [{ port: 80, protocol: 'ICMP' }] })).rejects.toEqual(critical);
    expect(helper.calls).toEqual(['observe']);
  });

  it('NET-012 NET-013 the queues that the domain can use', async () => {
    const queues = async (model: string | undefined, statuses: object[] = []) => {
      rmSync(directory, { recursive: true, force: true });
      networks = startAgent();
      const object = vmi({ interface: { model }, statuses });
      object.spec.domain.cpu = { cores: 8 };
      if (object.spec.domain.devices) object.spec.domain.devices.networkInterfaceMultiqueue = true;
      await networks.setup(object, ['default']);
      return helper.applied.at(-1)?.attachments[0]?.queues;
    };
    expect(await queues('virtio')).toBe(8);
    expect(await queues('e1000')).toBe(0);
    expect(await queues(undefined, [{ name: 'default', infoSource: 'domain', queueCount: 1 }])).toBe(1);
  });
});

describe('the target of a migration, which is given every network of the spec', () => {
  const target = () => {
    const object = vmi({ interface: { bridge: undefined, masquerade: {} } });
    object.spec.networks?.push({ name: 'blue', multus: { networkName: 'nad' } });
    object.spec.domain.devices.interfaces?.push({ name: 'blue', bridge: {}, state: 'absent' });
    return object;
  };

  it('plumbs those that are not absent, and asks nothing of the others', async () => {
    await networks.setup(target(), ['default', 'blue']);
    expect(helper.applied).toMatchObject([{ attachments: [{ network: 'default' }], detachments: [] }]);
    expect(readdirSync(join(directory, uid))).toEqual(['default']);
  });

  it('begins anew after a failure that was final, once it was torn down', async () => {
    helper.applyError = helperFailure('failed', { unchanged: false });
    await expect(networks.setup(target(), ['default', 'blue'])).rejects.toEqual(critical);
    await expect(networks.setup(target(), ['default', 'blue'])).rejects.toThrow('cannot be restarted');
    await networks.teardown({ namespace: 'ns', name: 'vm', uid });
    helper.applyError = undefined;
    await networks.setup(target(), ['default', 'blue']);
    expect(record().networkState).toBe(2);
  });
});

describe('teardown', () => {
  it('NET-026 forgets the VMI, and only logs when it cannot', async () => {
    await networks.setup(vmi(), ['default']);
    await networks.teardown({ namespace: 'ns', name: 'vm', uid });
    expect(readdirSync(directory)).toEqual([]);
    await networks.setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply', 'observe', 'apply']);

    await networks.teardown({ namespace: 'ns', name: 'vm', uid: '../x' });
    expect(lines.map((line) => JSON.parse(line).level)).toEqual(['warning']);
  });
});
