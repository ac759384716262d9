/** The helper is killed between any two system calls that plug and unplug volumes. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HotplugService, PlugKind } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createAttachment } from '../harness/pods/attachment.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { killDuring } from './helper-kill.js';
import { HelperProcess, qemuUser } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '3f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f31' };
/** A RAM disk's numbers: nothing of the host is behind them. */
const device = { major: 1, minor: 15 };

describe.runIf(process.getuid?.() === 0)('a helper that is killed while volumes are plugged', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let claims: string;
  let pod: Pod;
  let attachment: Pod;
  let launcherPid: number;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const client = () => helper.client(HotplugService);
  const from = () => ({ pod: ref(), attachmentPodUid: attachment.uid });
  const plugDisk = () => client().plugFilesystem({ ...from(), volume: 'data', kind: PlugKind.DISK });
  const plugBlock = () => client().plugBlock({ ...from(), volume: 'block' });
  const unplug = (volume: string, kind: PlugKind) => () => client().unplug({ pod: ref(), volume, kind });
  const unplugDisk = unplug('data', PlugKind.DISK);
  const unplugBlock = unplug('block', PlugKind.BLOCK);
  const mounts = () =>
    readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/hotplug-disks/'));
  const recorded = () => {
    const path = join(helper.hotplugStateDir, vmi.vmiUid);
    return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')).mountTargetEntries.length : 0;
  };

  beforeAll(async () => {
    claims = mkdtempSync(join(tmpdir(), 'vp-plug-kill-'));
    mkdirSync(join(claims, 'data'));
    writeFileSync(join(claims, 'data', 'disk.img'), 'image');
    node = await createNode();
    // One privileged thread makes every call, so that they can be counted.
    helper = new HelperProcess(node.podsDir, { flags: { '--threads': '1' } });
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
    launcherPid = (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid;
    attachment = await createAttachment(node, {
      podIP: '10.244.2.10',
      claims: [{ name: 'data', directory: join(claims, 'data') }],
      devices: [device],
    });
    const source = join(attachment.emptyDir('hotplug-disks'), 'block');
    mkdirSync(source);
    const uid = '99999999-9999-4999-8999-999999999999';
    await run('mknod', [join(source, uid), 'b', String(device.major), String(device.minor)]);
    await helper.start();
  });
  afterEach(async () => {
    await helper.stop('SIGKILL');
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });

  it('STO-008 STO-016 goes on where it was, stacks nothing and leaves nothing', async () => {
    for (const [call, nth] of [
      ['rename', 1],
      ['mount_setattr', 1],
      ['move_mount', 1],
      ['fchownat', 1],
    ] as const) {
      await killDuring(helper, call, nth, plugDisk);
    }
    for (const [call, nth] of [
      // What is recorded of the VMI's volumes, then of the pod's devices.
      ['rename', 1],
      ['rename', 1],
      ['mknodat', 1],
      ['fchownat', 1],
    ] as const) {
      await killDuring(helper, call, nth, plugBlock);
    }
    await plugDisk();
    await plugBlock();
    expect(mounts()).toHaveLength(1);
    const block = statSync(join(pod.emptyDir('hotplug-disks'), 'block'));
    expect([block.isBlockDevice(), block.rdev, block.uid]).toEqual([true, 0x10f, qemuUser]);
    expect(recorded()).toBe(2);

    for (const [call, nth] of [
      ['umount2', 1],
      ['unlinkat', 1],
      ['rename', 1],
    ] as const) {
      await killDuring(helper, call, nth, unplugDisk);
    }
    await unplugDisk();
    // The node, and the record of the device.
    await killDuring(helper, 'unlinkat', 1, unplugBlock);
    await killDuring(helper, 'rename', 1, unplugBlock);
    expect((await unplugBlock()).changed).toBe(true);
    expect(recorded()).toBe(0);
    // It is known until a policy denies it.
    const setPolicy = () => helper.client(DeviceService).setPolicy({ pod: ref() });
    await killDuring(helper, 'unlink', 1, setPolicy);
    await setPolicy();
    expect(mounts()).toEqual([]);
    expect(readdirSync(pod.emptyDir('hotplug-disks'))).toEqual([]);
    expect(recorded()).toBe(0);
    expect((await client().list({ pod: ref() })).volumes).toEqual([]);
  });
});
