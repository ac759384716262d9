/** Launcher pods as a locked-down helper meets them: pinning, brokered sockets, the notify socket, devices. */
import { execFileSync } from 'node:child_process';
import {
  existsSync,
  linkSync,
  mkdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { NetworkState, WriteOutcome } from '../../native/binding.js';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run, waitFor } from '../harness/pods/run.js';
import { caps, NativeChild } from './native-child.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
const identify = { caps: caps('DAC_OVERRIDE', 'SYS_PTRACE'), deadlineMs: 5000 };
const change = { caps: caps('CHOWN', 'DAC_OVERRIDE'), deadlineMs: 5000 };
const claim = { caps: caps('CHOWN', 'SYS_ADMIN', 'SYS_CHROOT', 'SYS_PTRACE'), deadlineMs: 5000 };
const pipe = 'domain-notify-pipe.sock';

interface Pinned {
  readonly pidfd: number;
  readonly mntns: number;
  readonly netns: number;
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

describe('launcher pods', () => {
  let node: HarnessNode;
  let child: NativeChild;
  let pods: number;
  const launchers: LauncherHandle[] = [];

  beforeAll(async () => {
    node = await createNode();
    child = await NativeChild.start([node.podsDir]);
    [pods = -1] = await child.call<number[]>('directories');
  });
  afterEach(async () => {
    launchers.length = 0;
    await node.destroyPods();
  });
  afterAll(async () => {
    await child?.stop();
    await node?.destroy();
  });

  let address = 10;
  const createPod = (): Promise<Pod> =>
    node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: `10.244.2.${address++}`,
    });
  const launch = async (pod: Pod): Promise<LauncherHandle> => {
    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    launchers.push(launcher);
    return launcher;
  };
  const pin = (pod: Pod): Promise<Pinned> => child.call('pinLauncher', identify, pods, pod.uid);
  const socketOf = (pod: Pod): string => join(pod.emptyDir('sockets'), 'launcher-sock');

  it('STO-001 pins the listener of launcher-sock with its namespaces', async () => {
    const pod = await createPod();
    expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject({
      code: 'ENOENT',
      operation: 'openat2 launcher-sock',
      refused: false,
    });
    const launcher = await launch(pod);
    const pinned = await pin(pod);
    expect(pinned).toMatchObject({ pid: launcher.pid, uid: 107, gid: 107 });
    const fdLink = (fd: number): string => readlinkSync(`/proc/${child.pid}/fd/${fd}`);
    expect(fdLink(pinned.mntns)).toBe(readlinkSync(`/proc/${launcher.pid}/ns/mnt`));
    expect(fdLink(pinned.netns)).toBe(readlinkSync(`/proc/${launcher.pid}/ns/net`));
    const again = await pin(pod);
    expect(again.pid).toBe(pinned.pid);
    await child.call('checkLauncher', identify, pinned, pod.uid);
    expect(await child.call('podState', identify, pods, pod.uid)).toEqual({
      directory: true,
      launcherSocket: 'present',
      unresponsiveMarker: false,
      containerDisks: [],
      kernelBoot: false,
      containerDiskBinary: false,
    });
  });

  it('STO-001 refuses a symlink, a FIFO and a file in the place of the socket', async () => {
    const pod = await createPod();
    await launch(pod);
    const other = await createPod();
    await launch(other);
    renameSync(socketOf(pod), join(pod.emptyDir('sockets'), 'real'));
    const places: [() => void, string][] = [
      [() => symlinkSync('real', socketOf(pod)), 'ELOOP'],
      [() => symlinkSync(socketOf(other), socketOf(pod)), 'ELOOP'],
      [() => execFileSync('mkfifo', [socketOf(pod)]), 'ENOTSOCK'],
      [() => writeFileSync(socketOf(pod), ''), 'ENOTSOCK'],
      [() => mkdirSync(socketOf(pod)), 'ENOTSOCK'],
    ];
    for (const [place, code] of places) {
      place();
      expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject({
        code,
        refused: true,
      });
      const { launcherSocket } = await child.call<{ launcherSocket: string }>(
        'podState',
        identify,
        pods,
        pod.uid,
      );
      expect(launcherSocket).toBe('refused');
      rmSync(socketOf(pod), { recursive: true });
    }
    // The directory itself.
    renameSync(pod.emptyDir('sockets'), join(pod.emptyDir('private'), 'sockets'));
    symlinkSync(other.emptyDir('sockets'), pod.emptyDir('sockets'));
    expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject({
      code: 'ELOOP',
      refused: true,
    });
  });

