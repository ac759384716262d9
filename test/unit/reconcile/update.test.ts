import { describe, expect, it } from 'vitest';
import { decide } from '../../../agent/reconcile/decide.js';
import { hotplugVolumesReady, waitsForAttestation } from '../../../agent/reconcile/update/starting.js';
import { aDomain, aVmi, deleting } from './objects.js';
import { key, World } from './world.js';

const networks = {
  domain: { devices: { interfaces: [{ name: 'default', masquerade: {} }] } },
  networks: [{ name: 'default', pod: {} }],
};
const now = Date.parse('2000-01-01T00:00:00Z');

describe('the branch', () => {
  const marked = { GracePeriod: { DeletionGracePeriodSeconds: 30, MarkedForGracefulShutdown: true } };
  const branch = (vmi: ReturnType<typeof aVmi> | undefined, domain: ReturnType<typeof aDomain> | undefined) =>
    decide({ vmi, domain, phase: vmi?.status.phase, now }).branch;

  it('REC-014 shutdown comes before destroy, delete and update', () => {
    const lost = aDomain('Paused', 'PostcopyFailed');
    expect(branch(undefined, lost)).toBe('shutdown');
    expect(branch(aVmi({ metadata: deleting }), lost)).toBe('shutdown');
    expect(branch(aVmi({ phase: 'Failed', metadata: deleting }), aDomain('Running'))).toBe('shutdown');
    expect(branch(aVmi(), aDomain('Running', 'Unknown', marked))).toBe('shutdown');
    expect(branch(aVmi({ phase: 'Scheduled' }), aDomain('Running', 'Unknown', marked))).toBe('update');
  });

  it('REC-014 destroy comes before delete and update, delete before update', () => {
    expect(branch(aVmi(), aDomain('Paused', 'PostcopyFailed'))).toBe('destroy');
    expect(branch(aVmi({ phase: 'Failed' }), aDomain('Paused', 'PostcopyFailed'))).toBe('destroy');
    expect(branch(aVmi({ phase: 'Succeeded' }), aDomain('Running'))).toBe('delete');
    expect(branch(aVmi(), aDomain('Shutoff', 'Shutdown'))).toBe('delete');
    expect(branch(aVmi(), aDomain('Shutoff', 'Unknown', marked))).toBe('delete');
    expect(branch(undefined, undefined)).toBe('delete');
    expect(branch(aVmi(), aDomain('Running'))).toBe('update');
  });

  it('REC-015 a phase to be changed is written first, without an update', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled' }));
    world.domains.set(key, aDomain('Running'));
    await world.pass();
    expect(world.synced).toEqual([]);
    expect(world.puts.map(({ status }) => status.phase)).toEqual(['Running']);
    world.echo();
    await world.pass();
    expect(world.synced).toHaveLength(1);
  });
});

