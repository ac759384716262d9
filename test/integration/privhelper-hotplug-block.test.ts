/** Block volumes that are plugged into a running launcher, between whole pods. */
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createAttachment } from '../harness/pods/attachment.js';
import type { Container, Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { PluggingNode, refused, vmi } from './hotplug-fixture.js';
import { failureOf, qemuUser } from './privhelper-fixture.js';

const { CHANGED, UNCHANGED, NOT_READY, MISSING } = PlugOutcome;

describe.runIf(process.getuid?.() === 0)('hot-plugged volumes in block mode', () => {
  let at: PluggingNode;
  const loops: string[] = [];
  let device: { major: number; minor: number };
  /** The device of the host's root file system. */
  const { dev } = statSync('/');
  const hostRoot = { major: dev >> 8, minor: dev & 0xff };
  const source = (volume: string) => join(at.attachment.emptyDir('hotplug-disks'), volume);
  const plugBlock = async (volume: string, from = at.attachment, into = at.ref()) =>
    (await at.client().plugBlock({ pod: into, attachmentPodUid: from.uid, volume })).outcome;
  const remembered = () => {
    const file = join(at.helper.pluggedDevicesDir, at.pod.uid);
    return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).devices : [];
  };
  const makeNode = (path: string, type = 'b', { major, minor } = device) =>
    run('mknod', ['-m', '660', path, type, String(major), String(minor)]);

  function containerOf({ containers }: Pod): Container {
    const [container] = containers.values();
    if (container === undefined) throw new Error('no container');
    return container;
  }

  async function loop(name: string): Promise<{ major: number; minor: number }> {
    const file = at.claim(`${name}.raw`);
    writeFileSync(file, Buffer.alloc(4 << 20));
    const path = (await run('losetup', ['--find', '--show', file])).trim();
    loops.push(path);
    return { major: 7, minor: Number(path.replace('/dev/loop', '')) };
  }

  beforeAll(async () => {
    at = await PluggingNode.start();
    device = await loop('block');
  });
  afterAll(async () => {
    await at?.stop();
    for (const path of loops) await run('losetup', ['--detach', path]);
  });
  beforeEach(async () => {
    await at.createPods([device, hostRoot]);
    mkdirSync(source('block'));
  });
  afterEach(async () => {
    expect(await at.destroyPods()).toEqual([]);
  });

  it('STO-017 are nodes with the numbers of the attachment pod’s, owned by the launcher’s user', async () => {
    const uid = '99999999-9999-4999-8999-999999999999';
    await makeNode(join(source('block'), uid));
    expect(await plugBlock('block')).toBe(CHANGED);
    const plugged = statSync(at.seen('block'));
    expect(plugged.isBlockDevice()).toBe(true);
    expect(plugged.rdev).toBe(statSync(join(source('block'), uid)).rdev);
    expect([plugged.uid, plugged.gid, plugged.mode & 0o777]).toEqual([qemuUser, qemuUser, 0o660]);
    expect(remembered()).toEqual([{ volume: 'block', ...device }]);
    expect(await at.list()).toEqual([['block', 'BLOCK', true, true]]);
    // The pod that it came from may be gone, and so may the helper that plugged it.
    await at.attachment.destroy();
    await at.helper.stop('SIGKILL');
    await at.helper.start();
    expect(await plugBlock('block')).toBe(UNCHANGED);
    expect(await at.unplug('block', PlugKind.BLOCK)).toBe(true);
    expect(existsSync(at.hostPath('block'))).toBe(false);
    expect(existsSync(at.record())).toBe(false);
    // It may be open to the launcher until a policy denies it.
    expect(remembered()).toEqual([{ volume: 'block', ...device, leaving: true }]);
    expect(await at.list()).toEqual([['block', 'BLOCK', false, true]]);
    expect(await at.unplug('block', PlugKind.BLOCK)).toBe(false);
    await at.helper.client(DeviceService).setPolicy({ pod: at.ref() });
    expect(remembered()).toEqual([]);
    expect(await at.list()).toEqual([]);
    expect(await at.unplug('block', PlugKind.BLOCK)).toBe(false);
  });

  it('wait for the attachment pod and its device', async () => {
    expect(await plugBlock('absent')).toBe(MISSING);
    expect((await failureOf(plugBlock('block'))).errnoName).toBe('ENODEV');
    const late = await createAttachment(at.node, { podIP: '10.244.2.14', claims: [], late: true });
    mkdirSync(join(late.emptyDir('hotplug-disks'), 'block'));
    expect(await plugBlock('block', late)).toBe(NOT_READY);
    expect(remembered()).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
  });

  it('STO-033 that are no single block device of the attachment pod are refused', async () => {
    const canary = join(at.claims, 'block-canary');
    await makeNode(canary);
    const other = join(at.claims, 'block-directory');
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
    expect(readdirSync(at.pod.emptyDir('hotplug-disks'))).toEqual([]);
  });

  it('STO-033 that the host uses itself are refused', async () => {
    await makeNode(join(source('block'), 'root'), 'b', hostRoot);
    expect(await failureOf(plugBlock('block'))).toMatchObject({
      ...refused,
      field: 'volume',
      message: expect.stringContaining("the host's own"),
    });
    rmSync(join(source('block'), 'root'));
    await makeNode(join(source('block'), 'data'));
    await run('mkfs.ext4', ['-q', '-F', loops[0] ?? '']);
    const mounted = at.claim('mounted');
    mkdirSync(mounted);
    await run('mount', [loops[0] ?? '', mounted]);
    try {
      expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
    } finally {
      await run('umount', [mounted]);
    }
    expect(remembered()).toEqual([]);
    expect(existsSync(at.hostPath('block'))).toBe(false);
    expect(await plugBlock('block')).toBe(CHANGED);
  });

  it('STO-033 that the attachment pod was not given are refused, whatever nodes it makes', async () => {
    const stranger = await loop('not-given');
    await makeNode(join(source('block'), 'made'), 'b', stranger);
    expect(await failureOf(plugBlock('block'))).toMatchObject({
      ...refused,
      errnoName: 'EACCES',
      field: 'volume',
      message: `block device 7:${stranger.minor} is none that pod ${at.attachment.uid} may open`,
    });
    const line = await at.helper.audited('refusal', ({ errno }) => errno === 'EACCES');
    expect(line).toMatchObject({ method: 'HotplugService.PlugBlock', decision: 'refused', pod: at.pod.uid });
    expect(remembered()).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
    expect(existsSync(at.hostPath('block'))).toBe(false);
    // It may make any node, and read this one.
    const { cgroups } = containerOf(at.attachment);
    const rule = (file: string, letters: string) => {
      const [list = ''] = cgroups.map((path) => join(path, file)).filter((path) => existsSync(path));
      writeFileSync(list, `b 7:${stranger.minor} ${letters}`);
    };
    rule('devices.allow', 'r');
    expect(await failureOf(plugBlock('block'))).toMatchObject({ ...refused, errnoName: 'EACCES' });
    rule('devices.allow', 'rwm');
    expect(await plugBlock('block')).toBe(CHANGED);
  });

  it('STO-015 whose record cannot be read are plugged', async () => {
    await makeNode(join(source('block'), 'data'));
    writeFileSync(at.record(), 'no record');
    expect(await plugBlock('block')).toBe(CHANGED);
    expect(await at.list()).toEqual([['block', 'BLOCK', true, true]]);
  });

  it('STO-033 of another launcher’s attachment pod are refused', async () => {
    await makeNode(join(source('block'), 'data'));
    expect(await plugBlock('block')).toBe(CHANGED);
    const other = await at.node.createPod({
      name: 'virt-launcher-vm2-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.15',
    });
    await startLauncher(other, { ...vmi, name: 'vm2', machine: 'fake' });
    const into = { podUid: other.uid, vmiUid: '5f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f50' };
    expect(await failureOf(plugBlock('block', at.attachment, into))).toMatchObject({
      ...refused,
      field: 'attachment_pod_uid',
    });
    expect(readdirSync(other.emptyDir('hotplug-disks'))).toEqual([]);
  });

  it('are not what a launcher has put in their place', async () => {
    await makeNode(join(source('block'), 'data'));
    const stranger = await loop('stranger');
    await makeNode(at.hostPath('block'), 'b', stranger);
    expect(await failureOf(plugBlock('block'))).toMatchObject({ ...refused, field: 'volume' });
    rmSync(at.hostPath('block'));
    const canary = join(at.claims, 'node-canary');
    await makeNode(canary, 'b', stranger);
    symlinkSync(canary, at.hostPath('block'));
    expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
    expect(statSync(canary).uid).toBe(0);
    rmSync(at.hostPath('block'));
    expect(remembered()).toEqual([]);
    // As virt-handler left it: it is the volume's, and remembered from now on.
    await makeNode(at.hostPath('block'));
    expect(await at.facts()).toEqual([{ volume: 'block', present: true, known: false }]);
    expect(await plugBlock('block')).toBe(CHANGED);
    expect(await at.facts()).toEqual([{ volume: 'block', present: true, known: true }]);
    expect(remembered()).toEqual([{ volume: 'block', ...device }]);
    // A name for more than one node is no place for the next.
    linkSync(at.hostPath('block'), at.hostPath('kept'));
    expect(await failureOf(plugBlock('block'))).toMatchObject(refused);
    rmSync(at.hostPath('kept'));
    expect(await plugBlock('block')).toBe(UNCHANGED);
  });

  it('are not made where nobody could open them', async () => {
    await makeNode(join(source('block'), 'data'));
    const volume = at.pod.emptyDir('hotplug-disks');
    await run('mount', ['--bind', volume, volume]);
    await run('mount', ['-o', 'remount,bind,nodev', volume]);
    expect(await failureOf(plugBlock('block'))).toMatchObject({
      ...refused,
      operation: 'hotplug-disks is on a file system mounted nodev',
    });
    await run('umount', [volume]);
    expect(remembered()).toEqual([]);
    expect(existsSync(at.record())).toBe(false);
  });
});
