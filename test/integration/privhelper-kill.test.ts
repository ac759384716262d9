/** The helper is killed between any two system calls that mount and unmount images. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { startManyDisks } from '../harness/pods/many-disks.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { killDuring } from './helper-kill.js';
import { HelperProcess } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '2f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f24' };
const target = ['disk_0.img', 'kernel-boot/initrd', 'kernel-boot/vmlinuz'];

describe.runIf(process.getuid?.() === 0)('a helper that is killed', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let directory: string;
  let pod: Pod;
  let launcherPid: number;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(StorageService);
  async function mountAll(): Promise<void> {
    const kernelArtifacts = ['/boot/initrd', '/boot/vmlinuz'];
    await client().mountContainerDisks({ pod: ref(), disks: [{ volumeIndex: 0 }], kernelArtifacts });
  }
  const unmountAll = () => client().unmountContainerDisks({ pod: ref() });
  const mounted = () =>
    readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
      .split('\n')
      .flatMap((line) => /\/container-disks\/(\S+) /.exec(line)?.[1] ?? [])
      .sort();

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-kill-'));
    writeFileSync(join(directory, 'image'), 'image');
    node = await createNode();
    // One privileged thread makes every call, so that they can be counted.
    helper = new HelperProcess(node.podsDir, { flags: { '--threads': '1' } });
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });
  beforeEach(async () => {
    const image = join(directory, 'image');
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.11',
      containerDisks: [{ index: 0, image }],
      kernelBoot: { '/boot/vmlinuz': image, '/boot/initrd': image },
    });
    launcherPid = (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid;
    await helper.start();
  });
  afterEach(async () => {
    await helper.stop('SIGKILL');
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  /** Nothing is left of the VM, and its containers have been told to end. */
  async function expectNothingLeft(): Promise<void> {
    expect(mounted()).toEqual([]);
    expect(readdirSync(pod.emptyDir('container-disks'))).toEqual([]);
    expect(readdirSync(helper.stateDir)).toEqual([]);
    for (const name of ['volumedisk0', 'kernel-boot-volume']) await pod.containers.get(name)?.exited;
  }

  it('STO-008 STO-011 while it mounts goes on where it was, stacks nothing and leaves nothing', async () => {
    for (const [call, nth] of [
      // The record, which is one.
      ['rename', 1],
      // Clones of the first and the last image, which go with the helper, and the mount of the disk.
      ['mount_setattr', 1],
      ['mount_setattr', 3],
      ['move_mount', 1],
      // The directory and the mounts for kernel boot, and the way home from the launcher.
      ['mkdirat', 1],
      ['fchown', 1],
      ['move_mount', 1],
      ['move_mount', 2],
      ['setns', 8],
    ] as const) {
      await killDuring(helper, call, nth, mountAll);
    }
    await mountAll();
    expect(mounted()).toEqual(target);
    await unmountAll();
    await expectNothingLeft();
  });

  it('STO-008 in the middle of many disks goes on where it was', async () => {
    await startManyDisks(pod, join(directory, 'image'), 20, 1);
    const disks = Array.from({ length: 21 }, (_, volumeIndex) => ({ volumeIndex }));
    const mountMany = () => client().mountContainerDisks({ pod: ref(), disks });
    await killDuring(helper, 'move_mount', 18, mountMany);
    expect(mounted()).toHaveLength(17);
    expect(await mountMany()).toMatchObject({ changed: true });
    expect(mounted()).toEqual(disks.map(({ volumeIndex }) => `disk_${volumeIndex}.img`).sort());
    await unmountAll();
    await expectNothingLeft();
  });

  it('STO-008 STO-012 while it unmounts takes away the rest', async () => {
    await mountAll();
    for (const [call, nth] of [
      ['umount2', 1],
      ['umount2', 2],
      // Three mount points, the directory and two sockets.
      ['unlinkat', 1],
      ['unlinkat', 2],
      ['unlinkat', 3],
      ['unlinkat', 2],
      // The record.
      ['unlink', 1],
    ] as const) {
      await killDuring(helper, call, nth, unmountAll);
    }
    await unmountAll();
    await expectNothingLeft();
  });
});
