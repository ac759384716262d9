/** Claims whose server does not answer: whoever needs them waits, and nobody else. */
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createAttachment } from '../harness/pods/attachment.js';
import type { Pod } from '../harness/pods/pod.js';
import { waitFor } from '../harness/pods/run.js';
import { StoppingFileSystem } from '../harness/volumes/stopping-fs.js';
import { PluggingNode, vmi } from './hotplug-fixture.js';
import { caps, NativeChild } from './native-child.js';
import { failureOf, qemuUser } from './privhelper-fixture.js';

const { CHANGED } = PlugOutcome;
const deadlineMs = 20_000;
/** Privileged threads of the pool. */
const pool = 4;
/** Calls that may wait for volumes at a time. */
const maxWaiting = 16;

describe.runIf(process.getuid?.() === 0)('volumes that do not answer', () => {
  let at: PluggingNode;
  let volume: StoppingFileSystem;

  beforeAll(async () => {
    at = await PluggingNode.start();
  });
  afterAll(async () => {
    await at?.stop();
  });
  beforeEach(async () => {
    volume = await StoppingFileSystem.mount(at.claim('dead'), join(at.node.root, 'stopping-fs'));
    await at.createPods();
  });
  afterEach(async () => {
    await volume.end();
    expect(await at.destroyPods()).toEqual([]);
    await volume.unmount();
  });

  /** A launcher pod with the volume as a claim. */
  async function podWithClaim(i: number): Promise<Pod> {
    const podIP = `10.244.2.${20 + i}`;
    const pod = await at.node.createPod({ name: `virt-launcher-vm${i}-abcde`, vmiUid: vmi.vmiUid, podIP });
    await pod.addClaim('disks', ['--bind', volume.directory]);
    await startLauncher(pod, { ...vmi, name: `vm${i}`, machine: 'fake' });
    return pod;
  }

  const claim = ({ uid }: Pod) =>
    at.helper
      .client(StorageService)
      .claimVolumeDirectory({ pod: { podUid: uid, vmiUid: uid }, volume: 'disks' });
  const privilegedThreads = () =>
    at.helper.threads().filter((status) => status.get('Name') === 'privsep-root').length;

  it('keep no thread from other pods, and what waited goes on when they come back', async () => {
    const waiting: Pod[] = [];
    for (let i = 0; i <= pool; i++) waiting.push(await podWithClaim(i));
    const withDisk = await at.node.createPod({
      name: 'virt-launcher-disk-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.12',
      containerDisks: [{ index: 0, image: join(at.claim('data'), 'disk.img') }],
    });
    await startLauncher(withDisk, { ...vmi, name: 'disk', machine: 'fake' });
    await volume.fallSilent();
    const calls = waiting.map((pod) => failureOf(claim(pod)));
    await volume.asked(calls.length);
    expect(await at.helper.client(PodService).identify({ pod: at.ref() })).toMatchObject({ uid: qemuUser });
    const disks = { podUid: withDisk.uid, vmiUid: withDisk.uid };
    const storage = at.helper.client(StorageService);
    expect(await storage.mountContainerDisks({ pod: disks, disks: [{}] })).toMatchObject({ changed: true });
    expect(await storage.unmountContainerDisks({ pod: disks })).toMatchObject({ changed: true });
    expect(await at.plug('data')).toBe(CHANGED);
    expect(await at.list()).toEqual([['data', 'DISK', true, true]]);
    expect(await at.unplug('data')).toBe(true);
    await volume.end();
    await Promise.all(calls);
    await waitFor('threads to end', deadlineMs, () => privilegedThreads() === pool);
    // Their turn is over: the error is the file system's.
    for (const pod of waiting)
      expect((await failureOf(claim(pod))).errnoName).toMatch(/^(ENOTCONN|ECONNABORTED)$/);
  });

  it('are listed and unplugged all the same', async () => {
    const claims = [{ name: 'dead', directory: volume.directory }];
    const attachment = await createAttachment(at.node, { podIP: '10.244.2.11', claims });
    expect(await at.plug('dead', PlugKind.DISK, attachment)).toBe(CHANGED);
    expect(await at.plug('dead', PlugKind.DIRECTORY, attachment)).toBe(CHANGED);
    await volume.fallSilent();
    expect(await at.list()).toEqual([
      ['dead', 'DIRECTORY', true, true],
      ['dead', 'DISK', true, true],
    ]);
    expect(await at.unplug('dead', PlugKind.DISK)).toBe(true);
    expect(await at.unplug('dead', PlugKind.DIRECTORY)).toBe(true);
    expect(at.mounts()).toEqual([]);
    expect(await at.list()).toEqual([]);
    // Nobody was asked for it.
    const asked = failureOf(at.plug('dead', PlugKind.DISK, attachment));
    await volume.asked(1);
    await volume.end();
    expect((await asked).errnoName).toMatch(/^(ENOTCONN|ECONNABORTED)$/);
  });

  it('are waited for by so many calls at a time, and one more is told so', async () => {
    const pod = await podWithClaim(9);
    const child = await NativeChild.start([at.node.podsDir]);
    try {
      const [pods = -1] = await child.call<number[]>('directories');
      const identify = { caps: caps('DAC_OVERRIDE', 'SYS_PTRACE'), deadlineMs };
      const call = {
        caps: caps('CHOWN', 'DAC_OVERRIDE', 'SYS_ADMIN', 'SYS_CHROOT', 'SYS_PTRACE'),
        deadlineMs,
      };
      const launcher = await child.call('pinLauncher', identify, pods, pod.uid);
      await volume.fallSilent();
      const once = ['claimVmiDisks', call, pods, pod.uid, launcher, 'disks', qemuUser, qemuUser] as const;
      const calls = Array.from({ length: maxWaiting }, () => child.failure(...once));
      await volume.asked(maxWaiting);
      const tooMany = {
        code: 'EAGAIN',
        operation: `${maxWaiting} calls wait for volumes that do not answer`,
        unchanged: true,
      };
      expect(await child.failure(...once)).toMatchObject(tooMany);
      expect(await child.failure('listPlugged', call, pods, pod.uid, launcher)).toMatchObject(tooMany);
      expect(await child.call('unplug', call, pods, pod.uid, launcher, 'absent')).toBe(false);
      expect(await child.call('checkLauncher', identify, launcher, pod.uid)).toBeUndefined();
      await volume.end();
      expect((await Promise.all(calls)).map(({ code }) => code)).not.toContain('EAGAIN');
      expect(await child.call('listPlugged', call, pods, pod.uid, launcher)).toEqual([]);
    } finally {
      await child.stop();
    }
  });
});
