/** The device policy of a launcher's container, as a process in its cgroup meets it. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HotplugService } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { PluggedDevices } from '../../privhelper/pods/plugged-devices.js';
import { denied, Opener } from '../harness/devices/opener.js';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { cgroupHierarchies } from '../harness/pods/cgroup.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { failureOf, HelperProcess, helperUser } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
const macvtap = 'vptap0';

interface Version {
  readonly version: 1 | 2;
  /** Where the helper finds the hierarchy. */
  readonly cgroupRoot: string;
  readonly controllers: string;
}

const mounted = cgroupHierarchies();
const unified = mounted.find(({ controllers }) => controllers.length === 0)?.mountPoint;
const devices = mounted.find(({ controllers }) => controllers.includes('devices'))?.mountPoint;
const versions: Version[] = [
  ...(devices === undefined
    ? []
    : [{ version: 1 as const, cgroupRoot: join(devices, '..'), controllers: 'devices' }]),
  ...(unified === undefined ? [] : [{ version: 2 as const, cgroupRoot: unified, controllers: '' }]),
];

it('both versions of cgroups are tried, where the machine has them', () => {
  const missing = [1, 2].filter((version) => versions.every((each) => each.version !== version));
  if (missing.length > 0)
    process.stdout.write(`not tried: cgroup v${missing.join(', v')}, which is not mounted here\n`);
  expect(versions.length).toBeGreaterThan(0);
});

