import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { PodNetworks } from '../../../agent/reconcile/ports.js';
import { type FakeNetworkHelper, helperFailure, helperUnavailable, observation, podUid } from './fakes.js';
import { beforePlumbing, critical, mac, PodNetworksWorld, plumbedLinks, uid, vmi } from './world.js';

let world: PodNetworksWorld;
let helper: FakeNetworkHelper;
let networks: PodNetworks;

beforeEach(() => {
  world = new PodNetworksWorld();
  ({ helper } = world);
  networks = world.startAgent();
});
afterEach(() => world.remove());

describe('unplug', () => {
  const blue = (interfaces: object, statuses: object[] = []) => {
    const object = vmi({ statuses });
    object.spec.networks = [{ name: 'blue', multus: { networkName: 'nad' } }];
    object.spec.domain.devices.interfaces = [{ name: 'blue', bridge: {}, ...interfaces }];
    return object;
  };
  const link = (name: string, address: string[] = []) =>
    observation([{ name, index: 7, kind: 'veth', mac, mtu: 1500, addresses: address }]);
  const stored = () => readdirSync(join(world.directory, uid));

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
    expect([world.record('red').networkState, world.record('blue').networkState]).toEqual([2, 2]);
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

  it('takes what masquerade plumbed away like the others', async () => {
    const eth0 = { name: 'eth0', index: 2, kind: 'veth', mac, mtu: 1450, addresses: ['10.244.2.5/24'] };
    helper.observed = observation([eth0]);
    const interfaces = { bridge: undefined, masquerade: {} };
    await networks.setup(vmi({ interface: interfaces }), ['default']);
    await networks.setup(vmi({ interface: { ...interfaces, state: 'absent' } }), ['default']);
    expect(helper.applied.at(-1)).toMatchObject({
      attachments: [],
      detachments: [{ network: 'default', podInterface: 'eth0', primary: true }],
    });
    expect(stored()).toEqual(['blue']);
  });

  it('looks at nothing of a finished bridge when another network is plugged', async () => {
    const both = vmi();
    both.spec.networks?.push({ name: 'blue', multus: { networkName: 'nad' } });
    both.spec.domain.devices.interfaces?.push({ name: 'blue', bridge: {} });
    helper.observed = beforePlumbing;
    await networks.setup(vmi(), ['default']);
    helper.observed = observation([
      ...plumbedLinks,
      { name: 'pod16477688c0e', index: 7, kind: 'veth', mac, mtu: 1500 },
    ]);
    await world.store().remove(uid, 'blue');
    await world.startAgent().setup(both, ['default', 'blue']);
    expect(helper.applied.at(-1)?.attachments).toMatchObject([{ network: 'blue' }]);
    expect([world.record().networkState, world.record('blue').networkState]).toEqual([2, 2]);
  });

  it('NET-021 leaves the pod link renamed, which a bridge can be plugged on again', async () => {
    await networks.setup(blue({ state: 'absent' }), ['blue']);
    await networks.setup(blue({}), ['blue']);
    expect(helper.applied.at(-1)?.attachments).toMatchObject([
      { podInterface: 'pod16477688c0e', binding: { value: { dhcp: { ipamDisabled: true } } } },
    ]);
    expect(world.record('blue')).toEqual({ networkState: 2, podUID: podUid });
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
    networks = world.startAgent({ plugins });
  });

  it('plumb a managed tap without a DHCP record', async () => {
    await networks.setup(bound('mesh'), ['default']);
    expect(helper.applied).toMatchObject([
      { attachments: [{ podInterface: 'eth0', binding: { case: 'managedTap' } }], passt: false },
    ]);
    expect(world.record()).toMatchObject({ podIP: '10.244.2.5', networkState: 2 });
  });

  it('complete a managed tap whose first set-up was cut short, on the renamed link', async () => {
    helper.applyError = helperUnavailable();
    await expect(networks.setup(bound('mesh'), ['default'])).rejects.not.toEqual(critical);
    helper.applyError = undefined;
    helper.observed = observation([{ name: 'eth0-nic', index: 2, kind: 'veth', mac, mtu: 1450 }]);
    await world.startAgent({ plugins }).setup(bound('mesh'), ['default']);
    expect(world.record()).toMatchObject({ podIP: '10.244.2.5', networkState: 2 });
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
    expect(readdirSync(join(world.directory, uid))).toEqual([]);
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
    expect(world.record()).toMatchObject({ podIPs: ['10.244.2.5', 'fd00::5'], networkState: 2 });
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
    expect(readdirSync(join(world.directory, uid))).toEqual(['default']);
  });
});
