/**
 * Where the node has the bytes of a mount in a container (KubeVirt pkg/virt-handler/isolation ParentPathForMount). For
 * people: nothing is ever opened by such a path, for mounts on the way to it may hide what it names.
 */
import { join } from 'node:path';
import type { MountEntry } from './mountinfo.js';

export interface Backing {
  /** The node's mount of the file system. */
  readonly mount: MountEntry;
  /** Path on the node. */
  readonly path: string;
}

export interface BackingOptions {
  /** What was mounted; tells exports of one NFS server apart. */
  readonly source: string;
  /** Below it only volumes of the pod are taken; all if one of the two is empty. */
  readonly kubeletPodsDir: string;
  readonly podUid: string;
}

/**
 * The mount of the same file system on the node that shows the most of what lies above the container's root of it;
 * the first of several. Undefined where the node has none: the runtime has it in a mount namespace of its own.
 */
export function backingOf(
  mount: MountEntry,
  node: readonly MountEntry[],
  options: BackingOptions,
): Backing | undefined {
  let found: { readonly mount: MountEntry; readonly rest: string } | undefined;
  for (const candidate of node) {
    if (candidate.major !== mount.major || candidate.minor !== mount.minor) continue;
    const rest = below(mount.root, candidate.root);
    if (rest === undefined || !isSameExport(candidate, mount, options) || isOtherPods(candidate, options))
      continue;
    if (found === undefined || candidate.root.length > found.mount.root.length) {
      found = { mount: candidate, rest };
    }
  }
  return found && { mount: found.mount, path: join(found.mount.mountPoint, found.rest) };
}

/** What is left of `path` below `directory`; undefined where it is not below it. */
function below(path: string, directory: string): string | undefined {
  if (path === directory) return '';
  if (directory === '/') return path;
  return path.startsWith(`${directory}/`) ? path.slice(directory.length) : undefined;
}

/** All mounts of one NFS server may have one device number. */
function isSameExport(candidate: MountEntry, mount: MountEntry, { source }: BackingOptions): boolean {
  const { filesystem } = candidate;
  return !filesystem.includes('nfs') || filesystem !== mount.filesystem || candidate.source === source;
}

function isOtherPods({ mountPoint }: MountEntry, { kubeletPodsDir, podUid }: BackingOptions): boolean {
  if (kubeletPodsDir === '' || podUid === '') return false;
  const pods = join(kubeletPodsDir, '/');
  return mountPoint.startsWith(pods) && !mountPoint.startsWith(join(pods, podUid, '/'));
}
