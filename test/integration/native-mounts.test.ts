/** Container disks between the mount namespaces of two containers of one pod, by a locked-down helper. */
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { caps, NativeChild } from './native-child.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
const identify = { caps: caps('DAC_OVERRIDE', 'SYS_PTRACE'), deadlineMs: 5000 };
const mounting = {
  caps: caps('DAC_OVERRIDE', 'SYS_ADMIN', 'SYS_CHROOT', 'SYS_PTRACE'),
  deadlineMs: 60_000,
};
const content = Buffer.alloc(4096, 7);

describe('container disks', () => {
  let node: HarnessNode;
  let child: NativeChild;
  let pods: number;
  let image: string;

  beforeAll(async () => {
    image = join(mkdtempSync(join(tmpdir(), 'native-')), 'disk.raw');
    writeFileSync(image, content);
    node = await createNode();
    child = await NativeChild.start([node.podsDir]);
    [pods = -1] = await child.call<number[]>('directories');
  });
  afterEach(async () => {
    await node.destroyPods();
  });
  afterAll(async () => {
    await child?.stop();
    await node?.destroy();
    rmSync(join(image, '..'), { recursive: true, force: true });
  });

  let address = 40;
  const start = async (...indexes: number[]): Promise<[Pod, LauncherHandle, { readonly pidfd: number }]> => {
    const pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: `10.244.2.${address++}`,
      containerDisks: indexes.map((index) => ({ index, image })),
    });
    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    return [pod, launcher, await child.call('pinLauncher', identify, pods, pod.uid)];
  };
  const inLauncher = (launcher: LauncherHandle, script: string): Promise<string> =>
    run('nsenter', [`--mount=/proc/${launcher.pid}/ns/mnt`, 'sh', '-c', script]);
  const mountsOf = (launcher: LauncherHandle): string[] =>
    readFileSync(`/proc/${launcher.pid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/container-disks/disk_'));
  const imageOf = (index: number, imagePath = '') => ({ index, imagePath, name: '' });
  const mount = (pod: Pod, launcher: unknown, index: number, path = ''): Promise<boolean> =>
    child.call('mountContainerDisks', mounting, pods, pod.uid, launcher, [imageOf(index, path)]);
  const unmount = (pod: Pod, launcher: unknown): Promise<boolean> =>
    child.call('unmountContainerDisks', mounting, pods, pod.uid, launcher);
  /** Root of a container-disk container, for putting things into its image. */
  const imageRoot = (pod: Pod, index: number): string =>
    `/proc/${pod.containers.get(`volumedisk${index}`)?.pid}/root`;

  it('STO-009 appear read-only, nosuid, nodev and noexec in the launcher alone', async () => {
    const [pod, launcher, pinned] = await start(3);
    expect(await child.call('containerDiskStates', identify, pods, pod.uid, [3, 4, 3])).toEqual([
      'ready',
      'absent',
    ]);
    expect(await mount(pod, pinned, 3)).toBe(true);
    const [line = ''] = mountsOf(launcher);
    expect(line.split(' ')[4]).toBe('/run/kubevirt/container-disks/disk_3.img');
    expect(line.split(' ')[5]?.split(',')).toEqual(
      expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec', 'nosymfollow']),
    );
    const path = '/run/kubevirt/container-disks/disk_3.img';
    expect(await inLauncher(launcher, `sha256sum <${path}`)).toBe(
      await run('sh', ['-c', `sha256sum <${image}`]),
    );
    expect(await inLauncher(launcher, `echo x 2>&1 >>${path} || true`)).toContain('Read-only file system');
    // Nothing on the host: the mount goes with the launcher.
    expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain('disk_3.img');
    expect(readFileSync(join(pod.emptyDir('container-disks'), 'disk_3.img'))).toHaveLength(0);
  });

  it('STO-010 are mounted once however often', async () => {
    const [pod, launcher, pinned] = await start(0);
    expect(await mount(pod, pinned, 0)).toBe(true);
    expect(await mount(pod, pinned, 0)).toBe(false);
    expect(mountsOf(launcher)).toHaveLength(1);
  });

  it('STO-034 leave the main thread and the descriptors of the helper as they were', async () => {
    const [pod, , pinned] = await start(0);
    await mount(pod, pinned, 0);
    const before = [
      await child.call('namespaces'),
      await child.call('where'),
      await child.call('descriptors'),
    ];
    for (let round = 0; round < 5; round++) {
      const args = [mounting, pods, pod.uid, pinned, [imageOf(0)]];
      const outcomes = await child.call<string[]>('many', 200, 'mountContainerDisks', args);
      // The container-disk process takes its connections once a second; its backlog is part of the outcome.
      expect(outcomes.every((outcome) => ['false', 'EAGAIN', 'ETIMEDOUT'].includes(outcome))).toBe(true);
    }
    const after = [
      await child.call('namespaces'),
      await child.call('where'),
      await child.call('descriptors'),
    ];
    expect(after).toEqual(before);
    const threads = (await child.call<string[]>('threads')).filter((status) =>
      status.includes('privsep-root'),
    );
    expect(threads).toHaveLength(4);
    for (const status of threads) expect(status).toMatch(/^CapEff:\t0{16}$/m);
  });

  it('STO-013 are looked up inside the image only', async () => {
    const [pod, launcher, pinned] = await start(0, 1, 2, 4, 5);
    const found = async (index: number): Promise<string> =>
      inLauncher(launcher, `cat /run/kubevirt/container-disks/disk_${index}.img`);
    mkdirSync(`${imageRoot(pod, 0)}/data`);
    writeFileSync(`${imageRoot(pod, 0)}/data/custom`, 'custom');
    chmodSync(`${imageRoot(pod, 0)}/data/custom`, 0o444);
    symlinkSync('/data/custom', `${imageRoot(pod, 0)}/data/absolute`);
    symlinkSync('../../../../../data/custom', `${imageRoot(pod, 0)}/data/up`);
    symlinkSync('/etc/passwd', `${imageRoot(pod, 0)}/data/away`);
    symlinkSync('/data/none', `${imageRoot(pod, 0)}/data/dangling`);
    const refused: [string, string][] = [
      ['/data', 'EINVAL'], // a directory
      ['/data/none', 'ENOENT'],
      ['/data/dangling', 'ENOENT'],
      ['/data/away', 'EXDEV'], // /etc is a mount of the container, not of the image
      ['/proc/self/root/etc/passwd', 'EXDEV'],
      ['/dev/null', 'EXDEV'],
      ['/proc/1/environ', 'EXDEV'],
    ];
    for (const [path, code] of refused) {
      const failure = await mount(pod, pinned, 0, path).catch((error: unknown) => error);
      expect([path, failure]).toMatchObject([path, { code, unchanged: true }]);
    }
    expect(mountsOf(launcher)).toHaveLength(0);
    expect(await mount(pod, pinned, 0, '/data/up')).toBe(true);
    expect(await found(0)).toBe('custom');

    // "The only file of /disk": hidden files and directories count, a link is followed inside the image.
    rmSync(`${imageRoot(pod, 1)}/disk/disk.raw`);
    await expect(mount(pod, pinned, 1)).rejects.toMatchObject({
      code: 'ENOENT',
      operation: 'no file found in folder /disk, no disk present',
    });
    writeFileSync(`${imageRoot(pod, 2)}/disk/.hidden`, '');
    await expect(mount(pod, pinned, 2)).rejects.toMatchObject({
      operation: 'more than one file found in folder /disk, only one disk is allowed',
    });
    rmSync(`${imageRoot(pod, 4)}/disk/disk.raw`);
    writeFileSync(`${imageRoot(pod, 4)}/elsewhere`, 'elsewhere');
    chmodSync(`${imageRoot(pod, 4)}/elsewhere`, 0o444);
    symlinkSync('/elsewhere', `${imageRoot(pod, 4)}/disk/link`);
    expect(await mount(pod, pinned, 4)).toBe(true);
    expect(await found(4)).toBe('elsewhere');
    rmSync(`${imageRoot(pod, 5)}/disk`, { recursive: true });
    symlinkSync('/etc', `${imageRoot(pod, 5)}/disk`);
    await expect(mount(pod, pinned, 5)).rejects.toMatchObject({ code: 'EXDEV', refused: true });
  });

  it('STO-012 are unmounted for good, and their processes end', async () => {
    const [pod, launcher, pinned] = await start(0, 7);
    await mount(pod, pinned, 0);
    await mount(pod, pinned, 7);
    // A second mount on top, as a careless predecessor leaves it.
    await inLauncher(launcher, 'mount --bind /etc/passwd /run/kubevirt/container-disks/disk_7.img');
    const volume = pod.emptyDir('container-disks');
    writeFileSync(join(volume, 'kept'), '');
    expect(await unmount(pod, pinned)).toBe(true);
    expect(mountsOf(launcher)).toEqual([]);
    expect(readdirSync(volume)).toEqual(['kept']);
    for (const index of [0, 7]) await pod.containers.get(`volumedisk${index}`)?.exited;
    expect(await unmount(pod, pinned)).toBe(false);
    expect(await unmount(pod, null)).toBe(false);
  });

  it('STO-012 are unmounted whatever else the launcher has put beside them', async () => {
    const [pod, launcher, pinned] = await start(0, 999);
    await mount(pod, pinned, 0);
    await mount(pod, pinned, 999);
    const volume = pod.emptyDir('container-disks');
    const kernelBoot = join(volume, 'kernel-boot');
    mkdirSync(kernelBoot);
    const foreign = Array.from({ length: 10_000 }, (_, i) => `foreign-${i}`);
    for (const name of foreign) writeFileSync(join(volume, name), '');
    for (const name of foreign.slice(0, 4100)) writeFileSync(join(kernelBoot, name), '');
    expect(await unmount(pod, pinned)).toBe(true);
    expect(mountsOf(launcher)).toEqual([]);
    expect(readdirSync(volume).sort()).toEqual([...foreign, 'kernel-boot'].sort());
    expect(readdirSync(kernelBoot)).toHaveLength(4);
  });

  it('are cleaned up on the host after the launcher and after a handler that mounted there', async () => {
    const [pod, launcher, pinned] = await start(0);
    await mount(pod, pinned, 0);
    launcher.crash();
    await launcher.exited;
    const volume = pod.emptyDir('container-disks');
    await run('mount', ['--bind', image, join(volume, 'disk_0.img')]);
    expect(await unmount(pod, null)).toBe(true);
    expect(readdirSync(volume)).toEqual([]);
    expect(existsSync(image)).toBe(true);
  });

  it('from a user namespace that a process of the pod made are refused', async () => {
    const [pod, , pinned] = await start();
    const data = `/run/kubevirt-ephemeral-disks/container-disk-data/${vmi.vmiUid}`;
    const container = await pod.startContainer({
      name: 'volumedisk0',
      setup: ['copy', image, '/disk/disk.raw', 'volume', pod.emptyDir('container-disks'), data],
      command: [
        ...['unshare', '--user', '--mount', '--', '/harness/container-disk'],
        ...['--copy-path', `${data}/disk_0`],
      ],
    });
    await pod.waitForListener(container, 'disk_0.sock');
    await expect(mount(pod, pinned, 0)).rejects.toMatchObject({
      code: 'EPERM',
      operation: 'mount namespace of the pod belongs to another user namespace',
      refused: true,
    });
  });

  it('of another pod, of no listener and over something else are refused', async () => {
    const [pod, launcher, pinned] = await start(0);
    const [other, , foreign] = await start(1);
    const volume = pod.emptyDir('container-disks');
    await expect(mount(pod, pinned, 1)).rejects.toMatchObject({ code: 'ENOENT' });
    // A container-disk process of another pod behind the name.
    linkSync(join(other.emptyDir('container-disks'), 'disk_1.sock'), join(volume, 'disk_1.sock'));
    await expect(mount(pod, pinned, 1)).rejects.toMatchObject({
      code: 'EPERM',
      operation: 'cgroup of container-disk process',
      refused: true,
    });
    expect(await child.call('containerDiskStates', identify, pods, pod.uid, [1])).toEqual(['not-listening']);
    await expect(mount(pod, foreign, 0)).rejects.toMatchObject({ code: 'EPERM', refused: true });
    // The launcher's own process behind the name: not another container.
    rmSync(join(volume, 'disk_1.sock'));
    linkSync(join(pod.emptyDir('sockets'), 'launcher-sock'), join(volume, 'disk_2.sock'));
    await expect(mount(pod, pinned, 2)).rejects.toMatchObject({ code: 'EPERM', refused: true });
    // Something that is not a file in the place of the mount point.
    const point = join(volume, 'disk_0.img');
    symlinkSync(image, point);
    await expect(mount(pod, pinned, 0)).rejects.toMatchObject({ code: 'ELOOP', refused: true });
    rmSync(point);
    mkdirSync(point);
    await expect(mount(pod, pinned, 0)).rejects.toMatchObject({ code: 'EINVAL', refused: true });
    rmSync(point, { recursive: true });
    // The launcher's directory is another one than the pod's volume.
    await inLauncher(launcher, 'mount -t tmpfs fake /run/kubevirt/container-disks');
    await expect(mount(pod, pinned, 0)).rejects.toMatchObject({
      operation: "container-disks of launcher is not the pod's volume",
      refused: true,
      unchanged: true,
    });
  });
});