  it('STO-003 refuses a listener of another pod and of no pod', async () => {
    const pod = await createPod();
    const other = await createPod();
    await launch(other);
    writeFileSync(socketOf(pod), '');
    await run('mount', ['--bind', socketOf(other), socketOf(pod)]);
    const mounted = { code: 'EXDEV', operation: 'openat2 launcher-sock', refused: true };
    expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject(mounted);
    await run('umount', [socketOf(pod)]);
    rmSync(socketOf(pod));
    linkSync(socketOf(other), socketOf(pod));
    const foreign = { code: 'EPERM', operation: 'cgroup of launcher', refused: true };
    expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject(foreign);
    rmSync(socketOf(pod));
    // This test's own process, in no pod's cgroup; bound through a short path.
    const server = createServer((connection) => connection.destroy());
    const short = join(node.root, 's');
    symlinkSync(pod.emptyDir('sockets'), short);
    await new Promise<void>((resolve) => server.listen(join(short, 'launcher-sock'), resolve));
    try {
      expect(await child.failure('pinLauncher', identify, pods, pod.uid)).toMatchObject(foreign);
    } finally {
      await new Promise((resolve) => server.close(resolve));
      rmSync(short);
    }
    const pinned = await pin(other);
    expect(await child.failure('checkLauncher', identify, pinned, pod.uid)).toMatchObject(foreign);
  });

  it('STO-003 does nothing for a call that names a launcher which is not the pod, or has exited', async () => {
    const pod = await createPod();
    const launcher = await launch(pod);
    const { pidfd } = await pin(pod);
    const other = await createPod();
    await launch(other);
    const entry = { volume: 'sockets', path: ['made'] };
    const listen = (podUid: string) =>
      ['listenSocket', { ...change, launcher: { pidfd, podUid } }, pods, pod.uid, entry, 0, 0] as const;
    const made = () => existsSync(join(pod.emptyDir('sockets'), 'made'));
    const refused = await child.failure(...listen(other.uid));
    expect(refused).toMatchObject({ code: 'EPERM', operation: 'cgroup of launcher', refused: true });
    expect(await child.failure(...listen('x'))).toMatchObject({ code: 'EINVAL', refused: true });
    expect(made()).toBe(false);
    const { fd } = await child.call<{ fd: number }>(...listen(pod.uid));
    await child.call('close', fd);
    rmSync(join(pod.emptyDir('sockets'), 'made'));
    const exited = child.call('exited', pidfd);
    launcher.crash();
    expect(await exited).toBe('exited');
    const gone = await child.failure(...listen(pod.uid));
    expect(gone).toMatchObject({ code: 'ESRCH', refused: true, unchanged: true });
    expect(made()).toBe(false);
  });

  it('STO-002 refuses everything once the pinned process has exited', async () => {
    const pod = await createPod();
    const launcher = await launch(pod);
    const pinned = await pin(pod);
    const exited = child.call('exited', pinned.pidfd);
    launcher.crash();
    expect(await exited).toBe('exited');
    const gone = { code: 'ESRCH', refused: true };
    expect(await child.failure('checkLauncher', identify, pinned, pod.uid)).toMatchObject(gone);
    expect(await child.failure('claimDevices', claim, pinned, ['tun'], [], 107, 107)).toMatchObject(gone);
    expect(
      await child.failure('observeNetwork', { ...claim, caps: caps('SYS_ADMIN', 'SYS_PTRACE') }, pinned, []),
    ).toMatchObject(gone);
  });

  it('connects only to the pinned process', async () => {
    const pod = await createPod();
    const launcher = await launch(pod);
    const pinned = await pin(pod);
    const launcherSock = { volume: 'sockets', path: ['launcher-sock'] };
    const connect = ['connectSocket', identify, pods, pod.uid, launcherSock] as const;
    const fd = await child.call<number>(...connect, pinned);
    expect(readlinkSync(`/proc/${child.pid}/fd/${fd}`)).toMatch(/^socket:/);
    await child.call('close', fd);
    const other = await createPod();
    await launch(other);
    const foreign = await pin(other);
    expect(await child.failure(...connect, foreign)).toMatchObject({ code: 'EPERM', refused: true });
    for (const entry of [
      { volume: 'sockets', path: ['..', 'public', 'x'] },
      { volume: 'sockets', path: ['../public/x'] },
      { volume: '../sockets', path: ['launcher-sock'] },
      { volume: 'sockets', path: [''] },
      { volume: 'sockets', path: [] },
    ]) {
      const failure = await child.failure('connectSocket', identify, pods, pod.uid, entry, pinned);
      expect(failure).toMatchObject({ code: 'EINVAL', refused: true });
    }
    launcher.crash();
    await launcher.exited;
    expect((await child.failure(...connect, pinned)).code).toMatch(/^(ECONNREFUSED|ENOENT)$/);
  });