describe.each(versions)('on cgroup v$version', ({ cgroupRoot, controllers }) => {
  let node: HarnessNode;
  let helper: HelperProcess;
  /** Another helper, which has not plugged anything: what it applies is what a runtime may apply again. */
  let other: HelperProcess;
  let pod: Pod;
  let launcher: LauncherHandle;
  let opener: Opener;
  let loops: string[];
  let nodes: string;
  let tap: { major: number; minor: number };

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const setPolicy = (...blockVolumes: string[]) =>
    helper.client(DeviceService).setPolicy({ pod: ref(), blockVolumes });
  const plugged = () => new PluggedDevices(helper.pluggedDevicesDir, 8);
  const loop = (i: number) => ({ major: 7, minor: Number(loops[i]?.slice('/dev/loop'.length)) });
  const at = (name: string) => join(nodes, name);
  const inDev = (path: string) => `/proc/${launcher.pid}/root/dev/${path}`;
  const make = (path: string, type: 'b' | 'c', major: number, minor: number) =>
    run('mknod', ['-m', '666', path, type, String(major), String(minor)]);
  const opened = async (...names: string[]) => {
    const results: Record<string, string> = {};
    for (const name of names) results[name] = await opener.open(at(name));
    return results;
  };

  /** The helper's record belongs to the helper. */
  async function plug(volume: string, i: number): Promise<void> {
    plugged().remember(pod.uid, volume, loop(i));
    await run('chown', [`${helperUser}:${helperUser}`, join(helper.pluggedDevicesDir, pod.uid)]);
  }

  function helperWith(name: string): HelperProcess {
    const policy = join(node.root, `${name}.yaml`);
    writeFileSync(policy, `version: 1\npaths:\n  cgroupRoot: ${cgroupRoot}\n`);
    return new HelperProcess(node.podsDir, { flags: { '--policy': policy } });
  }

  beforeAll(async () => {
    node = await createNode();
    helper = helperWith('policy');
    other = helperWith('other');
    await helper.start();
    nodes = join(node.root, 'nodes');
    mkdirSync(nodes);
    loops = [];
    for (const name of ['a', 'b', 'c', 'host']) {
      const file = join(node.root, `${name}.img`);
      writeFileSync(file, Buffer.alloc(16 << 20));
      loops.push((await run('losetup', ['--find', '--show', file])).trim());
    }
    await run('ip', ['link', 'add', 'vpbr0', 'type', 'bridge']);
    await run('ip', ['link', 'add', macvtap, 'link', 'vpbr0', 'type', 'macvtap', 'mode', 'bridge']);
    // The links of this network namespace are in a sysfs of its own only.
    const script = `mount -t sysfs sysfs /sys && cat /sys/class/net/${macvtap}/tap*/dev`;
    const numbers = await run('unshare', ['--mount', '--', 'sh', '-c', script]);
    const [major = 0, minor = 0] = numbers.split(':').map(Number);
    tap = { major, minor };
    for (const [name, type, numbers] of [
      ['null', 'c', [1, 3]],
      ['zero', 'c', [1, 5]],
      ['mem', 'c', [1, 1]],
      ['tty', 'c', [5, 0]],
      ['ptmx', 'c', [5, 2]],
      ['tap7', 'c', [tap.major, tap.minor]],
      ['sda', 'b', [8, 0]],
      ...(['a', 'b', 'c', 'host'] as const).map((each, i) => [each, 'b', [7, loop(i).minor]] as const),
    ] as const) {
      await make(at(name), type, numbers[0], numbers[1]);
    }
  });
  afterAll(async () => {
    await helper?.destroy();
    await other?.destroy();
    for (const each of loops ?? []) await run('losetup', ['--detach', each]);
    await run('ip', ['link', 'del', 'vpbr0']);
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  beforeEach(async () => {
    pod = await node.createPod({ name: 'virt-launcher-vm1-abcde', vmiUid: vmi.vmiUid, podIP: '10.244.2.5' });
    launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    // The other version may allow less: the process is not in its cgroup.
    const cgroups = launcher.container.cgroups.filter((path) => {
      const hierarchy = mounted.find(({ mountPoint }) => path.startsWith(`${mountPoint}/`));
      return hierarchy?.controllers.join(',') === controllers;
    });
    expect(cgroups).toHaveLength(1);
    opener = await Opener.start(cgroups);
    await make(inDev('tap7'), 'c', tap.major, tap.minor);
    await make(inDev('sda'), 'b', 8, 0);
    await make(inDev('mem'), 'c', 1, 1);
    await make(inDev('root'), 'b', 7, loop(0).minor);
  });
  afterEach(async () => {
    await opener?.kill();
    await node.destroyPods();
    for (const name of [pod.uid]) rmSync(join(helper.pluggedDevicesDir, name), { force: true });
  });

  it('AFT-035 keeps character devices of listed classes and allows what was plugged, and no node that was made', async () => {
    expect(await setPolicy('root', 'sda', 'tty', 'missing')).toMatchObject({ changed: true });
    const names = ['null', 'zero', 'tap7', 'ptmx', 'a', 'b', 'mem', 'tty'] as const;
    // A terminal that a process does not have is another error than one that it may not open.
    const expected = { null: '', zero: '', tap7: '', a: '', b: denied, mem: denied, tty: 'ENXIO' };
    expect(await opened(...names)).toMatchObject(expected);
    await plug('plugged', 1);
    expect(await setPolicy('root')).toMatchObject({ changed: true });
    const { allowedDevices, allowedNote } = await helper
      .operator(InspectService)
      .listDevices({ podUid: pod.uid });
    const expectedRules = [
      `c ${tap.major}:${tap.minor} rwm`,
      `b 7:${loop(0).minor} rwm`,
      `b 7:${loop(1).minor} rwm`,
    ];
    expect(allowedDevices).toEqual(expect.arrayContaining(expectedRules));
    expect([allowedDevices.filter((rule) => /^b \d/.test(rule)).length, allowedNote]).toEqual([2, '']);
    expect(await opened('null', 'zero', 'tap7', 'a', 'b', 'c', 'mem', 'sda')).toEqual({
      ...{ null: '', zero: '', tap7: '', a: '', b: '', c: denied, mem: denied, sda: denied },
    });
  });

  it('STO-018 allows each of several hotplugged devices, and denies only the one that is removed', async () => {
    await setPolicy('root');
    await plug('one', 1);
    await setPolicy('root');
    await plug('two', 2);
    await setPolicy('root');
    expect(await opened('a', 'b', 'c', 'null')).toEqual({ a: '', b: '', c: '', null: '' });
    plugged().leave(pod.uid, 'one');
    await run('chown', [`${helperUser}:${helperUser}`, join(helper.pluggedDevicesDir, pod.uid)]);
    await setPolicy('root');
    expect(await opened('a', 'b', 'c', 'null')).toEqual({ a: '', b: denied, c: '', null: '' });
    // A helper that starts again knows what the one before has plugged.
    await helper.stop('SIGKILL');
    await helper.start();
    expect(await setPolicy('root')).toMatchObject({ changed: false });
    expect(await setPolicy()).toMatchObject({ changed: true });
    expect(await opened('a', 'c')).toEqual({ a: denied, c: '' });
  });

  it('STO-018 never denies what stays allowed while the policy is replaced 300 times', async () => {
    await plug('one', 1);
    await setPolicy('root');
    const watched = await opener.during(['null', 'zero', 'tap7', 'b'].map(at), async () => {
      for (let i = 0; i < 300; ++i) {
        expect((await setPolicy(...(i % 2 === 0 ? [] : ['root']))).changed).toBe(true);
      }
    });
    expect(watched.failures).toEqual([]);
    expect(watched.rounds).toBeGreaterThan(100);
  });

  it('AFT-034 restores a policy that somebody else has replaced, and else does nothing', async () => {
    await plug('one', 1);
    await plug('two', 2);
    expect(await setPolicy()).toMatchObject({ changed: true });
    expect(await setPolicy()).toMatchObject({ changed: false });
    await other.start();
    await other.client(DeviceService).setPolicy({ pod: ref() });
    expect(await opened('b', 'c', 'null')).toEqual({ b: denied, c: denied, null: '' });
    expect(await setPolicy()).toMatchObject({ changed: true });
    expect(await opened('b', 'c', 'null')).toEqual({ b: '', c: '', null: '' });
    expect(await setPolicy()).toMatchObject({ changed: false });
    await other.stop('SIGKILL');
  });

  // On v1 there is one list, and runtimes have no cgroup above it.
  if (controllers === '') {
    it('STO-018 reaches the cgroup of crun above the launcher, whose threads may be in one below', async () => {
      const crun = await node.createPod({
        name: 'virt-launcher-vm2-abcde',
        vmiUid: vmi.vmiUid,
        podIP: '10.244.2.6',
        cgroupDriver: 'systemd',
      });
      const { pid, container } = await startLauncher(crun, { ...vmi, machine: 'fake' });
      const scope = container.cgroups.find((path) => path.startsWith(`${unified}/`)) ?? '';
      expect(scope).toMatch(/\.scope$/);
      const inner = join(scope, 'container');
      const threads = join(inner, 'housekeeping');
      mkdirSync(threads, { recursive: true });
      writeFileSync(join(threads, 'cgroup.procs'), `${pid}`);
      const pods = { podUid: crun.uid, vmiUid: vmi.vmiUid };
      expect(await helper.client(DeviceService).setPolicy({ pod: pods })).toMatchObject({ changed: true });
      for (const cgroup of [scope, inner]) {
        const inside = await Opener.start([cgroup]);
        expect([await inside.open(at('null')), await inside.open(at('mem'))]).toEqual(['', denied]);
        await inside.kill();
      }
      expect(await helper.client(DeviceService).setPolicy({ pod: pods })).toMatchObject({ changed: false });
    });
  }

  it('STO-018 denies every block device to a launcher that outlives its VM, if some were plugged', async () => {
    const unplugAll = () => helper.client(HotplugService).unplugAll({ pod: ref() });
    expect(await setPolicy('root')).toMatchObject({ changed: true });
    expect(await unplugAll()).toMatchObject({ changed: false, problems: [] });
    expect(await opened('a')).toEqual({ a: '' });
    await plug('one', 1);
    await plug('two', 2);
    plugged().leave(pod.uid, 'two');
    await run('chown', [`${helperUser}:${helperUser}`, join(helper.pluggedDevicesDir, pod.uid)]);
    await setPolicy('root');
    expect(await opened('a', 'b')).toEqual({ a: '', b: '' });
    expect(await unplugAll()).toMatchObject({ changed: true, problems: [] });
    expect(plugged().has(pod.uid)).toBe(false);
    expect(await opened('a', 'b', 'c', 'null')).toEqual({ a: denied, b: denied, c: denied, null: '' });
  });

  it('refuses a disk that the host uses, and leaves the policy as it was', async () => {
    await setPolicy('root');
    await run('mkfs.ext4', ['-q', loops[3] ?? '']);
    const point = join(node.root, 'mounted');
    mkdirSync(point);
    await run('mount', [loops[3] ?? '', point]);
    try {
      await plug('mine', 3);
      expect(await failureOf(setPolicy('root'))).toMatchObject({
        operation: 'check block device',
        message: `volume mine is a disk of the host: 7:${loop(3).minor} is mounted at ${point}`,
        refused: true,
        unchanged: true,
      });
      expect(await opened('a', 'host')).toEqual({ a: '', host: denied });
    } finally {
      await run('umount', [point]);
    }
    expect(await setPolicy('root')).toMatchObject({ changed: true });
    expect(await opened('host')).toEqual({ host: '' });
  });
});
