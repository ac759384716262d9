import { describe, expect, it } from 'vitest';
import { aDomain, aVmi } from './objects.js';
import { key, World } from './world.js';

describe('running', () => {
  const interfaces = {
    spec: {
      domain: {
        devices: {
          interfaces: [
            { name: 'default', masquerade: {} },
            { name: 'blue', bridge: {} },
          ],
        },
      },
      networks: [
        { name: 'default', pod: {} },
        { name: 'blue', multus: { networkName: 'blue' } },
      ],
    },
    status: {
      interfaces: [
        { name: 'default', infoSource: 'domain, multus-status' },
        { name: 'blue', infoSource: 'multus-status' },
      ],
    },
  };
  const keep = async (stubs: World['stubs'], vmi = aVmi(interfaces), domain = aDomain('Running')) => {
    const world = new World();
    world.stubs = stubs;
    world.put(vmi);
    world.domains.set(key, domain);
    return Object.assign(world, { error: await world.pass() });
  };

  it('REC-019 REC-038 a NIC that fails is reported, the VM is synchronised, and the pass ends in its error', async () => {
    const world = await keep({ networkSetupCriticalError: 'net' });
    expect(world.synced).toHaveLength(1);
    expect(world.error).toBe('Critical network error: net');
    expect(world.events).toContainEqual({
      type: 'Warning',
      reason: 'NicHotplug',
      message: 'Critical network error: net',
    });
    expect(world.puts[0]?.status.phase).toBe('Running');
  });

  it('AFT-009 AFT-036 a volume that fails is reported, the VM is synchronised, and the pass ends in its error', async () => {
    const world = await keep({ hotplugMountError: 'VolumeFailed' });
    expect(world.synced).toHaveLength(1);
    expect(world.unmounted).toHaveLength(1);
    expect(world.error).toBe('bad is a link');
    expect(world.events).toContainEqual({
      type: 'Warning',
      reason: 'HotplugFailed',
      message: 'bad is a link',
    });
    const both = await keep({ hotplugMountError: 'VolumeFailed', networkSetupError: 'net' });
    expect(both.synced).toHaveLength(1);
    expect(both.error).toBe('bad is a link; net');
  });

  it('REC-034 a failed pass shows Synchronized False, a good one removes it', async () => {
    const world = await keep({ SyncVirtualMachineError: 'no' });
    const synchronized = () =>
      world.puts.at(-1)?.status.conditions?.find(({ type }) => type === 'Synchronized');
    expect(synchronized()).toMatchObject({
      status: 'False',
      reason: 'Synchronizing with the Domain failed.',
      message: 'no',
    });
    world.echo();
    world.stubs = {};
    expect(await world.pass()).toBeNull();
    expect(synchronized()).toBeUndefined();
  });

  it('removed volumes are unmounted in every pass, but for those that the domain still has', async () => {
    for (const stubs of [{}, { hotplugMountError: 'other' }, { SyncVirtualMachineError: 'no' }]) {
      const disks = [
        { Alias: { Name: 'attached' }, Source: { File: '/disk.img' }, Target: { Device: 'sda' } },
        { Alias: { Name: 'empty-cdrom' }, Source: {}, Target: { Device: 'sdb' } },
      ];
      const kubevirt = { UID: 'uid-1' };
      const domain = aDomain(
        'Running',
        'Unknown',
        {},
        {
          Spec: { Devices: { Disks: disks }, Metadata: { KubeVirt: kubevirt } },
        },
      );
      const world = await keep(stubs, aVmi(), domain);
      expect(world.unmounted.map((attached) => [...attached])).toEqual([['attached']]);
    }
    const both = await keep({ SyncVirtualMachineError: 'no', hotplugUnmountError: 'um' });
    expect(both.error).toBe('no');
  });

  it('a memory dump is asked for on every pass while it is in progress', async () => {
    const vmi = aVmi({
      status: {
        volumeStatus: [
          {
            name: 'dump',
            target: '',
            phase: 'MemoryDumpInProgress',
            memoryDumpVolume: { targetFileName: 'f.dump' },
          },
        ],
      },
    });
    const world = await keep({}, vmi);
    expect(world.calls).toContain(
      'launcher.VirtualMachineMemoryDump /var/run/kubevirt/hotplug-disks/dump/f.dump',
    );
  });

  it('AFT-046 NET-029 SR-IOV devices are plugged until domain and pod agree, and nothing but the clock is needed', async () => {
    const sriov = (infoSource: string) =>
      aVmi({
        spec: { domain: { devices: { interfaces: [{ name: 'vf', sriov: {} }] } } },
        status: { interfaces: [{ name: 'vf', infoSource }] },
      });
    const world = new World();
    world.stubs = { HotplugHostDevicesError: 'no' };
    world.put(sriov('multus-status'));
    world.domains.set(key, aDomain('Running'));
    const plugs = () => world.calls.filter((call) => call === 'launcher.HotplugHostDevices').length;
    /** A pass; how long the key then waits in the queue. */
    const pass = async () => {
      world.expected.clear();
      const before = world.requeues.length;
      expect(await world.pass()).toBeNull();
      return world.requeues[before]?.seconds;
    };
    for (const [failures, wait] of [3.001, 5.401, 9.721].entries()) {
      const seconds = await pass();
      expect(plugs()).toBe(failures + 1);
      expect(seconds).toBeCloseTo(wait, 2);
      // An event in between changes nothing.
      world.now += 1000;
      expect(await pass()).toBeCloseTo(wait - 1, 2);
      expect(plugs()).toBe(failures + 1);
      world.now += Math.round(((seconds ?? 0) - 1) * 1000);
    }
    // That the launcher took it is not enough.
    world.stubs = {};
    await pass();
    world.now += 18_000;
    await pass();
    expect(plugs()).toBe(5);
    world.put(sriov('domain, multus-status'));
    expect(await pass()).toBeUndefined();
    expect(plugs()).toBe(5);
    // Forgotten with that: the next device is plugged at once.
    world.put(sriov('multus-status'));
    expect(await pass()).toBeCloseTo(3.001, 2);
    expect(plugs()).toBe(6);
  });

  it('REC-038 a limit that cannot be raised for SR-IOV is an event of its own', async () => {
    const vmi = aVmi({
      spec: { domain: { devices: { interfaces: [{ name: 'vf', sriov: {} }] } } },
      status: { interfaces: [{ name: 'vf', infoSource: 'multus-status' }] },
    });
    const world = await keep({ adjustResourcesError: 'memlock' }, vmi);
    expect(world.error).toBeNull();
    expect(world.events).toEqual([{ type: 'Warning', reason: 'memlock', message: 'memlock' }]);
    expect(world.calls).not.toContain('launcher.HotplugHostDevices');
  });

  it('networks are set up in the order of the interfaces', async () => {
    const parts = {
      spec: {
        domain: {
          devices: {
            interfaces: [
              { name: 'gone', bridge: {}, state: 'absent' },
              { name: 'b', bridge: {} },
              { name: 'a', masquerade: {} },
              { name: 'orphan', bridge: {} },
            ],
          },
        },
        networks: [{ name: 'a' }, { name: 'b' }, { name: 'gone' }],
      },
      status: {
        interfaces: [
          { name: 'gone', infoSource: 'multus-status' },
          { name: 'a', infoSource: 'domain' },
          { name: 'b', infoSource: 'multus-status, guest-agent' },
        ],
      },
    };
    const starting = new World();
    starting.put(aVmi({ ...parts, phase: 'Scheduled' }));
    await starting.pass();
    expect(starting.calls).toContain('network.Setup b a');
    const running = new World();
    running.put(aVmi(parts));
    running.domains.set(key, aDomain('Running'));
    await running.pass();
    expect(running.calls).toContain('network.Setup b gone');
  });
});
