import { create } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { HelperError } from '../../../agent/helper/errors.js';
import { type DiskPodState, HelperContainerDisks } from '../../../agent/storage/container-disks.js';
import { FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
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

function helperError(method: string, field: string): HelperError {
  const failure = create(FailureSchema, { operation: 'fake', field });
  return new HelperError(`StorageService.${method}`, Code.Internal, 'EIO', failure);
}

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
    // As clients write it that know every field.
    const nulls = vmi([{ ...blank, containerDisk: null }], { kernelBoot: { container: null } });
    expect(await disks.ready(nulls, now)).toBe(true);
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

  it.each([
    ['', 'containerdisk boot'],
    ['volume_indexes[1]', 'containerdisk data'],
    ['kernel_boot', 'kernelboot container'],
  ])('STO-005 takes what cannot be examined (%j) as not ready', async (field, what) => {
    helper.statError = helperError('StatContainerDisks', field);
    const kernelBoot = { container: { image: 'i', kernelPath: '/k' } };
    const object = vmi([disk('boot'), disk('data')], { kernelBoot });
    expect(await disks.ready(object, now)).toBe(false);
    expect(lines.some((line) => line.includes(`${what} of pod p1 is not ready`))).toBe(true);
    now += 60_001;
    await expect(disks.ready(object, 1_000_000)).rejects.toThrow(`${what} still not ready`);
  });

  it('STO-007 asks once, for the places among all volumes, and names the first that is late', async () => {
    const object = vmi([blank, disk('a'), blank, disk('b')]);
    helper.listening.add(1);
    await expect(disks.ready(object, now - 60_001)).rejects.toThrow('containerdisk b still not ready');
    expect(helper.calls).toEqual(['stat-disks p1 1, 3']);
    helper.listening.add(3);
    expect(await disks.ready(object, now)).toBe(true);
  });

  it('asks the second of two pods for what the first one has not', async () => {
    pods.set('p2', oldPod);
    helper.isListening = (podUid, index) => (index === 0) === (podUid === 'p1');
    expect(await disks.ready(vmi([disk('a'), disk('b')], {}, ['p1', 'p2']), now)).toBe(true);
    expect(helper.calls).toEqual(['stat-disks p1 0, 1', 'stat-disks p2 1']);
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
    expect(helper.calls.at(-1)).toBe('stat-disks p1 kernel-boot');
  });
});

describe('mountAndVerify', () => {
  it('STO-007 mounts each disk at the place of its volume, with its own path, by one call', async () => {
    await disks.mountAndVerify(vmi([disk('a'), blank, disk('b', '/images/b.qcow2')]));
    expect(helper.calls).toEqual(["mount p1 0 '', 2 '/images/b.qcow2'"]);
  });

  it.each([
    ['', 'containerdisk a'],
    ['disks[0]', 'containerdisk a'],
    ['disks[1].image_path', 'containerdisk b'],
    ['kernel_artifacts[0]', 'kernel artifact /i'],
    ['kernel_artifacts[1]', 'kernel artifact /k'],
  ])('says what failed: %j', async (field, what) => {
    helper.mountError = helperError('MountContainerDisks', field);
    const container = { image: 'i', kernelPath: '/k', initrdPath: '/i' };
    await expect(
      disks.mountAndVerify(vmi([disk('a'), blank, disk('b')], { kernelBoot: { container } })),
    ).rejects.toThrow(`failed to mount ${what}: helper StorageService.MountContainerDisks: EIO`);
    expect(helper.calls).toHaveLength(1);
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
    [{ kernelPath: '/k', initrdPath: '/k' }, ["'/k'"]],
    [{}, []],
  ])('STO-011 mounts exactly the configured artifacts of %j', async (paths, mounted) => {
    const object = vmi([disk('a')], { kernelBoot: { container: { image: 'i', ...paths } } });
    await disks.mountAndVerify(object);
    expect(helper.calls).toEqual([
      `mount p1 ${["0 ''", ...mounted.map((path) => `kernel-boot ${path}`)].join(', ')}`,
    ]);
  });

  it('STO-011 mounts nothing of a kernel-boot container without paths', async () => {
    await disks.mountAndVerify(vmi([], { kernelBoot: { container: { image: 'i' } } }));
    expect(helper.calls).toEqual([]);
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

  // The helper itself tells a pod that is gone from a failure.
  it.each([Code.NotFound, Code.Internal])(
    'fails, to be repeated, when the helper answers %i',
    async (code) => {
      helper.unmountError = new HelperError('StorageService.UnmountContainerDisks', code, 'EIO', undefined);
      await expect(disks.unmount(ref)).rejects.toThrow('failed to unmount the container disks of pod p1');
    },
  );

  it('does nothing for an unknown UID', async () => {
    await disks.unmount({ ...ref, uid: '' });
    expect(helper.calls).toEqual([]);
  });
});
