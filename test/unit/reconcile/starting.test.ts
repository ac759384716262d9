import { describe, expect, it } from 'vitest';
import { hotplugVolumesReady, waitsForAttestation } from '../../../agent/reconcile/update/starting.js';
import { aDomain, aVmi } from './objects.js';
import { key, World } from './world.js';

const networks = {
  domain: { devices: { interfaces: [{ name: 'default', masquerade: {} }] } },
  networks: [{ name: 'default', pod: {} }],
};
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
    [{ hotplugMountError: 'VolumeFailed' }, 4, []],
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
