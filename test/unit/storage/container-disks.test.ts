import { Code } from '@connectrpc/connect';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { HelperError } from '../../../agent/helper/errors.js';
import { type DiskPodState, HelperContainerDisks } from '../../../agent/storage/container-disks.js';
import { silentLog } from '../status/fakes.js';
import { FakeDiskHelper } from './fakes.js';

let helper: FakeDiskHelper;
let pods: Map<string, DiskPodState>;
let imageVolume: boolean;
let now: number;
let podsOf: string[];
let lines: string[];
/** Names of images whose checksums are known. */
let known: Set<string>;
let disks: HelperContainerDisks;

const oldPod = { directory: true, containerDiskBinary: true };
const newPod = { directory: true, containerDiskBinary: false };

beforeEach(() => {
  helper = new FakeDiskHelper();
  pods = new Map();
  pods.set('p1', oldPod);
  imageVolume = true;
  now = 1_000_000;
  podsOf = ['p1'];
  known = new Set();
  lines = [];
  disks = new HelperContainerDisks({
    helper,
    podState: (podUid) => pods.get(podUid),
    podsOf: () => podsOf,
    checksums: {
      of: (vmi, pod, images) => {
        helper.calls.push(`checksums of ${vmi.uid} in ${pod.podUid}`);
        return new Map(
          images.map(({ name }, i) => [name, i + 1] as const).filter(([name]) => known.has(name)),
        );
      },
      forget: (vmiUid) => {
        helper.calls.push(`forget ${vmiUid}`);
      },
    },
    imageVolume: () => imageVolume,
    clock: { now: () => now },
    log: silentLog(lines),
  });
});

const blank = { name: 'scratch', emptyDisk: { capacity: '1Gi' } };
const disk = (name: string, path?: string) => ({
  name,
  containerDisk: { image: 'i', ...(path && { path }) },
});

function vmi(volumes: object[], firmware: object = {}, pods = ['p1']): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid: 'u1' },
    spec: { volumes, domain: { devices: {}, firmware } },
    status: { activePods: Object.fromEntries(pods.map((uid) => [uid, 'node01'])) },
  } as Vmi;
}

describe('ready', () => {
  it('asks nothing for a VMI without container disks', async () => {
    expect(await disks.ready(vmi([blank]), now)).toBe(true);
    expect(helper.calls).toEqual([]);
  });

  it('STO-005 is late for a minute without an error, then names the disk', async () => {
    const object = vmi([blank, disk('boot')]);
    const since = now;
    expect(await disks.ready(object, since)).toBe(false);
    now = since + 60_000;
    expect(await disks.ready(object, since)).toBe(false);
    now = since + 60_001;
    await expect(disks.ready(object, since)).rejects.toThrow(
      'containerdisk boot still not ready after one minute',
    );
    helper.listening.add(1);
    expect(await disks.ready(object, since)).toBe(true);
  });

  it('STO-005 takes a disk that cannot be examined as not ready', async () => {
    helper.statError = new HelperError('StorageService.StatContainerDisk', Code.Internal, 'EIO', undefined);
    expect(await disks.ready(vmi([disk('boot')]), now)).toBe(false);
    expect(lines.some((line) => line.includes('containerdisk boot of pod p1 is not ready'))).toBe(true);
    now += 60_001;
    await expect(disks.ready(vmi([disk('boot')]), 1_000_000)).rejects.toThrow(
      'containerdisk boot still not ready',
    );
  });

  it('STO-007 asks for the place among all volumes', async () => {
    helper.listening.add(1).add(3);
    expect(await disks.ready(vmi([blank, disk('a'), blank, disk('b')]), now)).toBe(true);
    expect(helper.calls.filter((call) => call.startsWith('stat-disk'))).toEqual([
      'stat-disk p1 1',
      'stat-disk p1 3',
    ]);
  });

  it('STO-006 needs nothing from a pod that has image volumes', async () => {
    pods.set('p1', newPod);
    expect(await disks.ready(vmi([disk('boot')]), now)).toBe(true);
    await disks.mountAndVerify(vmi([disk('boot')]));
    expect(helper.calls).toEqual([]);
    imageVolume = false;
    expect(await disks.ready(vmi([disk('boot')]), now)).toBe(false);
  });

  it('STO-005 waits for the container that kernel and initrd come from', async () => {
    const object = vmi([], { kernelBoot: { container: { image: 'i', kernelPath: '/k' } } });
    expect(await disks.ready(object, now)).toBe(false);
    now += 60_001;
    await expect(disks.ready(object, 1_000_000)).rejects.toThrow(
      'kernelboot container still not ready after one minute',
    );
    helper.listening.add(null);
    expect(await disks.ready(object, 1_000_000)).toBe(true);
    expect(helper.calls.at(-1)).toBe('stat-disk p1 kernel-boot');
  });
});

