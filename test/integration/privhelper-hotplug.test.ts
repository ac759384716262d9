/** Volumes that are plugged into a running launcher, between whole pods. */
import {
  chmodSync,
  existsSync,
  linkSync,
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
import { HotplugService, PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { createAttachment, startAttachment } from '../harness/pods/attachment.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { failureOf, HelperProcess, qemuUser } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '3f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f30' };
const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };
const { CHANGED, UNCHANGED, NOT_READY, MISSING } = PlugOutcome;

describe.runIf(process.getuid?.() === 0)('hot-plugged volumes', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let claims: string;
  let pod: Pod;
  let launcher: LauncherHandle;
  let attachment: Pod;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(HotplugService);
  const plug = async (volume: string, kind = PlugKind.DISK, from = attachment, into = ref()) =>
    (await client().plugFilesystem({ pod: into, attachmentPodUid: from.uid, volume, kind })).outcome;
  const unplug = async (volume: string, kind = PlugKind.DISK) =>
    (await client().unplug({ pod: ref(), volume, kind })).changed;
  const list = async () =>
    (await client().list({ pod: ref() })).volumes
      .map(({ volume, kind, plugged, recorded }) => [volume, PlugKind[kind], plugged, recorded])
      .sort();
  const claim = (name: string) => join(claims, name);
  const hostPath = (name: string) => join(pod.emptyDir('hotplug-disks'), name);
  const seen = (name: string) => `/proc/${launcher.pid}/root/run/kubevirt/hotplug-disks/${name}`;
  const record = () => join(helper.hotplugStateDir, vmi.vmiUid);
  const entry = (name: string) => ({ targetFile: hostPath(name) });
  const mounts = () =>
    readFileSync(`/proc/${launcher.pid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/hotplug-disks/'));

  /** A claim with a disk.img of the name's own content, owned by root. */
  function makeClaim(name: string): string {
    mkdirSync(claim(name));
    chmodSync(claim(name), 0o755);
    writeFileSync(join(claim(name), 'disk.img'), `image of ${name}`);
    return claim(name);
  }

  beforeAll(async () => {
    claims = mkdtempSync(join(tmpdir(), 'vp-claims-'));
    chmodSync(claims, 0o755);
    for (const name of ['data', 'dump', 'more']) makeClaim(name);
    mkdirSync(claim('empty'));
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    rmSync(claims, { recursive: true, force: true });
  });
  beforeEach(async () => {
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.9',
    });
    launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    attachment = await createAttachment(node, {
      podIP: '10.244.2.10',
      claims: ['data', 'dump', 'empty'].map((name) => ({ name, directory: claim(name) })),
    });
  });
  afterEach(async () => {
    await helper.client(HotplugService).unplugAll({ pod: ref() });
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  it('STO-020 show the claim in the launcher alone, writable, as its user, and go without a trace', async () => {
    expect(await plug('data')).toBe(CHANGED);
    expect(readFileSync(seen('data.img'), 'utf8')).toBe('image of data');
    const { uid, gid } = statSync(join(claim('data'), 'disk.img'));
    expect([uid, gid]).toEqual([qemuUser, qemuUser]);
    expect(mounts().map((line) => line.split(' ')[5])).toEqual([
      'rw,nosuid,nodev,noexec,relatime,nosymfollow',
    ]);
    // On the host there is only what it is mounted on.
    expect(statSync(hostPath('data.img')).size).toBe(0);
    await run('nsenter', [
      `--mount=/proc/${launcher.pid}/ns/mnt`,
      'sh',
      '-c',
      'echo from within >/run/kubevirt/hotplug-disks/data.img',
    ]);
    expect(readFileSync(join(claim('data'), 'disk.img'), 'utf8')).toBe('from within\n');
    expect(JSON.parse(readFileSync(record(), 'utf8'))).toEqual({
      mountTargetEntries: [entry('data.img')],
      usesSafePaths: true,
    });
    // Again: nothing is stacked, and the attachment pod may be gone.
    await attachment.destroy();
    expect(await plug('data')).toBe(UNCHANGED);
    expect(mounts()).toHaveLength(1);
    expect(await list()).toEqual([['data', 'DISK', true, true]]);
    expect(await unplug('data')).toBe(true);
    expect(mounts()).toEqual([]);
    expect(existsSync(hostPath('data.img'))).toBe(false);
    expect(existsSync(record())).toBe(false);
    expect(await unplug('data')).toBe(false);
    writeFileSync(join(claim('data'), 'disk.img'), 'image of data');
  });

  it('STO-022 are directories where the launcher writes files into them', async () => {
    expect(await plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    await run('nsenter', [
      `--mount=/proc/${launcher.pid}/ns/mnt`,
      ...['setpriv', `--reuid=${qemuUser}`, `--regid=${qemuUser}`, '--clear-groups', '--'],
      ...['touch', '/run/kubevirt/hotplug-disks/dump/memory.dump'],
    ]);
    expect(existsSync(join(claim('dump'), 'memory.dump'))).toBe(true);
    expect(await list()).toEqual([['dump', 'DIRECTORY', true, true]]);
    expect(await unplug('dump', PlugKind.DIRECTORY)).toBe(true);
    expect(existsSync(hostPath('dump'))).toBe(false);
  });

  it('STO-021 AFT-036 wait for their attachment pod, each for itself', async () => {
    const late = await createAttachment(node, { podIP: '10.244.2.11', claims: [], late: true });
    expect(await plug('more', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await plug('data', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await plug('empty')).toBe(MISSING);
    expect(await plug('data')).toBe(CHANGED);
    expect(JSON.parse(readFileSync(record(), 'utf8')).mountTargetEntries).toEqual([entry('data.img')]);
    expect(readdirSync(pod.emptyDir('hotplug-disks'))).toEqual(['data.img']);
    await startAttachment(late, [{ name: 'more', directory: claim('more') }]);
    // Mounted before its container started, or never.
    expect(await plug('absent', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await plug('more', PlugKind.DISK, late)).toBe(CHANGED);
    expect((await client().unplugAll({ pod: ref() })).problems).toEqual([]);
    expect(await list()).toEqual([]);
    expect(mounts()).toEqual([]);
  });

  it('STO-023 that another handler mounted on the host are taken over, and go there too', async () => {
    for (const name of ['data.img', 'gone.img']) writeFileSync(hostPath(name), '');
    await run('mount', ['--bind', join(claim('data'), 'disk.img'), hostPath('data.img')]);
    // As virt-handler wrote it before it used safe paths.
    writeFileSync(record(), JSON.stringify({ mountTargetEntries: [entry('data.img'), entry('gone.img')] }));
    expect(mounts()).toHaveLength(1);
    expect(await plug('data')).toBe(UNCHANGED);
    expect(mounts()).toHaveLength(1);
    expect(await list()).toEqual([
      ['data', 'DISK', true, true],
      ['gone', 'DISK', false, true],
    ]);
    launcher.crash();
    await launcher.exited;
    expect(await client().unplugAll({ pod: ref() })).toMatchObject({ changed: true, problems: [] });
    expect(readdirSync(pod.emptyDir('hotplug-disks'))).toEqual([]);
    expect(existsSync(record())).toBe(false);
    expect(await client().unplugAll({ pod: ref() })).toMatchObject({ changed: false });
  });

  it('STO-015 whose record cannot be read are found in the pod', async () => {
    expect(await plug('data')).toBe(CHANGED);
    writeFileSync(record(), '{"mountTargetEntr');
    expect(await list()).toEqual([['data', 'DISK', true, true]]);
    expect(await plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    expect(JSON.parse(readFileSync(record(), 'utf8')).mountTargetEntries).toEqual([
      entry('data.img'),
      entry('dump'),
    ]);
    writeFileSync(record(), '');
    expect((await client().unplugAll({ pod: ref() })).problems).toEqual([]);
    expect(mounts()).toEqual([]);
    expect(existsSync(record())).toBe(false);
  });

  it('AFT-009 whose disk.img is anything but a file of the claim fail alone', async () => {
    const canary = join(claims, 'canary');
    writeFileSync(canary, 'canary');
    const image = join(claim('empty'), 'disk.img');
    const places: (() => void)[] = [
      () => symlinkSync(canary, image),
      () => symlinkSync('/etc/passwd', image),
      () => symlinkSync('/dev/null', image),
      () => mkdirSync(image),
      () => symlinkSync('.', image),
    ];
    for (const put of places) {
      put();
      expect(await failureOf(plug('empty'))).toMatchObject(refused);
      expect(await list()).toEqual([]);
      rmSync(image, { recursive: true });
    }
    await run('mknod', [image, 'b', '7', '0']);
    expect(await failureOf(plug('empty'))).toMatchObject(refused);
    rmSync(image);
    // A file of another mount in its place.
    writeFileSync(image, '');
    const attached = attachment.containers.get('hotplug-disk')?.pid;
    await run('nsenter', [
      `--mount=/proc/${attached}/ns/mnt`,
      'mount',
      '--bind',
      '/etc/passwd',
      '/empty/disk.img',
    ]);
    expect(await failureOf(plug('empty'))).toMatchObject({ ...refused, errnoName: 'EXDEV' });
    rmSync(image);
    // Directories of the container, and what is mounted in every one.
    await run('nsenter', [
      `--mount=/proc/${attached}/ns/mnt`,
      'sh',
      '-c',
      'mkdir /fake; echo >/fake/disk.img; mkdir /kernel; mount -t proc kernel /kernel',
    ]);
    expect(await failureOf(plug('fake'))).toMatchObject({ ...refused, operation: '/fake is not a mount' });
    expect(await failureOf(plug('kernel', PlugKind.DIRECTORY))).toMatchObject({
      ...refused,
      operation: '/kernel is a kernel file system',
    });
    expect(readFileSync(canary, 'utf8')).toBe('canary');
    expect(statSync(canary).uid).toBe(0);
    expect(mounts()).toEqual([]);
    expect(existsSync(record())).toBe(false);
    expect(await plug('data')).toBe(CHANGED);
  });

  it('STO-033 come from the attachment pods of the launcher pod only', async () => {
    const other = await node.createPod({
      name: 'virt-launcher-vm2-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.12',
    });
    await startLauncher(other, { ...vmi, name: 'vm2', machine: 'fake' });
    const into = { podUid: other.uid, vmiUid: '4f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f40' };
    expect(await plug('data')).toBe(CHANGED);
    const foreign = { ...refused, field: 'attachment_pod_uid' };
    expect(await failureOf(plug('data', PlugKind.DISK, attachment, into))).toMatchObject(foreign);
    expect(await failureOf(plug('more', PlugKind.DISK, other))).toMatchObject(refused);
    // A process of another pod behind hp.sock.
    const borrowed = await createAttachment(node, { podIP: '10.244.2.13', claims: [], late: true });
    linkSync(
      join(attachment.emptyDir('hotplug-disks'), 'hp.sock'),
      join(borrowed.emptyDir('hotplug-disks'), 'hp.sock'),
    );
    expect(await failureOf(plug('dump', PlugKind.DIRECTORY, borrowed))).toMatchObject(refused);
    expect(existsSync(join(other.emptyDir('hotplug-disks'), 'data.img'))).toBe(false);
    expect(await list()).toEqual([['data', 'DISK', true, true]]);
  });

  it('AFT-033 of a VM that moves to another pod and back are mounted once in each, and nothing stays', async () => {
    const target = await node.createPod({
      name: 'virt-launcher-vm1-fghij',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.16',
    });
    const second = await startLauncher(target, { ...vmi, machine: 'fake' });
    const moved = await createAttachment(node, {
      podIP: '10.244.2.17',
      claims: [{ name: 'data', directory: claim('data') }],
    });
    const there = { podUid: target.uid, vmiUid: vmi.vmiUid };
    const countIn = (pid: number) =>
      readFileSync(`/proc/${pid}/mountinfo`, 'utf8')
        .split('\n')
        .filter((line) => line.includes('/hotplug-disks/')).length;
    for (let round = 0; round < 2; round += 1) {
      expect(await plug('data')).toBe(CHANGED);
      expect(await plug('data', PlugKind.DISK, moved, there)).toBe(CHANGED);
      expect([countIn(launcher.pid), countIn(second.pid)]).toEqual([1, 1]);
      expect(JSON.parse(readFileSync(record(), 'utf8')).mountTargetEntries).toHaveLength(2);
      expect(await client().unplugAll({ pod: ref() })).toMatchObject({ changed: true, problems: [] });
      expect([countIn(launcher.pid), countIn(second.pid)]).toEqual([0, 1]);
      expect(await client().unplugAll({ pod: there })).toMatchObject({ changed: true, problems: [] });
    }
    expect(existsSync(record())).toBe(false);
    expect(existsSync(join(target.emptyDir('hotplug-disks'), 'data.img'))).toBe(false);
  });

  it('are not put over what a launcher has made of their place', async () => {
    const canary = join(claims, 'target');
    writeFileSync(canary, 'target');
    symlinkSync(canary, hostPath('data.img'));
    expect(await failureOf(plug('data'))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
    expect(await unplug('data')).toBe(true);
    expect(readFileSync(canary, 'utf8')).toBe('target');
    mkdirSync(hostPath('data.img'));
    expect(await failureOf(plug('data'))).toMatchObject(refused);
    rmSync(hostPath('data.img'), { recursive: true });
    // What the launcher keeps in a covered directory stays, and nothing waits for it.
    mkdirSync(hostPath('dump'));
    writeFileSync(join(hostPath('dump'), 'kept'), '');
    expect(await plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    expect((await client().unplugAll({ pod: ref() })).problems).toEqual([]);
    expect(readdirSync(hostPath('dump'))).toEqual(['kept']);
    // Its hotplug-disks is another one than the pod's volume.
    await run('nsenter', [
      `--mount=/proc/${launcher.pid}/ns/mnt`,
      'mount',
      '-t',
      'tmpfs',
      'fake',
      '/run/kubevirt/hotplug-disks',
    ]);
    expect(await failureOf(plug('data'))).toMatchObject({
      ...refused,
      operation: "hotplug-disks of launcher is not the pod's volume",
    });
  });

  describe('in block mode', () => {
    const loops: string[] = [];
    let device: { major: number; minor: number };
    const source = (volume: string) => join(attachment.emptyDir('hotplug-disks'), volume);
    const plugBlock = async (volume: string, from = attachment, into = ref()) =>
      (await client().plugBlock({ pod: into, attachmentPodUid: from.uid, volume })).outcome;
    const remembered = () => {
      const file = join(helper.pluggedDevicesDir, pod.uid);
      return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).devices : [];
    };
    const makeNode = (path: string, type = 'b', { major, minor } = device) =>
      run('mknod', ['-m', '660', path, type, String(major), String(minor)]);

    async function loop(name: string): Promise<{ major: number; minor: number }> {
      const file = claim(`${name}.raw`);
      writeFileSync(file, Buffer.alloc(4 << 20));
      const path = (await run('losetup', ['--find', '--show', file])).trim();
      loops.push(path);
      return { major: 7, minor: Number(path.replace('/dev/loop', '')) };
    }

    beforeAll(async () => {
      device = await loop('block');
    });
    afterAll(async () => {
      for (const path of loops) await run('losetup', ['--detach', path]);
    });
    beforeEach(() => {
      mkdirSync(source('block'));
    });

    it('STO-017 are nodes with the numbers of the attachment pod’s, owned by the launcher’s user', async () => {
      const uid = '99999999-9999-4999-8999-999999999999';
      await makeNode(join(source('block'), uid));
      expect(await plugBlock('block')).toBe(CHANGED);
      const node = statSync(seen('block'));
      expect(node.isBlockDevice()).toBe(true);
      expect(node.rdev).toBe(statSync(join(source('block'), uid)).rdev);
      expect([node.uid, node.gid, node.mode & 0o777]).toEqual([qemuUser, qemuUser, 0o660]);
      expect(remembered()).toEqual([{ volume: 'block', ...device }]);
      expect(await list()).toEqual([['block', 'BLOCK', true, true]]);
      // The pod that it came from may be gone, and so may the helper that plugged it.
      await attachment.destroy();
      await helper.stop('SIGKILL');
      await helper.start();
      expect(await plugBlock('block')).toBe(UNCHANGED);
      expect(await unplug('block', PlugKind.BLOCK)).toBe(true);
      expect(existsSync(hostPath('block'))).toBe(false);
      expect(remembered()).toEqual([]);
      // Whoever has it unplugged is to deny it before it is forgotten.
      expect(await list()).toEqual([['block', 'DIRECTORY', false, true]]);
      expect(await unplug('block', PlugKind.BLOCK)).toBe(true);
      expect(existsSync(record())).toBe(false);
      expect(await unplug('block', PlugKind.BLOCK)).toBe(false);
    });

    it('wait for the attachment pod and its device', async () => {
      expect(await plugBlock('absent')).toBe(MISSING);
      expect((await failureOf(plugBlock('block'))).errnoName).toBe('ENODEV');
      const late = await createAttachment(node, { podIP: '10.244.2.14', claims: [], late: true });
      mkdirSync(join(late.emptyDir('hotplug-disks'), 'block'));
      expect(await plugBlock('block', late)).toBe(NOT_READY);
      expect(remembered()).toEqual([]);
      expect(existsSync(record())).toBe(false);
    });

    it('STO-033 that are no single block device of the attachment pod are refused', async () => {
      const canary = join(claims, 'block-canary');
      await makeNode(canary);
      const other = join(claims, 'block-directory');
      mkdirSync(other);
      await makeNode(join(other, 'device'));
      const in_ = (name: string) => join(source('block'), name);
      const places: (() => unknown)[] = [
        () => symlinkSync(canary, in_('a')),
        () => writeFileSync(in_('a'), ''),
        () => makeNode(in_('a'), 'c', { major: 1, minor: 1 }),
        () => mkdirSync(in_('a')),
        () => Promise.all([makeNode(in_('a')), makeNode(in_('b'))]),
      ];
      for (const put of places) {
        await put();
        expect(await failureOf(plugBlock('block'))).toMatchObject({ refused: true, unchanged: true });
        rmSync(source('block'), { recursive: true });
        mkdirSync(source('block'));
      }
      rmSync(source('block'), { recursive: true });
      symlinkSync(other, source('block'));
      expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
      expect(remembered()).toEqual([]);
      expect(readdirSync(pod.emptyDir('hotplug-disks'))).toEqual([]);
    });

    it('STO-033 that the host uses itself are refused', async () => {
      // The device of the host's root file system.
      const { dev } = statSync('/');
      await makeNode(join(source('block'), 'root'), 'b', { major: dev >> 8, minor: dev & 0xff });
      expect(await failureOf(plugBlock('block'))).toMatchObject({
        ...refused,
        field: 'volume',
        message: expect.stringContaining("the host's own"),
      });
      rmSync(join(source('block'), 'root'));
      await makeNode(join(source('block'), 'data'));
      await run('mkfs.ext4', ['-q', '-F', loops[0] ?? '']);
      const mounted = claim('mounted');
      mkdirSync(mounted);
      await run('mount', [loops[0] ?? '', mounted]);
      try {
        expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
      } finally {
        await run('umount', [mounted]);
      }
      expect(remembered()).toEqual([]);
      expect(existsSync(hostPath('block'))).toBe(false);
      expect(await plugBlock('block')).toBe(CHANGED);
    });

    it('STO-033 of another launcher’s attachment pod are refused', async () => {
      await makeNode(join(source('block'), 'data'));
      expect(await plugBlock('block')).toBe(CHANGED);
      const other = await node.createPod({
        name: 'virt-launcher-vm2-abcde',
        vmiUid: vmi.vmiUid,
        podIP: '10.244.2.15',
      });
      await startLauncher(other, { ...vmi, name: 'vm2', machine: 'fake' });
      const into = { podUid: other.uid, vmiUid: '5f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f50' };
      expect(await failureOf(plugBlock('block', attachment, into))).toMatchObject({
        ...refused,
        field: 'attachment_pod_uid',
      });
      expect(readdirSync(other.emptyDir('hotplug-disks'))).toEqual([]);
    });

    it('are not what a launcher has put in their place', async () => {
      await makeNode(join(source('block'), 'data'));
      const stranger = await loop('stranger');
      await makeNode(hostPath('block'), 'b', stranger);
      expect(await failureOf(plugBlock('block'))).toMatchObject({ ...refused, field: 'volume' });
      rmSync(hostPath('block'));
      const canary = join(claims, 'node-canary');
      await makeNode(canary, 'b', stranger);
      symlinkSync(canary, hostPath('block'));
      expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
      expect(statSync(canary).uid).toBe(0);
      rmSync(hostPath('block'));
      expect(remembered()).toEqual([]);
      // As virt-handler left it: it is the volume's, and remembered from now on.
      await makeNode(hostPath('block'));
      expect(await plugBlock('block')).toBe(CHANGED);
      expect(remembered()).toEqual([{ volume: 'block', ...device }]);
      // A name for more than one node is no place for the next.
      linkSync(hostPath('block'), hostPath('kept'));
      expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
      rmSync(hostPath('kept'));
      expect(await plugBlock('block')).toBe(UNCHANGED);
    });

    it('are not made where nobody could open them', async () => {
      await makeNode(join(source('block'), 'data'));
      const volume = pod.emptyDir('hotplug-disks');
      await run('mount', ['--bind', volume, volume]);
      await run('mount', ['-o', 'remount,bind,nodev', volume]);
      expect(await failureOf(plugBlock('block'))).toMatchObject({
        ...refused,
        operation: 'hotplug-disks is on a file system mounted nodev',
      });
      await run('umount', [volume]);
      expect(remembered()).toEqual([]);
      expect(existsSync(record())).toBe(false);
    });
  });
});
