/**
 * A node that is switched over from virt-handler while its VMs run, and back. virt-handler mounts on the host, from
 * where the mounts come into the launcher; the helper has a mount namespace of its own.
 */
import {
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { unmountBelow } from '../harness/pods/mounts.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { failureOf, HelperProcess } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '2f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f23' };

describe.runIf(process.getuid?.() === 0)('taking over from virt-handler', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let base: string;
  let pod: Pod;
  let launcherPid: number;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(StorageService);
  const mountDisk = () => client().mountContainerDisks({ pod: ref(), disks: [{ volumeIndex: 0 }] });
  const volume = (name = '') => join(pod.emptyDir('container-disks'), name);
  const seen = (name: string) => `/proc/${launcherPid}/root/run/kubevirt/container-disks/${name}`;
  const record = () => join(helper.stateDir, vmi.vmiUid);
  /** Mounts of images in the mount namespace of a process. */
  const mountsOf = (pid: number | 'self') =>
    readFileSync(`/proc/${pid}/mountinfo`, 'utf8')
      .split('\n')
      .flatMap(
        (line) => /container-disks\/(disk_\d\.img|kernel-boot\/\S+) (\S+)/.exec(line)?.slice(1, 3) ?? [],
      );
  /** What virt-handler does: a file, and the image bound over it on the host. */
  async function mountOnHost(name: string, image: string): Promise<void> {
    writeFileSync(volume(name), '', { flag: 'a' });
    await run('mount', ['--bind', '-o', 'ro', join(base, image), volume(name)]);
  }

  beforeAll(async () => {
    base = mkdtempSync(join(tmpdir(), 'vp-over-'));
    for (const [name, file] of [
      ['disk', 'disk/disk.raw'],
      ['boot', 'boot/vmlinuz'],
    ] as const) {
      mkdirSync(join(base, name, file, '..'), { recursive: true });
      writeFileSync(join(base, name, file), `the ${name}`, { mode: 0o444 });
    }
    node = await createNode();
    helper = new HelperProcess(node.podsDir, {
      prefix: ['unshare', '--mount', '--propagation', 'slave', '--'],
    });
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    await unmountBelow(base);
    rmSync(base, { recursive: true, force: true });
  });
  beforeEach(async () => {
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.8',
      containerDisks: [{ index: 0, rootfs: join(base, 'disk') }],
    });
    await pod.startImage('kernel-boot-volume', 'kernel-boot', {}, join(base, 'boot'));
    launcherPid = (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid;
    await helper.start();
  });
  afterEach(async () => {
    // Its mount namespace may have the number of one that a container had before.
    await helper.stop('SIGKILL');
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
    for (const name of ['disk', 'boot']) {
      for (const made of readdirSync(join(base, name))) {
        if (made !== name) rmSync(join(base, name, made), { recursive: true });
      }
    }
  });

  it('STO-015 AFT-033 finds its mounts, makes them read-only, and takes them off the host as well', async () => {
    const suffix = 'volumes/kubernetes.io~empty-dir/container-disks';
    const entry = (name: string, socket: string) => ({
      targetFile: volume(name),
      socketFile: `/pods/${pod.uid}/${suffix}/${socket}`,
    });
    const text = JSON.stringify({
      mountTargetEntries: [entry('kernel-boot', 'kernel-boot.sock'), entry('disk_0.img', 'disk_0.sock')],
      usesSafePaths: true,
    });
    mkdirSync(volume('kernel-boot'), { mode: 0o755 });
    await mountOnHost('disk_0.img', 'disk/disk/disk.raw');
    await mountOnHost('kernel-boot/vmlinuz', 'boot/boot/vmlinuz');
    writeFileSync(record(), text, { mode: 0o600 });
    const { uid, gid } = { uid: 65530, gid: 65530 };
    chownSync(record(), uid, gid);
    // It came into both other mount namespaces.
    for (const pid of [launcherPid, helper.pid, 'self'] as const) expect(mountsOf(pid)).toHaveLength(4);

    const images = { pod: ref(), disks: [{ volumeIndex: 0 }], kernelArtifacts: ['/boot/vmlinuz'] };
    expect(await client().mountContainerDisks(images)).toMatchObject({ changed: false });
    expect(mountsOf(launcherPid)).toHaveLength(4);
    expect(readFileSync(seen('disk_0.img'), 'utf8')).toBe('the disk');
    expect(() => writeFileSync(seen('disk_0.img'), 'x')).toThrow(/EROFS/);
    expect(readFileSync(record(), 'utf8')).toBe(text);

    expect(await client().unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    for (const pid of [launcherPid, helper.pid, 'self'] as const) expect(mountsOf(pid)).toEqual([]);
    expect(readdirSync(volume())).toEqual([]);
    expect(existsSync(record())).toBe(false);
    expect(readFileSync(join(base, 'disk/disk/disk.raw'), 'utf8')).toBe('the disk');
  });

  it('STO-008 does not take another image for the one that is to be mounted', async () => {
    writeFileSync(join(base, 'other'), 'other');
    await mountOnHost('disk_0.img', 'other');
    expect(await failureOf(mountDisk())).toMatchObject({
      refused: true,
      unchanged: true,
      errnoName: 'EPERM',
    });
    expect(mountsOf(launcherPid)).toHaveLength(2);
    expect(await client().unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    for (const pid of [launcherPid, helper.pid, 'self'] as const) expect(mountsOf(pid)).toEqual([]);
  });

  it('STO-015 hands back: what virt-handler mounts and unmounts then leaves the mounts of the VM', async () => {
    await mountDisk();
    const text = readFileSync(record(), 'utf8');
    await helper.stop();
    expect(readFileSync(record(), 'utf8')).toBe(text);
    // On the host nothing is mounted, so virt-handler mounts once more.
    expect(mountsOf('self')).toEqual([]);
    await mountOnHost('disk_0.img', 'disk/disk/disk.raw');
    expect(readFileSync(seen('disk_0.img'), 'utf8')).toBe('the disk');
    await run('umount', [volume('disk_0.img')]);
    expect(readFileSync(seen('disk_0.img'), 'utf8')).toBe('the disk');
    expect(() => writeFileSync(seen('disk_0.img'), 'x')).toThrow(/EROFS/);
    // Its last step at the end of the VM: files and sockets of the record. The mount goes with its mount point.
    const { mountTargetEntries } = JSON.parse(text);
    for (const { targetFile, socketFile } of mountTargetEntries) {
      rmSync(targetFile);
      rmSync(join(node.podsDir, socketFile.slice('/pods/'.length)));
    }
    expect(mountsOf(launcherPid)).toEqual([]);
    await pod.containers.get('volumedisk0')?.exited;
  });
});