  it('marks only a dead launcher as unresponsive', async () => {
    const pod = await createPod();
    const launcher = await launch(pod);
    expect(await child.failure('markUnresponsive', change, pods, pod.uid)).toMatchObject({
      code: 'EBUSY',
      refused: true,
    });
    launcher.freeze();
    // Connections are not accepted any more: first the backlog takes them, then nothing does.
    const outcome = await waitFor('the backlog to be full', 20_000, async () => {
      const failure = await child.failure('markUnresponsive', change, pods, pod.uid);
      return failure.code === 'EBUSY' ? false : failure;
    });
    expect(outcome).toMatchObject({ code: 'EAGAIN', refused: true });
    launcher.thaw();
    launcher.crash();
    await launcher.exited;
    expect(await child.call('markUnresponsive', change, pods, pod.uid)).toBe(true);
    expect(await child.call('markUnresponsive', change, pods, pod.uid)).toBe(false);
    const marker = statSync(join(pod.emptyDir('sockets'), 'launcher-unresponsive'));
    expect([marker.size, marker.mode & 0o777]).toEqual([0, 0o644]);
  });

  it('listens in the pod and takes away only its own socket', async () => {
    const pod = await createPod();
    const path = join(pod.emptyDir('public'), pipe);
    const entry = { volume: 'public', path: [pipe] };
    const listen = ['listenSocket', change, pods, pod.uid, entry, 107, 107] as const;
    const unlink = (inode: unknown): Promise<boolean> =>
      child.call('unlinkSocket', change, pods, pod.uid, entry, inode);
    const first = await child.call<{ fd: number; dev: bigint; ino: bigint }>(...listen);
    const made = statSync(path);
    expect([made.isSocket(), made.uid, made.gid, made.mode & 0o7777]).toEqual([true, 107, 107, 0o755]);
    expect(first.ino).toBe(BigInt(made.ino));
    const second = await child.call<{ fd: number; dev: bigint; ino: bigint }>(...listen);
    await child.call('closeAll', [first.fd, second.fd]);
    expect(await unlink({ dev: second.dev, ino: second.ino + 100_000n })).toBe(false);
    expect(await unlink(second)).toBe(true);
    expect(await unlink(second)).toBe(false);
    const canary = join(node.root, 'canary');
    writeFileSync(canary, 'canary');
    symlinkSync(canary, path);
    expect(await child.failure(...listen)).toMatchObject({ code: 'EEXIST', refused: true, unchanged: true });
    expect(statSync(canary).uid).toBe(0);
  });

