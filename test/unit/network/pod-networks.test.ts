import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { readDomain } from '../../../agent/domains/domain-json.js';
import { PodNetStat } from '../../../agent/network/pod-netstat.js';
import type { PodNetworks } from '../../../agent/reconcile/ports.js';
import {
  type FailureFields,
  type FakeNetworkHelper,
  helperFailure,
  helperUnavailable,
  observation,
  podUid,
} from './fakes.js';
import { afterPlumbing, beforePlumbing, critical, mac, PodNetworksWorld, uid, vmi } from './world.js';

let world: PodNetworksWorld;
let helper: FakeNetworkHelper;
let networks: PodNetworks;

beforeEach(() => {
  world = new PodNetworksWorld();
  ({ helper } = world);
  networks = world.startAgent();
});
afterEach(() => world.remove());

describe('setup', () => {
  it('NET-002 does nothing for an empty list', async () => {
    await networks.setup(vmi(), []);
    expect([world.finds, helper.calls, readdirSync(world.directory)]).toEqual([0, [], []]);
  });

  it('NET-003 makes no call once everything is finished, also after a restart', async () => {
    await networks.setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    await networks.setup(vmi(), ['default']);
    await world.startAgent().setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    expect(world.finds).toBe(1);
  });

  it('NET-003 takes over a network that KubeVirt has set up', async () => {
    world.putRecord({
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
    networks = world.startAgent({ podUid: other });
    await networks.setup(vmi({ activePods: { [other]: 'node01', [podUid]: 'node02' } }), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply', 'observe', 'apply']);
    expect(world.record()).toMatchObject({ podUID: other, networkState: 2 });
  });

  it('asks which pod it is while two are active on the node', async () => {
    const pods = { [podUid]: 'node01', '99999999-2222-3333-4444-555555555555': 'node01' };
    await networks.setup(vmi({ activePods: pods }), ['default']);
    await networks.setup(vmi({ activePods: pods }), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply']);
    expect(world.finds).toBeGreaterThan(1);
  });

  it('NET-004 fails for good where a set-up was left half done', async () => {
    world.putRecord({ networkState: 1 });
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
    expect(world.record().networkState).toBe(2);
  });

  it('does not look at the pod for SR-IOV', async () => {
    await networks.setup(vmi({ interface: { bridge: undefined, sriov: {} } }), ['default']);
    expect([world.finds, helper.calls]).toEqual([0, []]);
  });

  it('says which network has no interface', async () => {
    await expect(networks.setup(vmi(), ['blue'])).rejects.toThrow('no iface matching with network blue');
  });

  it('NET-018 wants to know the primary family of a dual-stack pod', async () => {
    helper.observed = observation([
      { name: 'eth0', index: 2, mac, addresses: ['10.244.2.5/24', 'fd00::5/64'] },
    ]);
    const masquerade = vmi({ interface: { bridge: undefined, masquerade: {} } });
    networks = world.startAgent({ agentPodIp: undefined });
    await expect(networks.setup(masquerade, ['default'])).rejects.toThrow('MY_POD_IP doesnt exists');
    networks = world.startAgent({ agentPodIp: 'fd00::1' });
    await networks.setup(masquerade, ['default']);
    expect(world.record().podIPs).toEqual(['fd00::5', '10.244.2.5']);
  });
});

it('NET-016 tells a guest all routes but that of its own subnet, and keeps a default route in any case', async () => {
  const routes = [
    { destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' },
    { destination: '10.244.2.9/24', link: 'eth0' },
    { destination: '192.168.7.9/16', gateway: '10.244.2.254', link: 'eth0' },
  ];
  const toldWith = async (address: string) => {
    helper.observed = observation([{ name: 'eth0', index: 2, mac, addresses: [address] }], routes);
    await world.startAgent().setup(vmi(), ['default']);
    const binding = helper.applied.at(-1)?.attachments[0]?.binding;
    return binding?.case === 'bridge' && binding.value.dhcp?.routes.map(({ destination }) => destination);
  };
  expect(await toldWith('10.244.2.5/24')).toEqual(['', '192.168.0.0/16']);
  world.remove();
  expect(await toldWith('10.244.2.5/0')).toEqual(['', '10.244.2.0/24', '192.168.0.0/16']);
});

it('NET-017 knows no IPv6 address of a bridge, and shows the one that the guest tells', async () => {
  helper.observed = observation(
    [{ name: 'eth0', index: 2, kind: 'veth', mac, mtu: 1450, addresses: ['10.244.2.5/24', 'fd00:10::5/64'] }],
    [{ destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' }],
  );
  await networks.setup(vmi(), ['default']);
  expect(world.record().podIPs).toEqual(['10.244.2.5']);

  const guest = vmi();
  const domain = readDomain({
    Spec: { Devices: { Interfaces: [{ Alias: { Name: 'default' }, MAC: { MAC: mac } }] } },
    Status: { Interfaces: [{ Mac: mac, Ip: 'fd00:10::77', IPs: ['fd00:10::77'], InterfaceName: 'eth0' }] },
  });
  await new PodNetStat(world.store()).updateStatus(guest, domain);
  expect(guest.status.interfaces?.[0]?.ipAddresses).toEqual(['10.244.2.5', 'fd00:10::77']);
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
    expect(world.record().networkState).toBeUndefined();
    helper.applyError = undefined;
    await world.startAgent().setup(vmi(), ['default']);
    expect(world.record().networkState).toBe(2);
  });

  const lasting: [string, FailureFields][] = [
    ['what could not be undone', { unchanged: false, errnoName: 'EBUSY' }],
    ['a lack of permission', { unchanged: true, errnoName: 'EPERM' }],
    ['a foreign link of the same name', { unchanged: true, errnoName: 'EEXIST' }],
    ['an invalid request', { unchanged: true, refused: true, field: 'attachments[0].index' }],
    ['a pod link that no plan fits', { unchanged: true, refused: true, errnoName: 'EINVAL' }],
  ];
  it.each(lasting)('NET-004 are critical for %s', async (_what, failure) => {
    helper.applyError = helperFailure('failed', failure);
    await expect(networks.setup(vmi(), ['default'])).rejects.toEqual(critical);
    expect(world.record().networkState).toBe(1);
    await expect(world.startAgent().setup(vmi(), ['default'])).rejects.toThrow('cannot be restarted');
    expect(helper.calls).toEqual(['observe', 'apply']);
  });

  it('are forgotten where the helper died: the guest is told the same once it is back', async () => {
    helper.applyError = helperUnavailable();
    await expect(networks.setup(vmi(), ['default'])).rejects.not.toEqual(critical);
    helper.applyError = undefined;
    helper.observed = afterPlumbing;
    await world.startAgent().setup(vmi(), ['default']);
    const [first, second] = helper.applied.map(({ attachments }) => attachments[0]);
    expect(first?.binding.value).toMatchObject({
      dhcp: { address: '10.244.2.5/24', gateway: '10.244.2.1', mac },
    });
    expect(second).toEqual(first);
    expect(world.record()).toEqual({
      iface: { name: 'default', bridge: {} },
      podIP: '10.244.2.5',
      podIPs: ['10.244.2.5'],
      networkState: 2,
      podUID: podUid,
    });
  });

  it('are critical when the outcome cannot be recorded', async () => {
    helper.observed = observation([{ name: 'eth0', index: 2, mac }]);
    writeFileSync(join(world.directory, uid), 'in the way of the world.directory');
    const masquerade = vmi({ interface: { bridge: undefined, masquerade: {} } });
    await expect(networks.setup(masquerade, ['default'])).rejects.toEqual(critical);
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
      rmSync(world.directory, { recursive: true, force: true });
      networks = world.startAgent();
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
    expect(readdirSync(join(world.directory, uid))).toEqual(['default']);
  });

  it('begins anew after a failure that was final, once it was torn down', async () => {
    helper.applyError = helperFailure('failed', { unchanged: false });
    await expect(networks.setup(target(), ['default', 'blue'])).rejects.toEqual(critical);
    await expect(networks.setup(target(), ['default', 'blue'])).rejects.toThrow('cannot be restarted');
    await networks.teardown({ namespace: 'ns', name: 'vm', uid });
    helper.applyError = undefined;
    await networks.setup(target(), ['default', 'blue']);
    expect(world.record().networkState).toBe(2);
  });
});

describe('teardown', () => {
  it('NET-026 forgets the VMI, and only logs when it cannot', async () => {
    await networks.setup(vmi(), ['default']);
    await networks.teardown({ namespace: 'ns', name: 'vm', uid });
    expect(readdirSync(world.directory)).toEqual([]);
    await networks.setup(vmi(), ['default']);
    expect(helper.calls).toEqual(['observe', 'apply', 'observe', 'apply']);

    await networks.teardown({ namespace: 'ns', name: 'vm', uid: '../x' });
    expect(world.lines.map((line) => JSON.parse(line).level)).toEqual(['warning']);
  });
});
