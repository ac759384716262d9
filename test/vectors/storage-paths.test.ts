import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import type { PodState } from '../../agent/helper/pod-state.js';
import { findSocket, isSocketUnresponsive, launcherSocketPath } from '../../agent/launcher/sockets.js';
import { type MountEntry, parseMountinfo } from '../../privhelper/inspect/mountinfo.js';
import { backingOf } from '../../privhelper/inspect/node-path.js';
import { loadVectors } from './load.js';

interface ParsedLine {
  error?: boolean;
  fsType: string;
  id: number;
  parent: number;
  major: number;
  minor: number;
  mountpoint: string;
  optional: string;
  options: string;
  root: string;
  source: string;
  vfsOptions: string;
}

describe('mountinfo-parse', () => {
  it.each(loadVectors<{ line: string }, ParsedLine>('storage', 'mountinfo-parse'))(
    'STO-004 $name',
    ({ input, expected }) => {
      const [entry] = parseMountinfo(input.line);
      if (expected.error) return expect(entry).toBeUndefined();
      const { id, parent, major, minor, root, mountPoint, options, optionalFields } = entry as MountEntry;
      const { filesystem, source, superOptions } = entry as MountEntry;
      expect({
        ...{ id, parent, major, minor, root, mountpoint: mountPoint, options, optional: optionalFields },
        ...{ fsType: filesystem, source, vfsOptions: superOptions },
      }).toEqual(expected);
    },
  );
});

type Mountinfo = string | { readonly file: string };

interface PathInput {
  childMountinfo: Mountinfo;
  hostMountinfo: Mountinfo;
  kubeletPodsDir: string;
  podUID: string;
  source: string;
  target: string;
}

interface PathExpected {
  ok: boolean;
  parentMountId?: number;
  parentMountpoint?: string;
  parentRoot?: string;
  path?: string;
}

function mountsOf(mountinfo: Mountinfo): MountEntry[] {
  if (typeof mountinfo === 'string') return parseMountinfo(mountinfo);
  const file = new URL(`storage/${mountinfo.file}.gz`, import.meta.url);
  return parseMountinfo(gunzipSync(readFileSync(file)).toString());
}

/** Where v1.9.0 compares names as text, `/ab` lies below `/a` for it. */
const corrected: Readonly<Record<string, PathExpected>> = {
  'BUG raw string prefix: /vol1 matches /vol10': {
    ok: true,
    parentMountId: 20,
    parentMountpoint: '/',
    parentRoot: '/',
    path: '/mnt/vol10',
  },
  'BUG raw prefix: random 2': { ok: false },
  'BUG raw prefix: random 147': { ok: false },
};

type Tree = Readonly<Record<string, string>>;

/** What the helper reports of a pod in such a tree, where a file stands for a socket. */
function podStateIn(tree: Tree, podUid: string): PodState | undefined {
  const sockets = `pods/${podUid}/volumes/kubernetes.io~empty-dir/sockets`;
  const kindOf = (path: string) =>
    tree[path] ?? (Object.keys(tree).some((each) => each.startsWith(`${path}/`)) ? 'dir' : undefined);
  const directory = kindOf(sockets);
  if (directory === undefined) return undefined;
  const socket = kindOf(`${sockets}/launcher-sock`);
  const link = [directory, socket].some((kind) => kind?.startsWith('link:'));
  return {
    podUid,
    directory: directory === 'dir',
    launcherSocket: link ? 'refused' : socket === undefined ? 'absent' : 'present',
    unresponsiveMarker: kindOf(`${sockets}/launcher-unresponsive`) !== undefined,
    containerDisks: [],
    kernelBoot: false,
    containerDiskBinary: false,
    launcherExited: false,
  };
}

interface SocketInput {
  op: string;
  activePods?: Record<string, string>;
  nodeName?: string;
  tree?: Tree;
  podUID?: string;
}
interface SocketExpected {
  error?: boolean;
  socket?: string;
  unresponsive?: boolean;
  file?: string;
}

describe('launcher-socket', () => {
  it.each(loadVectors<SocketInput, SocketExpected>('storage', 'launcher-socket'))(
    'STO-001 $name',
    ({ input, expected }) => {
      const { activePods = {}, nodeName = '', tree = {}, podUID = '' } = input;
      if (input.op === 'socketPaths') {
        expect(launcherSocketPath(podUID)).toBe(expected.file);
      } else if (input.op === 'isSocketUnresponsive') {
        const inPod = Object.entries(tree).map(([path, kind]) => [
          path.replace(/^s\//, 'pods/p1/volumes/kubernetes.io~empty-dir/sockets/'),
          kind,
        ]);
        expect(isSocketUnresponsive(podStateIn(Object.fromEntries(inPod), 'p1'))).toBe(expected.unresponsive);
      } else {
        const search = findSocket(activePods, nodeName, (podUid) => podStateIn(tree, podUid), undefined);
        expect(search.kind !== 'found').toBe(expected.error);
        if (search.kind === 'found')
          expect(`$ROOT${launcherSocketPath(search.podUid)}`).toBe(expected.socket);
      }
    },
  );
});

describe('parent-path', () => {
  const cases = loadVectors<PathInput, PathExpected & { stage?: string }>('storage', 'parent-path');

  it.each(cases)('STO-004 $name', ({ name, input, expected }) => {
    const child = mountsOf(input.childMountinfo).find(({ mountPoint }) => mountPoint === input.target);
    const { source, kubeletPodsDir, podUID: podUid } = input;
    const found =
      child && backingOf(child, mountsOf(input.hostMountinfo), { source, kubeletPodsDir, podUid });
    const { stage: _, ...rest } = expected;
    expect(
      found === undefined
        ? { ok: false }
        : {
            ok: true,
            parentMountId: found.mount.id,
            parentMountpoint: found.mount.mountPoint,
            parentRoot: found.mount.root,
            path: found.path,
          },
    ).toEqual(corrected[name] ?? rest);
  });

  it('has an answer of its own for every case that shows the fault', () => {
    for (const { name } of cases.filter(({ name }) => name.startsWith('BUG')))
      expect(corrected).toHaveProperty([name]);
  });
});
