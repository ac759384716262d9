import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { DisksInUse, hostMounts, useByHost } from '../../../privhelper/devices/disks-in-use.js';

describe('a disk of the host', () => {
  const podsDir = '/var/lib/kubelet/pods';
  const use = (mountPoint: string, more: object = {}, related = ['8:0', '8:1', '253:0']) => {
    const mountinfo = `30 1 8:1 / ${mountPoint} rw,relatime shared:1 - ext4 /dev/sda1 rw\n`;
    const facts = {
      mounts: hostMounts(mountinfo, podsDir),
      swaps: new Set<string>(),
      btrfs: new Set<string>(),
    };
    return useByHost({ ...facts, ...more }, related);
  };

  it.each([
    '/',
    '/boot/efi',
    '/var/lib/kubelet',
    podsDir,
    `${podsDir}-other/x/y`,
    '/var/lib/kubelet/plugins/x',
    '/mnt',
  ])('is one with a file system at %s', (mountPoint) => {
    expect(use(mountPoint)).toBe(`8:1 is mounted at ${mountPoint}`);
  });

  it.each([
    `${podsDir}/uid/volumes/kubernetes.io~csi/pvc/mount`,
    '/var/lib/kubelet/plugins/kubernetes.io/csi/driver/globalmount',
  ])("is not one with a volume's file system at %s", (mountPoint) => {
    expect(use(mountPoint)).toBeUndefined();
  });

  it('is one with swap or btrfs on a part of it or above', () => {
    const mountPoint = `${podsDir}/uid/volumes/x`;
    expect(use(mountPoint, { swaps: new Set(['253:0']) })).toBe('253:0 is swap space');
    expect(use(mountPoint, { btrfs: new Set(['8:0']) })).toBe('8:0 is part of a btrfs file system');
    expect(use('/', {}, ['8:16'])).toBeUndefined();
  });
});

describe('disks of the host, as sysfs shows them', () => {
  /** A disk 8:0 with partitions, one of them under a volume group; swap on another disk; a btrfs of two. */
  function kernel(directory: string): { sys: string; proc: string } {
    const sys = join(directory, 'sys');
    const device = (name: string, numbers: string, path = name) => {
      const real = join(sys, 'devices', path);
      mkdirSync(join(real, 'holders'), { recursive: true });
      writeFileSync(join(real, 'dev'), `${numbers}\n`);
      for (const [place, link] of [
        ['dev/block', numbers],
        ['class/block', name],
      ] as const) {
        mkdirSync(join(sys, place), { recursive: true });
        symlinkSync(real, join(sys, place, link));
      }
    };
    device('sda', '8:0');
    device('sda1', '8:1', 'sda/sda1');
    device('sda2', '8:2', 'sda/sda2');
    device('dm-0', '253:0');
    device('dm-1', '253:1');
    device('sdb', '8:16');
    device('sdc', '8:32');
    symlinkSync('../../../dm-0', join(sys, 'devices/sda/sda2/holders/dm-0'));
    symlinkSync('../../dm-1', join(sys, 'devices/dm-0/holders/dm-1'));
    mkdirSync(join(sys, 'fs/btrfs/1b4e28ba/devices'), { recursive: true });
    mkdirSync(join(sys, 'fs/btrfs/features'));
    symlinkSync('../../../../devices/sdc', join(sys, 'fs/btrfs/1b4e28ba/devices/sdc'));
    const swaps = 'Filename Type Size Used Priority\n/dev/sdb partition 1 0 -2\n/swapfile file 1 0 -3\n';
    writeFileSync(join(directory, 'swaps'), swaps);
    return { sys, proc: directory };
  }

  it('are found through partitions and what is made of them, swap and btrfs', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'sysfs-'));
    try {
      const mountinfo = join(directory, 'mountinfo');
      writeFileSync(mountinfo, '30 1 253:1 / / rw - ext4 /dev/mapper/root rw\n');
      const disks = new DisksInUse(mountinfo, '/var/lib/kubelet/pods', kernel(directory));
      const uses = async (...devices: string[]) =>
        disks.uses(
          devices.map((each) => {
            const [major = 0, minor = 0] = each.split(':').map(Number);
            return { major, minor };
          }),
        );
      const root = '253:1 is mounted at /';
      expect(await uses('8:0', '8:2', '253:0', '253:1')).toEqual([root, root, root, root]);
      expect(await uses('8:1', '8:48')).toEqual([undefined, undefined]);
      expect(await uses('8:16', '8:32')).toEqual([
        '8:16 is swap space',
        '8:32 is part of a btrfs file system',
      ]);
      expect(await uses()).toEqual([]);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
});
