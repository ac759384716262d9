/** Pods without image volumes: disk, kernel and initrd are mounted by the node, which also tells their checksums. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { buildGuestDisk, guestLines } from '../harness/guest/disk.js';
import { unmountBelow } from '../harness/pods/mounts.js';
import { run, waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

const sparseBytes = 300 << 20;

let system: System;
let directory: string;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'old-pods-'));
  for (const name of ['disk', 'kernel', 'initrd']) writeFileSync(join(directory, name), `the ${name}`);
  writeFileSync(join(directory, 'sparse'), '');
  truncateSync(join(directory, 'sparse'), sparseBytes);
  system = await System.create();
  system.api.store.put('kubevirts', {
    apiVersion: 'kubevirt.io/v1',
    kind: 'KubeVirt',
    metadata: { namespace: 'kubevirt', name: 'kubevirt' },
    spec: {
      configuration: {
        developerConfiguration: { useEmulation: true, disabledFeatureGates: ['ImageVolume'] },
      },
    },
  });
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  await unmountBelow(directory);
  rmSync(directory, { recursive: true });
  expect(await system.node.leftovers()).toEqual([]);
});

/** As virt-controller hands it over: each volume has its place in the status. */
function listed(vmi: Vmi): Vmi {
  return { ...vmi, status: { ...vmi.status, volumeStatus: [{ name: 'boot', target: '' }] } };
}

const checksumOf = (vmi: Vmi | undefined) => vmi?.status.volumeStatus?.[0]?.containerDiskVolume?.checksum;

async function end(vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
}

/** An overlay on an ext4 of its own with the guest's disk in the lower layer, as container runtimes lay images out. */
async function overlayWithGuest(): Promise<string> {
  const disk = join(directory, 'ext4');
  mkdirSync(disk);
  writeFileSync(`${disk}.img`, '');
  truncateSync(`${disk}.img`, 64 << 20);
  await run('mkfs.ext4', ['-q', `${disk}.img`]);
  await run('mount', ['-o', 'loop', `${disk}.img`, disk]);
  const [lower, upper, work, merged] = ['lower', 'upper', 'work', 'merged'].map((name) => join(disk, name));
  for (const each of [`${lower}/disk`, `${upper}`, `${work}`, `${merged}`])
    mkdirSync(each, { recursive: true });
  await buildGuestDisk({ path: `${lower}/disk/disk.img`, obeysAcpi: true });
  const options = `lowerdir=${lower},upperdir=${upper},workdir=${work}`;
  await run('mount', ['-t', 'overlay', 'overlay', '-o', options, `${merged}`]);
  return `${merged}`;
}

describe('a VM in a pod without image volumes', () => {
  it('AFT-038 boots its guest from an image on an overlay', async () => {
    const rootfs = await overlayWithGuest();
    const vm = await system.createVm({
      name: 'guest',
      podOptions: { containerDisks: [{ index: 0, rootfs }] },
    });
    await system.waitForPhase(vm, 'Running');
    await waitFor('the guest to boot', 60_000, () => vm.launcher.console().includes(guestLines.script));
    await end(vm);
  });

  it('STO-011 STO-014 boots from a kernel in a container, and its status tells the checksums', async () => {
    const vm = await system.createVm({
      name: 'kernel',
      machine: 'fake',
      podOptions: {
        containerDisks: [{ index: 0, image: join(directory, 'disk') }],
        kernelBoot: {
          '/boot/vmlinuz': join(directory, 'kernel'),
          '/boot/initrd': join(directory, 'initrd'),
        },
      },
      adapt: (guest) => {
        const vmi = listed(guest);
        const container = {
          image: 'harness/kernel:1',
          kernelPath: '/boot/vmlinuz',
          initrdPath: '/boot/initrd',
        };
        return {
          ...vmi,
          spec: { ...vmi.spec, domain: { ...vmi.spec.domain, firmware: { kernelBoot: { container } } } },
        };
      },
    });
    await system.waitForPhase(vm, 'Running');
    const seen = (path: string) =>
      readFileSync(`/proc/${vm.launcher.pid}/root/run/kubevirt/container-disks/${path}`, 'utf8');
    expect(['disk_0.img', 'kernel-boot/vmlinuz', 'kernel-boot/initrd'].map(seen)).toEqual([
      'the disk',
      'the kernel',
      'the initrd',
    ]);
    await system.waitForVmi(
      vm,
      'checksums',
      ({ status }) => status.kernelBootStatus?.initrdInfo?.checksum !== undefined,
    );
    const { status } = system.vmi(vm) as Vmi;
    expect(checksumOf(system.vmi(vm))).toBe(crc32('the disk'));
    expect(status.kernelBootStatus).toEqual({
      kernelInfo: { checksum: crc32('the kernel') },
      initrdInfo: { checksum: crc32('the initrd') },
    });
    await end(vm);
  });

  it('STO-014 has a big sparse disk, and neither it nor another VM waits for its checksum', async () => {
    const options = (image: string) => ({
      machine: 'fake' as const,
      podOptions: { containerDisks: [{ index: 0, image: join(directory, image) }] },
      adapt: listed,
    });
    const big = await system.createVm({ name: 'big', ...options('sparse') });
    const small = await system.createVm({ name: 'small', ...options('disk') });
    for (const vm of [big, small]) await system.waitForPhase(vm, 'Running');
    for (const vm of [big, small])
      await system.waitForVmi(vm, 'checksum', (vmi) => checksumOf(vmi) !== undefined);
    let expected = 0;
    const zeros = Buffer.alloc(1 << 20);
    for (let at = 0; at < sparseBytes; at += zeros.length) expected = crc32(zeros, expected);
    expect(checksumOf(system.vmi(big))).toBe(expected);
    expect(checksumOf(system.vmi(small))).toBe(crc32('the disk'));
    await Promise.all([end(big), end(small)]);
  });
});