describe('starting', () => {
  const start = async (stubs: World['stubs'] = {}, vmi = aVmi({ phase: 'Scheduled', spec: networks })) => {
    const world = new World();
    world.stubs = stubs;
    world.put(vmi);
    return Object.assign(world, { error: await world.pass() });
  };
  const steps = [
    'clients.Get',
    'containerDisk.Ready',
    'containerDisk.MountAndVerify',
    'hotplug.Mount',
    'network.Setup default',
    'chown /dev/kvm',
    'hypervisor.AdjustResources',
    'nodeHook.PreVMStart',
    'launcher.SyncVirtualMachine',
    'hypervisor.HandleHousekeeping',
  ];
  const stepsOf = (world: World) => world.calls.filter((call) => steps.includes(call));

  it('REC-016 REC-038 its steps have one order, and Created follows', async () => {
    const world = await start();
    expect(stepsOf(world)).toEqual(steps);
    expect(world.events).toEqual([
      { type: 'Normal', reason: 'Created', message: 'VirtualMachineInstance defined.' },
    ]);
    expect(world.marks).toEqual([
      'launcher ready (launcher)',
      'connected (helper)',
      'container disks ready (helper)',
      'container disks mounted (helper)',
      'network set up (helper)',
      'devices claimed (helper)',
      'sync sent (agent)',
      'sync done (launcher)',
    ]);
  });

  it.each([
    [{ launcherClientInfoNil: true }, 1, []],
    [{ containerDisksReady: false }, 2, [1]],
    [{ containerDisksReadyError: 'still not ready' }, 2, []],
    [{ containerDiskMountError: 'mnt' }, 3, []],
    [{ hotplugMountError: 'other' }, 4, []],
    [{ networkSetupError: 'net' }, 5, []],
    [{ chownErrors: { '/dev/kvm': 'EPERM' } }, 6, []],
    [{ adjustResourcesError: 'adj' }, 7, []],
    [{ PreVMStartHookError: 'hook' }, 8, []],
  ] as const)('REC-016 %j stops after %i steps', async (stubs, done, requeues) => {
    const world = await start(stubs as World['stubs']);
    expect(stepsOf(world)).toEqual(steps.slice(0, done));
    expect(world.requeues).toEqual(requeues.map((seconds) => ({ key, seconds })));
    expect(world.rateLimited).toBe('launcherClientInfoNil' in stubs ? 1 : 0);
  });

  it('REC-017 waiting for a hotplug mount continues and comes back in a second', async () => {
    const world = await start({ hotplugMountError: 'ErrWaitingForHotplugMount' });
    expect(world.synced).toHaveLength(1);
    expect(world.requeues).toEqual([{ key, seconds: 1 }]);
    expect(world.events.map(({ reason }) => reason)).toEqual(['Created']);
  });

  it('REC-017 REC-038 a hotplug source that is gone is reported and the VM starts', async () => {
    const world = await start({ hotplugMountError: 'ErrNotExist' });
    expect(world.synced).toHaveLength(1);
    expect(world.events[0]).toEqual({
      type: 'Warning',
      reason: 'HotplugFailed',
      message: 'vol gone: file does not exist',
    });
  });

  it('REC-018 SEV attestation waits for session and certificate, without a timer', async () => {
    const sev = (fields: object) =>
      aVmi({
        phase: 'Scheduled',
        spec: {
          ...networks,
          domain: { ...networks.domain, launchSecurity: { sev: { attestation: {}, ...fields } } },
        },
      });
    for (const fields of [{}, { session: 'AAA' }, { dhCert: 'BBB' }, { session: '', dhCert: 'BBB' }]) {
      const world = await start({ sevDevice: true }, sev(fields));
      expect(world.error).toBeNull();
      expect(world.synced).toEqual([]);
      expect(world.requeues).toEqual([]);
      expect(world.rateLimited).toBe(0);
    }
    const complete = await start({ sevDevice: true }, sev({ session: 'AAA', dhCert: 'BBB' }));
    expect(complete.synced).toHaveLength(1);
    const snp = aVmi({
      spec: { domain: { devices: {}, launchSecurity: { snp: {}, sev: { attestation: {} } } } },
    });
    expect(waitsForAttestation(snp)).toBe(false);
  });

  it('hotpluggable volumes hold the start until all are in the pod', () => {
    const vmi = (volumes: object[], volumeStatus: object[], utilityVolumes: object[] = []) =>
      aVmi({ phase: 'Scheduled', spec: { volumes, utilityVolumes }, status: { volumeStatus } });
    const claim = { name: 'v', persistentVolumeClaim: { claimName: 'p', hotpluggable: true } };
    const status = (phase: string) => ({ name: 'v', target: '', hotplugVolume: {}, phase });
    expect(hotplugVolumesReady(vmi([claim], []))).toBe(false);
    expect(hotplugVolumesReady(vmi([claim], [status('Bound')]))).toBe(false);
    expect(hotplugVolumesReady(vmi([claim], [status('MountedToPod')]))).toBe(true);
    expect(hotplugVolumesReady(vmi([claim], [status('Ready'), { name: 'w', target: '' }]))).toBe(true);
    expect(hotplugVolumesReady(vmi([], [], [{ name: 'u', claimName: 'c' }]))).toBe(false);
    expect(hotplugVolumesReady(vmi([{ name: 'c', containerDisk: { image: 'i' } }], []))).toBe(true);
  });

  it('REC-033 a critical network error fails the VMI in the same write', async () => {
    const world = await start({ networkSetupCriticalError: 'net' });
    expect(world.error).toBe('failed to configure vmi network: Critical network error: net');
    expect(world.puts.map(({ status }) => status.phase)).toEqual(['Failed']);
    expect(world.puts[0]?.status.conditions?.find(({ type }) => type === 'Synchronized')?.status).toBe(
      'False',
    );
    expect(world.events.map(({ reason }) => reason)).toEqual(['SyncFailed', 'Stopped']);
  });

  it('REC-033 so does firmware that does not exist for Secure Boot', async () => {
    const world = await start({ SyncVirtualMachineError: 'command SyncVMI failed: "EFI OVMF rom missing"' });
    expect(world.puts[0]?.status.phase).toBe('Failed');
    expect(world.error).toMatch(/^mismatch of Secure Boot setting and bootloaders: /);
  });

  it('REC-033 and a guest that post-copy lost', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled' }));
    world.domains.set(key, aDomain('Paused', 'PostcopyFailed'));
    expect(await world.pass()).toBe('VMI is irrecoverable due to failed post-copy migration');
    expect(world.puts[0]?.status.phase).toBe('Failed');
    expect(world.calls).toContain('launcher.KillVirtualMachine');
  });

  it('REC-020 the launcher gets host disks, the API its own volumes', async () => {
    const volume = { name: 'v', persistentVolumeClaim: { claimName: 'c' } };
    const vmi = aVmi({
      phase: 'Scheduled',
      spec: { ...networks, volumes: [volume] },
      status: {
        volumeStatus: [
          {
            name: 'v',
            target: '',
            persistentVolumeClaimInfo: { preallocated: true, capacity: { storage: '2Gi' } },
          },
        ],
      },
    });
    const world = await start({}, vmi);
    expect(world.synced[0]?.vmi.spec.volumes).toEqual([
      {
        name: 'v',
        hostDisk: {
          path: '/var/run/kubevirt-private/vmi-disks/v/disk.img',
          type: 'DiskOrCreate',
          capacity: '2Gi',
          shared: false,
        },
      },
    ]);
    expect(world.synced[0]?.options.PreallocatedVolumes).toEqual(['v']);
    expect(world.puts[0]?.spec.volumes).toEqual([volume]);
    expect(vmi.spec.volumes).toEqual([volume]);
  });
});

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

  it('AFT-034 the device policy is applied in every pass while a block volume is plugged', async () => {
    const plugged = {
      name: 'hot',
      hotplugVolume: {},
      persistentVolumeClaimInfo: { volumeMode: 'Block' },
      phase: 'Ready',
    };
    const vmi = (...volumeStatus: object[]) => aVmi({ status: { volumeStatus } as never });
    expect((await keep({}, vmi())).policies).toEqual([]);
    const world = await keep({}, vmi(plugged));
    expect(world.policies).toEqual(['uid-1']);
    world.echo();
    world.put(vmi(plugged));
    await world.pass();
    expect(world.policies).toEqual(['uid-1', 'uid-1']);
    // What cannot be allowed is not given to the VM.
    const refused = await keep({ devicePolicyError: 'disk of the host' }, vmi(plugged));
    expect(refused.error).toBe('disk of the host');
    expect(refused.synced).toEqual([]);
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
