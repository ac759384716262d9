/** Kernel and initrd from a container of the pod, in a whole pod. */
import {
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ContainerDiskState, StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { failureOf, HelperProcess, helperUser, qemuUser } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '2f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f21' };
const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };

describe.runIf(process.getuid?.() === 0)('kernel boot', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let directory: string;
  let pod: Pod;
  let launcherPid: number;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(StorageService);
  const mount = async (...kernelArtifacts: string[]) =>
    (await client().mountContainerDisks({ pod: ref(), kernelArtifacts })).changed;
  const unmount = async () => (await client().unmountContainerDisks({ pod: ref() })).changed;
  const volume = () => pod.emptyDir('container-disks');
  const record = () => join(helper.stateDir, vmi.vmiUid);
  const seen = (name: string) => `/proc/${launcherPid}/root/run/kubevirt/container-disks/kernel-boot/${name}`;
  /** Names that are mount points, as often as they are. */
  const mounted = () =>
    readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
      .split('\n')
      .flatMap((line) => /\/container-disks\/kernel-boot\/(\S+) /.exec(line)?.[1] ?? [])
      .sort();

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-kernel-'));
    writeFileSync(join(directory, 'kernel'), 'kernel');
    writeFileSync(join(directory, 'initrd'), 'initrd');
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });
  beforeEach(async () => {
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.9',
      kernelBoot: {
        '/boot/vmlinuz': join(directory, 'kernel'),
        '/boot/initrd.img': join(directory, 'initrd'),
      },
    });
    launcherPid = (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid;
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  it.each([
    ['kernel only', { vmlinuz: 'kernel' }],
    ['initrd only', { 'initrd.img': 'initrd' }],
    ['both', { 'initrd.img': 'initrd', vmlinuz: 'kernel' }],
  ])('STO-011 %s: exactly the configured files, once, read-only', async (_, files) => {
    expect(await client().statContainerDisks({ pod: ref(), kernelBoot: true })).toMatchObject({
      states: [ContainerDiskState.READY],
    });
    for (const changed of [true, false]) {
      expect(await mount(...Object.keys(files).map((name) => `/boot/${name}`))).toBe(changed);
      expect(mounted()).toEqual(Object.keys(files).sort());
    }
    for (const [name, content] of Object.entries(files)) {
      expect(readFileSync(seen(name), 'utf8')).toBe(content);
      expect(() => writeFileSync(seen(name), 'x')).toThrow(/EROFS/);
    }
    const options = readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/kernel-boot/'))
      .map((line) => line.split(' ')[5]?.split(','));
    for (const each of options)
      expect(each).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec']));

    const target = statSync(join(volume(), 'kernel-boot'));
    expect([target.uid, target.gid, target.mode & 0o7777]).toEqual([0, 0, 0o755]);
    expect(readdirSync(join(volume(), 'kernel-boot')).sort()).toEqual(Object.keys(files).sort());
    for (const name of Object.keys(files)) {
      expect(statSync(join(volume(), 'kernel-boot', name)).mode & 0o7777).toBe(0o655);
    }
    const suffix = 'volumes/kubernetes.io~empty-dir/container-disks/kernel-boot';
    expect(readFileSync(record(), 'utf8')).toBe(
      JSON.stringify({
        mountTargetEntries: [
          {
            targetFile: `${node.podsDir}/${pod.uid}/${suffix}`,
            socketFile: `/pods/${pod.uid}/${suffix}.sock`,
          },
        ],
        usesSafePaths: true,
      }),
    );

    expect(await unmount()).toBe(true);
    expect(mounted()).toEqual([]);
    expect(readdirSync(volume())).toEqual([]);
    expect(existsSync(record())).toBe(false);
    await pod.containers.get('kernel-boot-volume')?.exited;
  });

  it('STO-011 what an earlier attempt left is completed and nothing is stacked', async () => {
    // The directory of an attempt that ended before it gave it away, and a mount point without a mount.
    mkdirSync(join(volume(), 'kernel-boot'));
    writeFileSync(join(volume(), 'kernel-boot/vmlinuz'), '');
    expect(await mount('/boot/initrd.img')).toBe(true);
    await helper.stop('SIGKILL');
    await helper.start();
    expect(await mount('/boot/initrd.img')).toBe(false);
    expect(await mount('/boot/vmlinuz')).toBe(true);
    expect(mounted()).toEqual(['initrd.img', 'vmlinuz']);
    expect(await unmount()).toBe(true);
    expect(mounted()).toEqual([]);
  });

  it('STO-012 STO-008 unmounting is idempotent and tolerates what is missing or in the way', async () => {
    await mount('/boot/vmlinuz');
    // Stacked by a careless predecessor, and the directory gone from under a record.
    await run('nsenter', [
      `--mount=/proc/${launcherPid}/ns/mnt`,
      ...['mount', '--bind', '/etc/passwd', '/run/kubevirt/container-disks/kernel-boot/vmlinuz'],
    ]);
    expect(mounted()).toEqual(['vmlinuz', 'vmlinuz']);
    expect(await unmount()).toBe(true);
    expect(await unmount()).toBe(false);

    writeFileSync(record(), JSON.stringify({ mountTargetEntries: [], usesSafePaths: true }));
    chownSync(record(), helperUser, helperUser);
    expect(await unmount()).toBe(false);
    rmSync(record());

    // What the launcher makes of the names keeps nobody from cleaning up.
    mkdirSync(join(volume(), 'kernel-boot/own'), { recursive: true });
    mkdirSync(join(volume(), 'disk_3.img'));
    writeFileSync(join(volume(), 'kernel-boot/file'), '');
    writeFileSync(join(volume(), 'disk_4.img'), '');
    expect(await unmount()).toBe(true);
    expect(readdirSync(volume()).sort()).toEqual(['disk_3.img', 'kernel-boot']);
    rmSync(join(volume(), 'kernel-boot'), { recursive: true });
    symlinkSync('/etc', join(volume(), 'kernel-boot'));
    expect(await unmount()).toBe(false);
    expect(existsSync('/etc/passwd')).toBe(true);
  });

  it('STO-011 names like those of kernel boot are left alone', async () => {
    for (const name of ['my-kernel-boot', 'kernel-boot2']) {
      mkdirSync(join(volume(), name));
      writeFileSync(join(volume(), name, 'vmlinuz'), name);
    }
    await mount('/boot/vmlinuz');
    await unmount();
    expect(readdirSync(volume()).sort()).toEqual(['kernel-boot2', 'my-kernel-boot']);
    expect(readFileSync(join(volume(), 'kernel-boot2/vmlinuz'), 'utf8')).toBe('kernel-boot2');
  });

  it('STO-033 what is not a file of the image, or no directory to mount in, is refused and changes nothing', async () => {
    const root = `/proc/${pod.containers.get('kernel-boot-volume')?.pid}/root`;
    symlinkSync('/etc/passwd', join(root, 'boot/away'));
    mkdirSync(join(root, 'boot/directory'));
    for (const [path, errnoName] of [
      ['/boot/away', 'EXDEV'],
      ['/boot/directory', 'EINVAL'],
      ['/proc/self/root/etc/passwd', 'EXDEV'],
    ]) {
      expect([path, await failureOf(mount(path ?? ''))]).toMatchObject([path, { ...refused, errnoName }]);
    }
    expect(await failureOf(mount('/boot/none'))).toMatchObject({ code: Code.NotFound, unchanged: true });
    expect(readdirSync(volume())).toEqual(['kernel-boot.sock']);

    const outside = join(directory, 'outside');
    mkdirSync(outside);
    symlinkSync(outside, join(volume(), 'kernel-boot'));
    expect(await failureOf(mount('/boot/vmlinuz'))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
    expect(readdirSync(outside)).toEqual([]);
    rmSync(join(volume(), 'kernel-boot'));
    writeFileSync(join(volume(), 'kernel-boot'), '');
    expect(await failureOf(mount('/boot/vmlinuz'))).toMatchObject({ errnoName: 'ENOTDIR', unchanged: true });
    rmSync(join(volume(), 'kernel-boot'));
    // A directory that the launcher made stays its own.
    mkdirSync(join(volume(), 'kernel-boot'));
    await run('chown', [`${qemuUser}:${qemuUser}`, join(volume(), 'kernel-boot')]);
    expect(await mount('/boot/vmlinuz')).toBe(true);
    expect(statSync(join(volume(), 'kernel-boot')).uid).toBe(qemuUser);
    const line = await helper.audited(
      'refusal',
      ({ method, decision }) => method === 'StorageService.MountContainerDisks' && decision === 'refused',
    );
    expect(line).toMatchObject({ pod: pod.uid });
  });
});
