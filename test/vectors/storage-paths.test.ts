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

/** v1.9.0 compares names as text: `/ab` lies below `/a` for it. */
function liesBelow(path: string, directory: string): boolean {
  return directory === '/' || path === directory || path.startsWith(`${directory}/`);
}

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

  const answer = (
    { source, kubeletPodsDir, podUID: podUid }: PathInput,
    child: MountEntry,
    node: MountEntry[],
  ) => {
    const found = backingOf(child, node, { source, kubeletPodsDir, podUid });
    if (found === undefined) return { ok: false };
    const { id, mountPoint, root } = found.mount;
    return { ok: true, parentMountId: id, parentMountpoint: mountPoint, parentRoot: root, path: found.path };
  };

  it.each(cases)('STO-004 $name', ({ input, expected }) => {
    const child = mountsOf(input.childMountinfo).find(({ mountPoint }) => mountPoint === input.target);
    const { stage: _, ...wanted } = expected;
    if (child === undefined) return expect({ ok: false }).toEqual(wanted);
    const node = mountsOf(input.hostMountinfo);
    const found = answer(input, child, node);
    const { parentRoot } = wanted;
    if (parentRoot === undefined || liesBelow(child.root, parentRoot)) return expect(found).toEqual(wanted);
    // Misled by a name that begins alike: as if there were no such mounts.
    const apart = node.filter(({ root }) => liesBelow(child.root, root));
    expect(apart.length).toBeLessThan(node.length);
    expect(found).toEqual(answer(input, child, apart));
  });
});
