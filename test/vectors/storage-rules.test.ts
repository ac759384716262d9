import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { type DiskPodState, HelperContainerDisks } from '../../agent/storage/container-disks.js';
import { MountContainerDisksRequestSchema } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { mountContainerDisks } from '../../privhelper/policy/images.js';
import { createPolicy } from '../../privhelper/policy/policy.js';
import { refA } from '../unit/privhelper/fakes.js';
import { silentLog } from '../unit/status/fakes.js';
import { FakeDiskHelper } from '../unit/storage/fakes.js';
import { loadVectors } from './load.js';
import { vmiOf } from './objects.js';

interface DiskInput {
  op: string;
  volumeIndex?: number;
  artifact?: string;
  activePods?: string[] | null;
  tree?: Record<string, string>;
}
interface DiskExpected {
  socketErr?: boolean;
  kernelSocketErr?: boolean;
  launcherPath?: string;
  targetName?: string;
  needed?: boolean;
  targetDirErr?: boolean;
}
const diskCases = loadVectors<DiskInput, DiskExpected>('storage', 'container-disk');

function disksOver(input: DiskInput, marker: string, imageVolume: boolean) {
  const helper = new FakeDiskHelper();
  const pods = new Map<string, DiskPodState>();
  const has = (path: string) =>
    Object.keys(input.tree ?? {}).some((each) => each === path || each.startsWith(`${path}/`));
  for (const uid of input.activePods ?? []) {
    pods.set(uid, {
      directory: has(`pods/${uid}/volumes/kubernetes.io~empty-dir/${marker}`),
      containerDiskBinary: has(`pods/${uid}/containers/container-disk-binary`),
    });
  }
  const disks = new HelperContainerDisks({
    helper,
    podState: (podUid) => pods.get(podUid),
    podsOf: () => [],
    checksums: { of: () => new Map(), forget: () => {} },
    imageVolume: () => imageVolume,
    clock: { now: () => 0 },
    log: silentLog(),
  });
  const vmi = vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { volumes: [{ name: 'disk', containerDisk: { image: 'i' } }] },
    status: { activePods: Object.fromEntries((input.activePods ?? []).map((uid) => [uid, 'node01'])) },
  });
  return { helper, disks, vmi };
}

describe('container-disk', () => {
  it.each(diskCases.filter(({ input }) => input.op === 'needsBindMount'))(
    'STO-006 $name',
    async ({ input, expected }) => {
      const { disks, helper, vmi } = disksOver(input, 'sockets', true);
      helper.listening.add(0);
      expect(await disks.ready(vmi, 0)).toBe(true);
      expect(helper.calls.some((call) => call.startsWith('stat-disk'))).toBe(expected.needed);
    },
  );

  it.each(diskCases.filter(({ input }) => input.op === 'paths'))(
    'STO-007 $name',
    async ({ input, expected }) => {
      const { disks, helper, vmi } = disksOver(input, 'container-disks', false);
      const { volumeIndex = 0, tree = {}, activePods } = input;
      helper.isListening = (podUid, index) => {
        const socket = index === null ? 'kernel-boot.sock' : `disk_${index}.sock`;
        return tree[`pods/${podUid}/volumes/kubernetes.io~empty-dir/container-disks/${socket}`] !== undefined;
      };
      const volumes = Array.from({ length: volumeIndex + 1 }, (_, i) => ({ name: `v${i}`, emptyDisk: {} }));
      const disk = { name: 'disk', containerDisk: { image: 'i' } };
      const withDisk = { ...vmi, spec: { volumes: [...volumes.slice(1), disk] } } as Vmi;
      expect(await disks.ready(withDisk, 0)).toBe(expected.socketErr === false);
      const kernelBoot = { container: { image: 'i', kernelPath: '/k' } };
      const withKernel = { ...vmi, spec: { domain: { devices: {}, firmware: { kernelBoot } } } } as Vmi;
      expect(await disks.ready(withKernel, 0)).toBe(expected.kernelSocketErr === false);
      const one = disks.mountAndVerify(withDisk).then(
        () => false,
        () => true,
      );
      expect(await one).toBe(expected.targetDirErr);
      expect(helper.calls.every((call) => (activePods ?? []).includes(call.split(' ')[1] ?? ''))).toBe(true);
    },
  );

  // What names no file in a directory is refused.
  const isNameless = (path: string) => ['', '.', '..'].includes(path.split('/').at(-1) ?? '');
  it.each(diskCases.filter(({ input }) => input.op === 'kernelBootLauncherPath'))(
    'STO-011 $name',
    ({ input: { artifact = '' }, expected }) => {
      const request = create(MountContainerDisksRequestSchema, { pod: refA, kernelArtifacts: [artifact] });
      if (isNameless(artifact)) {
        expect(() => mountContainerDisks.parse(createPolicy(), request)).toThrow('kernel_artifacts[0]');
        return;
      }
      const [image] = mountContainerDisks.parse(createPolicy(), request).images;
      expect(`/var/run/kubevirt/container-disks/kernel-boot/${image?.name}`).toBe(expected.launcherPath);
    },
  );

  it.each(diskCases.filter(({ input }) => input.op === 'targetDir'))('$name', async ({ input, expected }) => {
    const { disks, helper, vmi } = disksOver(input, 'container-disks', false);
    const mounting = disks.mountAndVerify(vmi);
    if (expected.targetDirErr) {
      await expect(mounting).rejects.toThrow();
      expect(helper.calls.filter((call) => call.startsWith('mount'))).toEqual([]);
    } else {
      await mounting;
      expect(helper.calls).toContainEqual(expect.stringMatching(/^mount p[0-9]+ 0 ''$/));
    }
  });
});
