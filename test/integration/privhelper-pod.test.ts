import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { Device, DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ContainerDiskState, StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { startManyDisks } from '../harness/pods/many-disks.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run, waitFor } from '../harness/pods/run.js';
import { failureOf, HelperProcess, qemuUser } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };

describe.runIf(process.getuid?.() === 0)('the helper and a whole pod', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let image: string;
  let pod: Pod;
  let launcherPid: number;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const record = () => join(helper.stateDir, vmi.vmiUid);

  beforeAll(async () => {
    image = join(mkdtempSync(join(tmpdir(), 'vp-image-')), 'disk.raw');
    writeFileSync(image, Buffer.alloc(4096, 7));
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    rmSync(join(image, '..'), { recursive: true, force: true });
  });
  beforeEach(async () => {
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.5',
      containerDisks: [{ index: 2, image }],
    });
    launcherPid = (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid;
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  it("STO-032 reads the SELinux label of the launcher's root directory", async () => {
    const client = helper.client(PodService);
    expect((await client.getSelinuxContext({ pod: ref() })).context).toBe('');
    const label = 'system_u:object_r:container_file_t:s0:c12,c345';
    const set = 'import os, sys; os.setxattr(sys.argv[1], "security.selinux", sys.argv[2].encode() + b"\\0")';
    await run('/usr/bin/python3', ['-c', set, `/proc/${launcherPid}/root`, label]);
    expect((await client.getSelinuxContext({ pod: ref() })).context).toBe(label);
    await run('/usr/bin/python3', ['-c', set, `/proc/${launcherPid}/root`, 'no label']);
    expect((await failureOf(client.getSelinuxContext({ pod: ref() }))).message).toContain('no SELinux label');
  });

  it('sets up masquerading, once', async () => {
    const client = helper.client(NetworkService);
    const before = await client.observe({ pod: ref() });
    expect(before.links.map(({ name }) => name)).toContain('eth0');
    expect(before.routes).toContainEqual(
      expect.objectContaining({ destination: '0.0.0.0/0', gateway: '10.244.2.1' }),
    );
    const attachments = [
      {
        network: 'default',
        podInterface: 'eth0',
        primary: true,
        binding: { case: 'masquerade', value: { ipv4Cidr: '10.0.2.77/24' } } as const,
      },
    ];
    expect(await client.apply({ pod: ref(), attachments })).toMatchObject({ changed: true });
    const { links } = await client.observe({ pod: ref() });
    const bridge = links.find(({ name }) => name === 'k6t-eth0');
    expect(bridge?.addresses).toContainEqual(expect.objectContaining({ ip: '10.0.2.1', prefixLength: 24 }));
    expect(links.find(({ name }) => name === 'tap0')?.controller).toBe(bridge?.index);
    expect(await client.apply({ pod: ref(), attachments })).toMatchObject({ changed: false });
    const detachments = [{ network: 'default', podInterface: 'eth0', primary: true }];
    expect(await client.apply({ pod: ref(), detachments })).toMatchObject({ changed: true });
    const names = (await client.observe({ pod: ref() })).links.map(({ name }) => name);
    expect(names).not.toContain('k6t-eth0');
    expect(names).not.toContain('tap0');
  });

  const disks = (...indexes: number[]) => ({
    pod: ref(),
    disks: indexes.map((volumeIndex) => ({ volumeIndex })),
  });

  it('STO-008 STO-009 STO-010 mounts a container disk once, read-only, with a record, and removes it all', async () => {
    const client = helper.client(StorageService);
    const mounts = () =>
      readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
        .split('\n')
        .filter((line) => line.includes('/container-disks/disk_2.img '));
    expect(await client.statContainerDisks({ pod: ref(), volumeIndexes: [2, 3] })).toMatchObject({
      states: [ContainerDiskState.READY, ContainerDiskState.ABSENT],
    });
    const atOnce = await Promise.all(Array.from({ length: 16 }, () => client.mountContainerDisks(disks(2))));
    expect(atOnce.filter(({ changed }) => changed)).toHaveLength(1);
    const text = readFileSync(record(), 'utf8');
    expect(JSON.parse(text).mountTargetEntries).toEqual([
      {
        targetFile: join(pod.emptyDir('container-disks'), 'disk_2.img'),
        socketFile: `/pods/${pod.uid}/volumes/kubernetes.io~empty-dir/container-disks/disk_2.sock`,
      },
    ]);
    expect(await client.mountContainerDisks(disks(2))).toMatchObject({ changed: false });
    expect(readFileSync(record(), 'utf8')).toBe(text);
    expect(mounts()).toHaveLength(1);
    const options = mounts()[0]?.split(' ')[5]?.split(',') ?? [];
    expect(options).toEqual(expect.arrayContaining(['ro', 'nosuid', 'nodev', 'noexec']));
    const seen = `/proc/${launcherPid}/root/run/kubevirt/container-disks/disk_2.img`;
    expect(readFileSync(seen)).toEqual(readFileSync(image));
    expect(() => writeFileSync(seen, 'x')).toThrow(/EROFS/);

    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    expect(mounts()).toEqual([]);
    expect(existsSync(record())).toBe(false);
    expect(existsSync(join(pod.emptyDir('container-disks'), 'disk_2.sock'))).toBe(false);
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: false });
  });

  it('STO-008 STO-010 mounts many disks up to the first that fails, which it names, and goes on from there', async () => {
    await startManyDisks(pod, image, 20, 10);
    const indexes = [2, ...Array.from({ length: 20 }, (_, i) => 10 + i)];
    const client = helper.client(StorageService);
    const mounted = () =>
      readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
        .split('\n')
        .flatMap((line) => /\/container-disks\/disk_(\d+)\.img /.exec(line)?.[1] ?? [])
        .map(Number)
        .sort((a, b) => a - b);
    const socket = join(pod.emptyDir('container-disks'), 'disk_28.sock');
    renameSync(socket, `${socket}.aside`);
    const failed = { code: Code.NotFound, errnoName: 'ENOENT', field: 'disks[19]' };
    for (const unchanged of [false, true]) {
      expect(await failureOf(client.mountContainerDisks(disks(...indexes)))).toMatchObject({
        ...failed,
        unchanged,
      });
      expect(mounted()).toEqual(indexes.slice(0, 19));
      expect(JSON.parse(readFileSync(record(), 'utf8')).mountTargetEntries).toHaveLength(21);
    }
    await helper.audited('failure', ({ field, errno }) => field === 'disks[19]' && errno === 'ENOENT');
    renameSync(`${socket}.aside`, socket);
    for (const changed of [true, false]) {
      expect(await client.mountContainerDisks(disks(...indexes))).toMatchObject({ changed });
      expect(mounted()).toEqual(indexes);
    }
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    expect(mounted()).toEqual([]);
  });

  it('STO-008 undoes what a helper that was killed has mounted', async () => {
    await helper.client(StorageService).mountContainerDisks(disks(2));
    await helper.stop('SIGKILL');
    await helper.start();
    const client = helper.client(StorageService);
    expect(await client.mountContainerDisks(disks(2))).toMatchObject({ changed: false });
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    expect(existsSync(record())).toBe(false);
    expect(readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')).not.toContain('disk_2.img');
  });

  it('STO-008 removes the record and the files when the launcher has gone', async () => {
    const client = helper.client(StorageService);
    await client.mountContainerDisks(disks(2));
    process.kill(launcherPid, 'SIGKILL');
    await waitFor('launcher to end', 20_000, () => !existsSync(`/proc/${launcherPid}`));
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    expect(existsSync(record())).toBe(false);
    expect(existsSync(join(pod.emptyDir('container-disks'), 'disk_2.img'))).toBe(false);
  });

  it('STO-008 STO-012 removes the record and the files when kubelet has removed directories under a living launcher', async () => {
    const client = helper.client(StorageService);
    await client.mountContainerDisks(disks(2));
    // What the launcher's volume is mounted on; the mounts go with it.
    rmdirSync(join(pod.emptyDir('public'), 'container-disks'));
    expect(readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')).not.toContain('container-disks');
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: true });
    expect(existsSync(record())).toBe(false);
    expect(readdirSync(pod.emptyDir('container-disks')).filter((name) => name.startsWith('disk_2'))).toEqual(
      [],
    );
    expect(await client.unmountContainerDisks({ pod: ref() })).toMatchObject({ changed: false });
  });

  it('gives devices to the launcher’s user', async () => {
    const client = helper.client(DeviceService);
    const outcomes = async () => {
      const { results } = await client.claim({ pod: ref(), devices: [Device.TUN, Device.VHOST_VSOCK] });
      return results.map(({ outcome }) => outcome);
    };
    expect(await outcomes()).toEqual([ClaimOutcome.CLAIMED, ClaimOutcome.MISSING]);
    expect(await outcomes()).toEqual([ClaimOutcome.ALREADY_OWNED, ClaimOutcome.MISSING]);
    const info = statSync(`/proc/${launcherPid}/root/dev/net/tun`);
    expect([info.uid, info.gid]).toEqual([qemuUser, qemuUser]);
  });

  it('answers a disk that is not there with what was attempted', async () => {
    const none = { volumeIndex: 2, imagePath: '/disk/none' };
    const failure = await failureOf(
      helper.client(StorageService).mountContainerDisks({ pod: ref(), disks: [none] }),
    );
    expect(failure).toMatchObject({ code: Code.NotFound, errnoName: 'ENOENT', field: 'disks[0]' });
    expect(failure.operation).not.toBe('');
  });
});