describe('mountAndVerify', () => {
  it('STO-007 mounts each disk at the place of its volume, with its own path', async () => {
    await disks.mountAndVerify(vmi([disk('a'), blank, disk('b', '/images/b.qcow2')]));
    expect(helper.calls.filter((call) => call.startsWith('mount'))).toEqual([
      "mount p1 0 ''",
      "mount p1 2 '/images/b.qcow2'",
    ]);
  });

  it('says which disk failed and does not go on', async () => {
    helper.mountError = new Error('no file found in folder /disk, no disk present');
    await expect(disks.mountAndVerify(vmi([disk('a'), disk('b')]))).rejects.toThrow(
      'failed to mount containerdisk a: no file found in folder /disk, no disk present',
    );
    expect(helper.calls.filter((call) => call.startsWith('mount'))).toHaveLength(1);
  });

  it('waits while pods of two kinds are there', async () => {
    pods.set('p2', oldPod);
    await expect(disks.mountAndVerify(vmi([disk('a')], {}, ['p1', 'p2']))).rejects.toThrow(
      'Found multiple pods active for vmi ns/vm. Waiting on outdated pod directories to be removed',
    );
  });

  it.each([
    [{ kernelPath: '/boot/vmlinuz' }, ["'/boot/vmlinuz'"]],
    [{ initrdPath: '/boot/initrd' }, ["'/boot/initrd'"]],
    [{ kernelPath: '/k', initrdPath: '/i' }, ["'/i'", "'/k'"]],
    [{ kernelPath: '/k', initrdPath: '' }, ["'/k'"]],
    [{}, []],
  ])('STO-011 mounts exactly the configured artifacts of %j', async (paths, mounted) => {
    const object = vmi([disk('a')], { kernelBoot: { container: { image: 'i', ...paths } } });
    await disks.mountAndVerify(object);
    expect(helper.calls).toEqual(["mount p1 0 ''", ...mounted.map((path) => `mount p1 kernel-boot ${path}`)]);
  });

  it('says which kernel artifact failed', async () => {
    helper.mountError = new Error('openat2 image: ENOENT');
    const object = vmi([], { kernelBoot: { container: { image: 'i', kernelPath: '/k' } } });
    await expect(disks.mountAndVerify(object)).rejects.toThrow(
      'failed to mount kernel artifact /k: openat2 image: ENOENT',
    );
  });
});

describe('computeChecksums', () => {
  const running = (object: Vmi): Vmi => ({ ...object, status: { ...object.status, phase: 'Running' } });

  const container = { image: 'i', kernelPath: '/k', initrdPath: '/i' };

  it('STO-014 tells what is known of disks, kernel and initrd', () => {
    const object = running(vmi([disk('a'), blank, disk('b')], { kernelBoot: { container } }));
    expect(disks.computeChecksums(object)).toEqual({ containerDisks: new Map() });
    expect(helper.calls).toEqual(['checksums of u1 in p1']);
    known = new Set(['containerdisk b', 'kernel']);
    imageVolume = false;
    expect(disks.computeChecksums(object)).toEqual({ containerDisks: new Map([['b', 2]]), kernel: 3 });
    known.add('initrd').add('containerdisk a');
    expect(disks.computeChecksums(object)).toEqual({
      containerDisks: new Map([
        ['a', 1],
        ['b', 2],
      ]),
      kernel: 3,
      initrd: 4,
    });
  });

  it('asks for nothing before it runs, without a pod, with two, and where nothing is to be mounted', () => {
    disks.computeChecksums(running(vmi([disk('a')], {}, [])));
    pods.set('p2', oldPod);
    disks.computeChecksums(running(vmi([disk('a')], {}, ['p1', 'p2'])));
    pods.delete('p2');
    disks.computeChecksums(vmi([disk('a')]));
    pods.set('p1', newPod);
    disks.computeChecksums(running(vmi([disk('a')])));
    disks.computeChecksums(running(vmi([blank])));
    expect(helper.calls).toEqual([]);
  });
});

describe('unmount', () => {
  const ref = { namespace: 'ns', name: 'vm', uid: 'u1' };

  it('reaches every pod that the node remembers', async () => {
    podsOf = ['p1', 'p2'];
    await disks.unmount(ref);
    expect(helper.calls).toEqual(['forget u1', 'unmount p1 of u1', 'unmount p2 of u1']);
  });

  it('is done where the pod is gone, and fails where it is not', async () => {
    helper.unmountError = new HelperError(
      'StorageService.UnmountContainerDisks',
      Code.NotFound,
      'gone',
      undefined,
    );
    await disks.unmount(ref);
    helper.unmountError = new HelperError(
      'StorageService.UnmountContainerDisks',
      Code.Internal,
      'EIO',
      undefined,
    );
    await expect(disks.unmount(ref)).rejects.toThrow('failed to unmount the container disks of pod p1');
  });

  it('does nothing for an unknown UID', async () => {
    await disks.unmount({ ...ref, uid: '' });
    expect(helper.calls).toEqual([]);
  });
});
