import { describe, expect, it } from 'vitest';
import { type JsonObject, vmiOf } from '../../vectors/objects.js';
import { FakeLauncherFiles } from './fakes.js';

const nonRoot = { runtimeUser: 107 };
const block = { persistentVolumeClaimInfo: { volumeMode: 'Block' } };
const noNetwork = { devices: { autoattachPodInterface: false } };

function vmi(spec: JsonObject, status: JsonObject = {}) {
  return vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { domain: noNetwork, ...spec },
    status: { ...nonRoot, ...status },
  });
}

describe('block volumes', () => {
  const volumes = [
    { name: 'first', persistentVolumeClaim: { claimName: 'a' } },
    { name: 'second', dataVolume: { name: 'b' } },
    { name: 'third', persistentVolumeClaim: { claimName: 'c' } },
    { name: 'fourth', ephemeral: { persistentVolumeClaim: { claimName: 'd' } } },
    { name: 'plugged', persistentVolumeClaim: { claimName: 'e', hotpluggable: true } },
    { name: 'files', ephemeral: { persistentVolumeClaim: { claimName: 'f' } } },
  ];
  const volumeStatus = [
    ...['first', 'second', 'third', 'fourth'].map((name) => ({ name, target: '', ...block })),
    { name: 'plugged', target: '', hotplugVolume: {}, ...block },
    { name: 'files', target: '', persistentVolumeClaimInfo: { volumeMode: 'Filesystem' } },
  ];

  it('AFT-040 each one that is there is owned, whatever kind of claim it is and whichever is missing', async () => {
    const nodes = ['second', 'third', 'fourth', 'plugged', 'files'].map((name) => `/dev/${name}`);
    const launcher = new FakeLauncherFiles(new Set(['/dev/kvm', ...nodes]));
    expect(await launcher.ownership().claim(vmi({ volumes }, { volumeStatus }), 0)).toBe(true);
    expect(launcher.calls).toEqual(['/dev/kvm', ...nodes.slice(0, 3)].map((path) => `chown ${path}`));
    expect(launcher.lines).toHaveLength(1);
    expect(launcher.lines[0]).toContain('the launcher has no device node of block volume first');
  });

  it('a claim without status is an error, a DataVolume or ephemeral one is not', async () => {
    const launcher = new FakeLauncherFiles(new Set(['/dev/kvm', '/dev/first']));
    const [first] = volumeStatus;
    const claiming = launcher.ownership().claim(vmi({ volumes }, { volumeStatus: [first ?? {}] }), 0);
    await expect(claiming).rejects.toThrow('missing volume status for volume third');
    expect(launcher.calls).toEqual(['chown /dev/kvm', 'chown /dev/first']);
  });
});

describe('host disks', () => {
  const claimed = {
    path: '/var/run/kubevirt-private/vmi-disks/c/disk.img',
    type: 'DiskOrCreate',
    capacity: '1Mi',
  };

  it('only the directory of a claim is given away, and only what was missing is made', async () => {
    const volumes = [
      { name: 'c', hostDisk: claimed },
      { name: 'node', hostDisk: { path: '/data/vm/disk.img', type: 'DiskOrCreate', capacity: '2Mi' } },
      { name: 'old', hostDisk: { path: '/data/old.img', type: 'Disk' } },
    ];
    const launcher = new FakeLauncherFiles(new Set(['/dev/kvm', '/dev/vfio/vfio', '/dev/vfio/7']));
    await launcher.ownership().claim(vmi({ volumes }), 0);
    const disks = '/var/run/kubevirt-private/vmi-disks';
    expect(launcher.calls).toEqual([
      'chown /dev/kvm',
      `create ${disks}/c/disk.img 1048576`,
      `create ${disks}/node/disk.img 2097152`,
      `chown ${disks}/c`,
      'chown /dev/vfio/7',
    ]);
    launcher.nodeDirectories.add('c');
    expect(await launcher.ownership().claim(vmi({ volumes }), 0)).toBe(true);
    expect(launcher.lines.at(-1)).toContain(
      'the directory of volume c keeps its owner: kubelet has not mounted',
    );
    launcher.nodeDirectories.clear();
    launcher.serverDirectories.add('c');
    expect(await launcher.ownership().claim(vmi({ volumes }), 0)).toBe(true);
    expect(launcher.lines.at(-1)).toContain('the directory of volume c keeps its owner: the server');
  });

  it('a capacity that is no size is an error', async () => {
    const volumes = [{ name: 'c', hostDisk: { ...claimed, capacity: 'many' } }];
    const claiming = new FakeLauncherFiles(new Set(['/dev/kvm'])).ownership().claim(vmi({ volumes }), 0);
    await expect(claiming).rejects.toThrow(
      'preparing host-disks failed: the capacity of host disk c is no size: many',
    );
  });
});

describe('virtiofs sockets', () => {
  const domain = { devices: { autoattachPodInterface: false, filesystems: [{ name: 'a' }, { name: 'b' }] } };
  const socket = (name: string) => `/var/run/kubevirt/virtiofs-containers/${name}.sock`;

  it('are waited for quietly for a minute, and the others are given away meanwhile', async () => {
    const launcher = new FakeLauncherFiles(new Set(['/dev/kvm', socket('b')]));
    const ownership = launcher.ownership();
    launcher.now = 59_999;
    expect(await ownership.claim(vmi({ domain }), 0)).toBe(false);
    expect(launcher.calls).toEqual(['chown /dev/kvm', `chown ${socket('b')}`]);
    expect(launcher.lines.at(-1)).toContain('virtiofs container of filesystem a does not listen yet');
    launcher.now = 60_000;
    await expect(ownership.claim(vmi({ domain }), 0)).rejects.toThrow(
      'virtiofs container of filesystem a does not listen yet',
    );
  });
});

it('the device of the hypervisor that the cluster uses is the one that must be there', async () => {
  const kvm = new FakeLauncherFiles(new Set(['/dev/mshv']));
  await kvm.ownership({ hypervisor: 'hyperv-direct' }).claim(vmi({}), 0);
  expect(kvm.calls).toEqual(['chown /dev/mshv']);
  const none = new FakeLauncherFiles(new Set(['/dev/kvm']));
  await expect(none.ownership({ hypervisor: 'hyperv-direct' }).claim(vmi({}), 0)).rejects.toThrow(
    'failed to set up file ownership for /dev/mshv: failed opening mshv for path root: launcher, relative: /dev/mshv: no such file or directory',
  );
});