  it('writes files into the volume whatever the pod puts there', async () => {
    const pod = await createPod();
    const write = (content: string): Promise<WriteOutcome> =>
      child.call(
        'writeVolumeFile',
        change,
        pods,
        pod.uid,
        'private',
        'vif-cache-eth0.json',
        Buffer.from(content),
        {
          uid: 107,
          gid: 107,
          mode: 0o644,
        },
      );
    const path = join(pod.emptyDir('private'), 'vif-cache-eth0.json');
    const canary = join(node.root, 'canary');
    writeFileSync(canary, 'canary');
    symlinkSync(canary, path);
    expect(await write('{}')).toBe('replaced');
    expect(await write('{}')).toBe('equal');
    const file = statSync(path);
    expect([file.isFile(), file.uid, file.gid, file.mode & 0o7777]).toEqual([true, 107, 107, 0o644]);
    expect(statSync(canary).uid).toBe(0);
    renameSync(pod.emptyDir('private'), join(pod.emptyDir('public'), 'private'));
    symlinkSync(node.root, pod.emptyDir('private'));
    const failure = await write('{"a":1}').catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'ELOOP', refused: true, unchanged: true });
  });

  it('removes a file of the volume and follows no link', async () => {
    const pod = await createPod();
    const name = 'vif-cache-net1.json';
    const remove = (): Promise<boolean> =>
      child.call('removeVolumeFile', change, pods, pod.uid, 'private', name);
    const path = join(pod.emptyDir('private'), name);
    expect(await remove()).toBe(false);
    writeFileSync(path, '{}');
    expect(await remove()).toBe(true);
    const canary = join(node.root, 'canary');
    writeFileSync(canary, 'canary');
    symlinkSync(canary, path);
    expect(await remove()).toBe(true);
    expect([existsSync(path), existsSync(canary)]).toEqual([false, true]);
    renameSync(pod.emptyDir('private'), join(pod.emptyDir('public'), 'private'));
    symlinkSync(node.root, pod.emptyDir('private'));
    writeFileSync(join(node.root, name), 'canary');
    const failure = await remove().catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'ELOOP', refused: true, unchanged: true });
    expect(existsSync(join(node.root, name))).toBe(true);
  });

  it('gives device nodes of the launcher away, and only those', async () => {
    const pod = await createPod();
    const launcher = await launch(pod);
    const pinned = await pin(pod);
    const dev = `/proc/${launcher.pid}/root/dev`;
    const claimed = (...devices: string[]): Promise<string[]> =>
      child.call('claimDevices', claim, pinned, devices, [], 107, 107);
    rmSync(`${dev}/kvm`, { force: true });
    await run('mknod', ['-m', '600', `${dev}/kvm`, 'c', '10', '232']);
    expect(await claimed('tun', 'kvm', 'vhost-vsock')).toEqual(['claimed', 'claimed', 'missing']);
    expect(await claimed('kvm', 'tun')).toEqual(['already-owned', 'already-owned']);
    expect(statSync(`${dev}/net/tun`).uid).toBe(107);
    // Another device under the name, a link, the host's own node.
    await run('mknod', [`${dev}/vhost-net`, 'c', '1', '5']);
    const wrong = await child.failure('claimDevices', claim, pinned, ['vhost-net'], [], 107, 107);
    expect(wrong).toMatchObject({ code: 'EPERM', operation: 'type of dev/vhost-net', refused: true });
    rmSync(`${dev}/vhost-net`);
    symlinkSync('kvm', `${dev}/vhost-net`);
    expect(await child.failure('claimDevices', claim, pinned, ['vhost-net'], [], 107, 107)).toMatchObject({
      code: 'ELOOP',
      refused: true,
    });
    expect(await child.failure('claimDevices', claim, pinned, ['sda'], [], 107, 107)).toMatchObject({
      code: 'EINVAL',
      operation: 'device',
    });
    expect(await child.call('namespaces')).toEqual(
      ['mnt', 'net'].map((kind) => readlinkSync(`/proc/self/ns/${kind}`)),
    );
  });

  it('sets up and observes the network of the pod, and of no other namespace', async () => {
    const pod = await createPod();
    await launch(pod);
    const pinned = await pin(pod);
    const observe = { caps: caps('SYS_ADMIN', 'SYS_PTRACE'), deadlineMs: 5000 };
    const apply = {
      caps: caps('CHOWN', 'DAC_OVERRIDE', 'NET_ADMIN', 'SYS_ADMIN', 'SYS_PTRACE'),
      deadlineMs: 15_000,
    };
    const forbidden = [await child.call('namespaceId', '/proc/self/ns/net')];
    const plan = {
      attachments: [
        {
          podInterface: 'eth0',
          primary: true,
          index: 0,
          queues: 0,
          binding: {
            kind: 'masquerade',
            ipv4: { network: '10.0.2.0', prefixLength: 24 },
            ipv6: { network: 'fd10:0:2::', prefixLength: 120 },
            ports: [{ protocol: 'tcp', port: 80, endPort: 0 }],
            istio: false,
            migrationOverTcp: false,
          },
        },
      ],
      detachments: [],
      uid: 107,
      gid: 107,
    };
    expect(await child.call('applyNetwork', apply, pinned, forbidden, plan, false)).toBe(true);
    expect(await child.call('applyNetwork', apply, pinned, forbidden, plan, false)).toBe(false);
    const state = await child.call<NetworkState>('observeNetwork', observe, pinned, forbidden);
    expect(state.links.find((link) => link.name === 'tap0')).toMatchObject({ kind: 'tun', up: true });
    expect(state.links.find((link) => link.name === 'k6t-eth0')?.addresses).toContainEqual({
      ip: '10.0.2.1',
      prefixLength: 24,
    });
    expect(state.sysctls.ipv4Forwarding).toBe(true);
    const { dev, ino } = statSync(pod.netns, { bigint: true });
    expect(await child.failure('observeNetwork', observe, pinned, [{ dev, ino }])).toMatchObject({
      code: 'EPERM',
      refused: true,
    });
    const bad = {
      ...plan,
      attachments: [{ ...plan.attachments[0], podInterface: 'a-name-that-is-too-long' }],
    };
    expect(await child.failure('applyNetwork', apply, pinned, forbidden, bad, false)).toMatchObject({
      code: 'EINVAL',
      operation: 'argument attachment.podInterface',
    });
  });

  it('never gives away a node of the host', async () => {
    const host = statSync('/dev/net/tun');
    const pod = await createPod();
    const launcher = await launch(pod);
    const pinned = await pin(pod);
    await run('nsenter', [
      `--mount=/proc/${launcher.pid}/ns/mnt`,
      'sh',
      '-c',
      'mkdir /tmp/host && mount -t devtmpfs dev /tmp/host && mount --bind /tmp/host/net/tun /dev/net/tun && umount /tmp/host',
    ]);
    expect(await child.failure('claimDevices', claim, pinned, ['tun'], [], 107, 107)).toMatchObject({
      code: 'EPERM',
      operation: "dev/net/tun is the host's own",
      refused: true,
    });
    expect(statSync('/dev/net/tun').uid).toBe(host.uid);
  });
});
