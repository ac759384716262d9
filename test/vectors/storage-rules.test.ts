import { describe, expect, it } from 'vitest';
import { type DiskPodState, HelperContainerDisks } from '../../agent/storage/container-disks.js';
import { silentLog } from '../unit/status/fakes.js';
import { FakeDiskHelper } from '../unit/storage/fakes.js';
import { loadVectors } from './load.js';
import { vmiOf } from './objects.js';

interface DiskInput {
  op: string;
  activePods?: string[] | null;
  tree?: Record<string, string>;
}
interface DiskExpected {
  needed?: boolean;
  targetDirErr?: boolean;
}
const diskCases = loadVectors<DiskInput, DiskExpected>('storage', 'container-disk');

function disksOver(input: DiskInput, marker: string, imageVolume: boolean) {
  const helper = new FakeDiskHelper();
  const pods = new Map<string, DiskPodState>();
  const has = (path: string) => input.tree?.[path] !== undefined;
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
