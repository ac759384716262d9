/** What the helper shows of disk images, in a whole pod: content of container disks, sizes of ISOs. */
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type StatIsoRequestSchema, StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { failureOf, HelperProcess } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '2f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f20' };
const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };

describe.runIf(process.getuid?.() === 0)('images', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let directory: string;
  let pod: Pod;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(StorageService);
  const imageRoot = (container: string) => `/proc/${pod.containers.get(container)?.pid}/root`;

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-image-'));
    writeFileSync(join(directory, 'disk.raw'), Buffer.alloc(8192, 7));
    writeFileSync(join(directory, 'vmlinuz'), 'kernel');
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
      podIP: '10.244.2.7',
      containerDisks: [{ index: 2, image: join(directory, 'disk.raw') }],
    });
    await startLauncher(pod, { ...vmi, machine: 'fake' });
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  describe('of container disks', () => {
    const open = (imagePath = '', volumeIndex = 2) =>
      client().openContainerDisk({
        pod: ref(),
        container: { case: 'volumeIndex', value: volumeIndex },
        imagePath,
      });
    const openKernelBoot = (imagePath: string) =>
      client().openContainerDisk({ pod: ref(), container: { case: 'kernelBoot', value: {} }, imagePath });

    /** Claims the descriptor, hands it to `body` and closes it. */
    async function claimed<T>(answer: ReturnType<typeof open>, body: (fd: number) => T): Promise<T> {
      const { ticket } = await answer;
      const fd = await helper.claim(ticket?.value ?? new Uint8Array());
      try {
        return body(fd);
      } finally {
        helper.native.close(fd);
      }
    }

    it('are opened for reading, and by nobody for writing', async () => {
      await claimed(open(), (fd) => {
        expect(readFileSync(fd)).toEqual(readFileSync(join(directory, 'disk.raw')));
        // Root's own attempt, by the descriptor.
        expect(() => openSync(`/proc/self/fd/${fd}`, 'r+')).toThrow(/EROFS/);
        const flags = /flags:\s*0*(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '';
        // O_ACCMODE: reading only.
        expect(Number.parseInt(flags, 8) & 3).toBe(0);
      });
      // Nothing is mounted anywhere for it.
      expect(readFileSync(`/proc/${helper.pid}/mountinfo`, 'utf8')).not.toContain('disk.raw');
    });

    it('STO-013 are looked up inside the image only, to a regular file', async () => {
      const root = imageRoot('volumedisk2');
      mkdirSync(join(root, 'data'));
      writeFileSync(join(root, 'data/custom'), 'custom');
      symlinkSync('/data/custom', join(root, 'data/absolute'));
      symlinkSync('/etc/passwd', join(root, 'data/away'));
      await run('mkfifo', [join(root, 'data/fifo')]);
      await run('mknod', [join(root, 'data/null'), 'c', '1', '3']);
      expect(await claimed(open('/data/absolute'), (fd) => readFileSync(fd, 'utf8'))).toBe('custom');
      for (const [path, errnoName] of [
        ['/data', 'EINVAL'],
        ['/data/fifo', 'EINVAL'],
        ['/data/null', 'EINVAL'],
        ['/data/away', 'EXDEV'],
        ['/proc/self/root/etc/passwd', 'EXDEV'],
      ]) {
        expect([path, await failureOf(open(path))]).toMatchObject([path, { ...refused, errnoName }]);
      }
      expect(await failureOf(open('/data/none'))).toMatchObject({ code: Code.NotFound });
      expect(await failureOf(open('', 3))).toMatchObject({ code: Code.NotFound });
      writeFileSync(join(root, 'disk/second'), '');
      expect(await failureOf(open())).toMatchObject({ ...refused, errnoName: 'E2BIG' });
      await helper.audited(
        'refusal',
        (line) => line['method'] === 'StorageService.OpenContainerDisk' && line['decision'] === 'refused',
      );
    });

    it('are those of a container of their own, not of the launcher', async () => {
      writeFileSync(join(pod.emptyDir('container-disks'), 'disk_4.sock'), '');
      await run('mount', [
        '--bind',
        join(pod.emptyDir('sockets'), 'launcher-sock'),
        join(pod.emptyDir('container-disks'), 'disk_4.sock'),
      ]);
      try {
        expect(await failureOf(open('/etc/passwd', 4))).toMatchObject(refused);
      } finally {
        await run('umount', [join(pod.emptyDir('container-disks'), 'disk_4.sock')]);
      }
    });

    it('and kernels are opened in the kernel-boot container', async () => {
      expect(await failureOf(openKernelBoot('/boot/vmlinuz'))).toMatchObject({ code: Code.NotFound });
      await pod.startImage('kernel-boot-volume', 'kernel-boot', {
        '/boot/vmlinuz': join(directory, 'vmlinuz'),
      });
      expect(await claimed(openKernelBoot('/boot/vmlinuz'), (fd) => readFileSync(fd, 'utf8'))).toBe('kernel');
      expect(await failureOf(openKernelBoot('/boot/initrd'))).toMatchObject({ code: Code.NotFound });
    });
  });

  describe('in ISO files', () => {
    type Iso = NonNullable<MessageInitShape<typeof StatIsoRequestSchema>['iso']>;
    const names = { namespace: vmi.namespace, vmiName: vmi.name };
    const stat = (iso: Iso) => client().statIso({ pod: ref(), iso });
    const secret: Iso = { case: 'secretVolume', value: 'vol' };
    const secretPath = () => join(pod.emptyDir('private'), 'secret-disks/vol.iso');

    const isos: [string, Iso, 'private' | 'ephemeral-disks', string][] = [
      [
        'cloud-init (no cloud)',
        { case: 'cloudInitNoCloud', value: names },
        'ephemeral-disks',
        'cloud-init-data/default/vm1/noCloud.iso',
      ],
      [
        'cloud-init (config drive)',
        { case: 'cloudInitConfigDrive', value: names },
        'ephemeral-disks',
        'cloud-init-data/default/vm1/configdrive.iso',
      ],
      ['config map', { case: 'configMapVolume', value: 'vol' }, 'private', 'config-map-disks/vol.iso'],
      ['downward API', { case: 'downwardApiVolume', value: 'vol' }, 'private', 'downwardapi-disks/vol.iso'],
      ['secret', secret, 'private', 'secret-disks/vol.iso'],
      ['sysprep', { case: 'sysprepVolume', value: 'vol' }, 'private', 'sysprep-disks/vol.iso'],
      [
        'service account',
        { case: 'serviceAccount', value: {} },
        'private',
        'service-account-disk/service-account.iso',
      ],
    ];

    it('have a size, whoever may read them', async () => {
      for (const [i, [name, iso, volume, path]] of isos.entries()) {
        expect([name, await failureOf(stat(iso))]).toMatchObject([
          name,
          { code: Code.NotFound, refused: false },
        ]);
        const file = join(pod.emptyDir(volume), path);
        mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
        writeFileSync(file, Buffer.alloc(1000 + i), { mode: 0o600 });
        expect([name, await stat(iso)]).toMatchObject([name, { size: BigInt(1000 + i) }]);
      }
    });

    it('REC-051 are regular files that no link leads to', async () => {
      const outside = join(directory, 'outside');
      mkdirSync(outside, { recursive: true });
      writeFileSync(join(outside, 'vol.iso'), 'outside');
      symlinkSync(outside, dirname(secretPath()));
      expect(await failureOf(stat(secret))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
      rmSync(dirname(secretPath()));
      mkdirSync(dirname(secretPath()));
      symlinkSync(join(outside, 'vol.iso'), secretPath());
      expect(await failureOf(stat(secret))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
      rmSync(secretPath());
      await run('mkfifo', [secretPath()]);
      expect(await failureOf(stat(secret))).toMatchObject({ ...refused, errnoName: 'EINVAL' });
      const line = await helper.audited(
        'refusal',
        ({ method, decision }) => method === 'StorageService.StatIso' && decision === 'refused',
      );
      expect(line).toMatchObject({ pod: pod.uid });
      expect(await failureOf(stat({ case: 'secretVolume', value: '../x' }))).toMatchObject({
        code: Code.InvalidArgument,
        field: 'secret_volume',
      });
    });
  });
});
