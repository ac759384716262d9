import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { startLauncher } from '../harness/launcher/start.js';
import { linkNames, runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import { waitFor } from '../harness/pods/run.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };

describe('pod sandbox', () => {
  let node: HarnessNode;
  let image: string;

  beforeAll(async () => {
    image = join(mkdtempSync(join(tmpdir(), 'vp-image-')), 'disk.raw');
    writeFileSync(image, Buffer.alloc(4096, 7));
    node = await createNode();
  });
  afterAll(async () => {
    await node?.destroy();
    rmSync(join(image, '..'), { recursive: true, force: true });
    expect(await node.leftovers()).toEqual([]);
  });

  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  it('has kubelet directories, namespaces, cgroups and a link, and leaves nothing', async () => {
    const pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.5',
      containerDisks: [{ index: 0, image }],
    });
    const sockets = statSync(pod.emptyDir('sockets'));
    expect([sockets.uid, sockets.gid, (sockets.mode & 0o7777).toString(8)]).toEqual([0, 107, '2777']);
    expect((statSync(pod.directory).mode & 0o7777).toString(8)).toBe('750');
    expect(existsSync(join(pod.directory, 'containers/container-disk-binary'))).toBe(true);

    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    const status = readFileSync(`/proc/${launcher.pid}/status`, 'utf8');
    expect(status).toMatch(/^Uid:\t107\t107\t107\t107$/m);
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
      expect(status).toMatch(new RegExp(`^${set}:\t0{16}$`, 'm'));
    }
    expect(readFileSync(`/proc/${launcher.pid}/stat`, 'utf8')).toMatch(
      new RegExp(`\\) \\S ${launcher.container.pid} `),
    );
    for (const line of readFileSync(`/proc/${launcher.pid}/cgroup`, 'utf8').trim().split('\n')) {
      expect(line).toContain(`kubepods/burstable/pod${pod.uid}/${launcher.container.id}`);
    }
    const links = JSON.parse(await runInNetns(launcher.pid, 'ip', ['-json', 'addr', 'show', 'eth0']));
    expect(links[0]).toMatchObject({
      address: '0a:58:0a:f4:02:05',
      mtu: 1450,
      addr_info: [{ family: 'inet', local: '10.244.2.5', prefixlen: 24 }, { family: 'inet6' }],
    });
    expect(await runInNetns(launcher.pid, 'ip', ['route'])).toContain('default via 10.244.2.1 dev eth0');
    expect(await node.ping('10.244.2.5')).toBe(true);
    const run = await runInNetns(process.pid, 'readlink', [`/proc/${launcher.pid}/root/var/run`]);
    expect(run.trim()).toBe('../run');

    const disk = pod.containers.get('volumedisk0');
    if (disk === undefined) throw new Error('no container-disk container');
    expect(readFileSync(`/proc/${disk.pid}/root/disk/disk.raw`)).toHaveLength(4096);
    // The socket's path is too long for connect(2), so it is reached through its directory.
    const directory = openSync(pod.emptyDir('container-disks'), 'r');
    for (let n = 0; n < 200; n++) await connectOnce(`/proc/self/fd/${directory}/disk_0.sock`);
    closeSync(directory);
    expect(existsSync(join(pod.emptyDir('container-disks'), 'disk_0.sock'))).toBe(true);

    await pod.destroy();
    await pod.destroy();
    expect(existsSync(pod.directory)).toBe(false);
    expect(await linkNames(node.netnsPid)).not.toContain(pod.hostLink);
    expect(await node.leftovers()).toEqual([]);
  });

  it('propagates host mounts into the container-disks of the launcher and no other', async () => {
    const pod = await node.createPod({ name: 'p', vmiUid: vmi.vmiUid, podIP: '10.244.2.6' });
    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    const mount = async (volume: 'container-disks' | 'private') => {
      const file = join(pod.emptyDir(volume), 'mounted');
      writeFileSync(file, '');
      await runInNetns(process.pid, 'mount', ['--bind', image, file]);
    };
    await mount('container-disks');
    await mount('private');
    const root = `/proc/${launcher.pid}/root/run`;
    expect(statSync(`${root}/kubevirt/container-disks/mounted`).size).toBe(4096);
    expect(statSync(`${root}/kubevirt-private/mounted`).size).toBe(0);
    await pod.destroy();
    expect(await node.leftovers()).toEqual([]);
  });

  it('ends a container-disk process when its socket is unlinked', async () => {
    const pod = await node.createPod({
      name: 'p',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.7',
      containerDisks: [{ index: 3, image, name: 'renamed.img' }],
    });
    const disk = pod.containers.get('volumedisk3');
    if (disk === undefined) throw new Error('no container-disk container');
    expect(existsSync(`/proc/${disk.pid}/root/disk/renamed.img`)).toBe(true);
    rmSync(join(pod.emptyDir('container-disks'), 'disk_3.sock'));
    expect(await disk.exited).toEqual({ code: 0, signal: null });
    await pod.destroy();
  });

  it('lists what is left of a pod', async () => {
    const pod = await node.createPod({ name: 'p', vmiUid: vmi.vmiUid, podIP: '10.244.2.8' });
    const found = await node.present();
    for (const kind of ['process', 'namespace', 'link', 'cgroup', 'directory']) {
      expect(found.some((line) => line.startsWith(`${kind} `))).toBe(true);
    }
    await pod.destroy();
    expect(await node.leftovers()).toEqual([]);
  });

  it('uses systemd names for cgroups when asked', async () => {
    const pod = await node.createPod({
      name: 'p',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.9',
      cgroupDriver: 'systemd',
    });
    const slice = `kubepods-burstable-pod${pod.uid.replaceAll('-', '_')}.slice`;
    expect(readFileSync(`/proc/${pod.pausePid}/cgroup`, 'utf8')).toContain(
      `kubepods.slice/kubepods-burstable.slice/${slice}/cri-containerd-`,
    );
    await pod.destroy();
    expect(await node.leftovers()).toEqual([]);
  });

  it('can be destroyed after a creation that failed halfway', async () => {
    await expect(
      node.createPod({
        name: 'p',
        vmiUid: vmi.vmiUid,
        podIP: '10.244.2.10',
        containerDisks: [{ index: 0, image: '/nonexistent' }],
      }),
    ).rejects.toThrow('/nonexistent');
    expect(await node.leftovers()).toEqual([]);
  });
});

/** Connects and waits until the peer has closed. */
async function connectOnce(path: string): Promise<void> {
  const closed = await waitFor('connection', 5000, () => {
    const socket = connect(path);
    return new Promise<boolean>((resolve) => {
      socket.on('error', () => resolve(false));
      socket.on('end', () => resolve(true));
      socket.resume();
    }).finally(() => socket.destroy());
  });
  expect(closed).toBe(true);
}
