/** Volumes with a file system that are plugged into a running launcher, between whole pods. */
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createAttachment, startAttachment } from '../harness/pods/attachment.js';
import { run, signal, waitFor } from '../harness/pods/run.js';
import { PluggingNode, refused, vmi } from './hotplug-fixture.js';
import { failureOf, qemuUser } from './privhelper-fixture.js';

const { CHANGED, UNCHANGED, NOT_READY, MISSING } = PlugOutcome;

const endingListener = `
import ctypes, os, socket, threading
os.umask(0)
listener = socket.socket(socket.AF_UNIX)
listener.bind('/path/hp.sock')
listener.listen(8)
def serve():
    while True: listener.accept()
threading.Thread(target=serve).start()
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone
`;

describe.runIf(process.getuid?.() === 0)('hot-plugged volumes', () => {
  let at: PluggingNode;

  beforeAll(async () => {
    at = await PluggingNode.start();
  });
  afterAll(async () => {
    await at?.stop();
  });
  beforeEach(async () => {
    await at.createPods();
  });
  afterEach(async () => {
    expect(await at.destroyPods()).toEqual([]);
  });

  it('STO-020 show the claim in the launcher alone, writable, as its user, and go without a trace', async () => {
    expect(await at.plug('data')).toBe(CHANGED);
    expect(readFileSync(at.seen('data.img'), 'utf8')).toBe('image of data');
    const { uid, gid } = statSync(join(at.claim('data'), 'disk.img'));
    expect([uid, gid]).toEqual([qemuUser, qemuUser]);
    expect(at.mounts().map((line) => line.split(' ')[5])).toEqual([
      'rw,nosuid,nodev,noexec,relatime,nosymfollow',
    ]);
    // On the host there is only what it is mounted on.
    expect(statSync(at.hostPath('data.img')).size).toBe(0);
    await run('nsenter', [
      `--mount=/proc/${at.launcher.pid}/ns/mnt`,
      'sh',
      '-c',
      'echo from within >/run/kubevirt/hotplug-disks/data.img',
    ]);
    expect(readFileSync(join(at.claim('data'), 'disk.img'), 'utf8')).toBe('from within\n');
    expect(JSON.parse(readFileSync(at.record(), 'utf8'))).toEqual({
      mountTargetEntries: [at.entry('data.img')],
      usesSafePaths: true,
    });
    // Again: nothing is stacked, and the attachment pod may be gone.
    await at.attachment.destroy();
    expect(await at.plug('data')).toBe(UNCHANGED);
    expect(at.mounts()).toHaveLength(1);
    expect(await at.list()).toEqual([['data', 'DISK', true, true]]);
    expect(await at.unplug('data')).toBe(true);
    expect(at.mounts()).toEqual([]);
    expect(existsSync(at.hostPath('data.img'))).toBe(false);
    expect(existsSync(at.record())).toBe(false);
    expect(await at.unplug('data')).toBe(false);
    writeFileSync(join(at.claim('data'), 'disk.img'), 'image of data');
  });

  it('STO-022 are directories where the launcher writes files into them', async () => {
    expect(await at.plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    await run('nsenter', [
      `--mount=/proc/${at.launcher.pid}/ns/mnt`,
      ...['setpriv', `--reuid=${qemuUser}`, `--regid=${qemuUser}`, '--clear-groups', '--'],
      ...['touch', '/run/kubevirt/hotplug-disks/dump/memory.dump'],
    ]);
    expect(existsSync(join(at.claim('dump'), 'memory.dump'))).toBe(true);
    expect(await at.list()).toEqual([['dump', 'DIRECTORY', true, true]]);
    expect(await at.unplug('dump', PlugKind.DIRECTORY)).toBe(true);
    expect(existsSync(at.hostPath('dump'))).toBe(false);
  });

  it('STO-021 AFT-036 wait for their attachment pod, each for itself', async () => {
    const late = await createAttachment(at.node, { podIP: '10.244.2.11', claims: [], late: true });
    expect(await at.plug('more', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await at.plug('data', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await at.plug('empty')).toBe(MISSING);
    expect(await at.plug('data')).toBe(CHANGED);
    expect(JSON.parse(readFileSync(at.record(), 'utf8')).mountTargetEntries).toEqual([at.entry('data.img')]);
    expect(readdirSync(at.pod.emptyDir('hotplug-disks'))).toEqual(['data.img']);
    // One that is ending: its first thread, by which a process is known, has gone and another one still listens.
    const ending = await late.startContainer({
      name: 'ending',
      setup: ['hostToContainer', late.emptyDir('hotplug-disks'), '/path'],
      command: ['/usr/bin/python3', '-c', endingListener],
    });
    await waitFor('the first thread to end', 20_000, () =>
      /^State:\tZ/m.test(readFileSync(`/proc/${ending.pid}/status`, 'utf8')),
    );
    expect(await at.plug('more', PlugKind.DISK, late)).toBe(NOT_READY);
    signal(ending.pid, 'SIGKILL');
    await ending.exited;
    rmSync(join(late.emptyDir('hotplug-disks'), 'hp.sock'));
    await startAttachment(late, [{ name: 'more', directory: at.claim('more') }]);
    // Mounted before its container started, or never.
    expect(await at.plug('absent', PlugKind.DISK, late)).toBe(NOT_READY);
    expect(await at.plug('more', PlugKind.DISK, late)).toBe(CHANGED);
    expect((await at.client().unplugAll({ pod: at.ref() })).problems).toEqual([]);
    expect(await at.list()).toEqual([]);
    expect(at.mounts()).toEqual([]);
  });

  it('STO-023 go with their record and files when kubelet has removed directories under a living launcher', async () => {
    expect(await at.plug('data')).toBe(CHANGED);
    rmdirSync(join(at.pod.emptyDir('public'), 'hotplug-disks'));
    expect(at.mounts()).toEqual([]);
    expect(await at.list()).toEqual([['data', 'DISK', false, true]]);
    expect((await at.client().unplugAll({ pod: at.ref() })).problems).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
    expect(readdirSync(at.pod.emptyDir('hotplug-disks'))).toEqual([]);
  });

  it('STO-023 that another handler mounted on the host are taken over, and go there too', async () => {
    for (const name of ['data.img', 'gone.img']) writeFileSync(at.hostPath(name), '');
    await run('mount', ['--bind', join(at.claim('data'), 'disk.img'), at.hostPath('data.img')]);
    // As virt-handler wrote it before it used safe paths.
    writeFileSync(
      at.record(),
      JSON.stringify({
        mountTargetEntries: [at.entry('data.img'), at.entry('gone.img'), at.entry('missing.img')],
      }),
    );
    expect(at.mounts()).toHaveLength(1);
    expect(await at.facts()).toEqual([
      { volume: 'data', present: true, known: false },
      { volume: 'gone', present: true, known: false },
      { volume: 'missing', present: false, known: false },
    ]);
    expect(await at.plug('data')).toBe(UNCHANGED);
    expect(at.mounts()).toHaveLength(1);
    expect(await at.list()).toEqual([
      ['data', 'DISK', true, true],
      ['gone', 'DISK', false, true],
      ['missing', 'DISK', false, true],
    ]);
    at.launcher.crash();
    await at.launcher.exited;
    expect(await at.client().unplugAll({ pod: at.ref() })).toMatchObject({ changed: true, problems: [] });
    expect(readdirSync(at.pod.emptyDir('hotplug-disks'))).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
    expect(await at.client().unplugAll({ pod: at.ref() })).toMatchObject({ changed: false });
  });

  it('STO-015 whose record cannot be read are found in the pod', async () => {
    expect(await at.plug('data')).toBe(CHANGED);
    writeFileSync(at.record(), '{"mountTargetEntr');
    expect(await at.list()).toEqual([['data', 'DISK', true, true]]);
    expect(await at.plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    expect(JSON.parse(readFileSync(at.record(), 'utf8')).mountTargetEntries).toEqual([
      at.entry('data.img'),
      at.entry('dump'),
    ]);
    writeFileSync(at.record(), '');
    expect((await at.client().unplugAll({ pod: at.ref() })).problems).toEqual([]);
    expect(at.mounts()).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
  });

  it('AFT-009 whose disk.img is anything but a file of the claim fail alone', async () => {
    const canary = join(at.claims, 'canary');
    writeFileSync(canary, 'canary');
    const image = join(at.claim('empty'), 'disk.img');
    const places: (() => void)[] = [
      () => symlinkSync(canary, image),
      () => symlinkSync('/etc/passwd', image),
      () => symlinkSync('/dev/null', image),
      () => mkdirSync(image),
      () => symlinkSync('.', image),
    ];
    for (const put of places) {
      put();
      expect(await failureOf(at.plug('empty'))).toMatchObject(refused);
      expect(await at.list()).toEqual([]);
      rmSync(image, { recursive: true });
    }
    await run('mknod', [image, 'b', '7', '0']);
    expect(await failureOf(at.plug('empty'))).toMatchObject(refused);
    rmSync(image);
    // A file of another mount in its place.
    writeFileSync(image, '');
    const attached = at.attachment.containers.get('hotplug-disk')?.pid;
    await run('nsenter', [
      `--mount=/proc/${attached}/ns/mnt`,
      'mount',
      '--bind',
      '/etc/passwd',
      '/empty/disk.img',
    ]);
    expect(await failureOf(at.plug('empty'))).toMatchObject({ ...refused, errnoName: 'EXDEV' });
    rmSync(image);
    // Directories of the container, and what is mounted in every one.
    await run('nsenter', [
      `--mount=/proc/${attached}/ns/mnt`,
      'sh',
      '-c',
      'mkdir /fake; echo >/fake/disk.img; mkdir /kernel; mount -t proc kernel /kernel',
    ]);
    expect(await failureOf(at.plug('fake'))).toMatchObject({ ...refused, operation: '/fake is not a mount' });
    expect(await failureOf(at.plug('kernel', PlugKind.DIRECTORY))).toMatchObject({
      ...refused,
      operation: '/kernel is a kernel file system',
    });
    expect(readFileSync(canary, 'utf8')).toBe('canary');
    expect(statSync(canary).uid).toBe(0);
    expect(at.mounts()).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
    expect(await at.plug('data')).toBe(CHANGED);
  });

  it('STO-033 come from the attachment pods of the launcher pod only', async () => {
    const other = await at.node.createPod({
      name: 'virt-launcher-vm2-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.12',
    });
    await startLauncher(other, { ...vmi, name: 'vm2', machine: 'fake' });
    const into = { podUid: other.uid, vmiUid: '4f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f40' };
    expect(await at.plug('data')).toBe(CHANGED);
    const foreign = { ...refused, field: 'attachment_pod_uid' };
    expect(await failureOf(at.plug('data', PlugKind.DISK, at.attachment, into))).toMatchObject(foreign);
    expect(await failureOf(at.plug('more', PlugKind.DISK, other))).toMatchObject(refused);
    // A process of another pod behind hp.sock.
    const borrowed = await createAttachment(at.node, { podIP: '10.244.2.13', claims: [], late: true });
    linkSync(
      join(at.attachment.emptyDir('hotplug-disks'), 'hp.sock'),
      join(borrowed.emptyDir('hotplug-disks'), 'hp.sock'),
    );
    expect(await failureOf(at.plug('dump', PlugKind.DIRECTORY, borrowed))).toMatchObject(refused);
    expect(existsSync(join(other.emptyDir('hotplug-disks'), 'data.img'))).toBe(false);
    expect(await at.list()).toEqual([['data', 'DISK', true, true]]);
  });

  it('AFT-033 of a VM that moves to another pod and back are mounted once in each, and nothing stays', async () => {
    const target = await at.node.createPod({
      name: 'virt-launcher-vm1-fghij',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.16',
    });
    const second = await startLauncher(target, { ...vmi, machine: 'fake' });
    const moved = await createAttachment(at.node, {
      podIP: '10.244.2.17',
      claims: [{ name: 'data', directory: at.claim('data') }],
    });
    const there = { podUid: target.uid, vmiUid: vmi.vmiUid };
    const countIn = (pid: number) =>
      readFileSync(`/proc/${pid}/mountinfo`, 'utf8')
        .split('\n')
        .filter((line) => line.includes('/hotplug-disks/')).length;
    for (let round = 0; round < 2; round += 1) {
      expect(await at.plug('data')).toBe(CHANGED);
      expect(await at.plug('data', PlugKind.DISK, moved, there)).toBe(CHANGED);
      expect([countIn(at.launcher.pid), countIn(second.pid)]).toEqual([1, 1]);
      expect(JSON.parse(readFileSync(at.record(), 'utf8')).mountTargetEntries).toHaveLength(2);
      expect(await at.client().unplugAll({ pod: at.ref() })).toMatchObject({ changed: true, problems: [] });
      expect([countIn(at.launcher.pid), countIn(second.pid)]).toEqual([0, 1]);
      expect(await at.client().unplugAll({ pod: there })).toMatchObject({ changed: true, problems: [] });
    }
    expect(existsSync(at.record())).toBe(false);
    expect(existsSync(join(target.emptyDir('hotplug-disks'), 'data.img'))).toBe(false);
  });

  it('are not put over what a launcher has made of their place', async () => {
    const canary = join(at.claims, 'target');
    writeFileSync(canary, 'target');
    symlinkSync(canary, at.hostPath('data.img'));
    expect(await failureOf(at.plug('data'))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
    expect(await at.unplug('data')).toBe(true);
    expect(readFileSync(canary, 'utf8')).toBe('target');
    mkdirSync(at.hostPath('data.img'));
    expect(await failureOf(at.plug('data'))).toMatchObject(refused);
    rmSync(at.hostPath('data.img'), { recursive: true });
    // What the launcher keeps in a covered directory stays, and nothing waits for it.
    mkdirSync(at.hostPath('dump'));
    writeFileSync(join(at.hostPath('dump'), 'kept'), '');
    expect(await at.plug('dump', PlugKind.DIRECTORY)).toBe(CHANGED);
    expect((await at.client().unplugAll({ pod: at.ref() })).problems).toEqual([]);
    expect(readdirSync(at.hostPath('dump'))).toEqual(['kept']);
    // Its hotplug-disks is another one than the pod's volume.
    await run('nsenter', [
      `--mount=/proc/${at.launcher.pid}/ns/mnt`,
      'mount',
      '-t',
      'tmpfs',
      'fake',
      '/run/kubevirt/hotplug-disks',
    ]);
    expect(await failureOf(at.plug('data'))).toMatchObject({
      ...refused,
      operation: "hotplug-disks of launcher is not the pod's volume",
    });
  });
});
