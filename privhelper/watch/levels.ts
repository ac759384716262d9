/** The directories of a pod in which something tells about its launcher, from the top down. */

export interface Level {
  /** Below the pods directory, after the pod UID. */
  readonly components: readonly string[];
  /** Entries whose coming or going matters. */
  readonly concerns: (name: string) => boolean;
  /** An entry is itself a watched directory, so the chain below must be looked at again. */
  readonly branches: boolean;
}

const emptyDir = ['volumes', 'kubernetes.io~empty-dir'] as const;

function oneOf(...names: string[]): (name: string) => boolean {
  return (name) => names.includes(name);
}

/** Parents before children: a directory that appears while its parent is watched is not missed. */
export const levels: readonly Level[] = [
  { components: [], concerns: oneOf('volumes', 'containers'), branches: true },
  { components: ['volumes'], concerns: oneOf('kubernetes.io~empty-dir'), branches: true },
  { components: emptyDir, concerns: oneOf('sockets', 'container-disks'), branches: true },
  {
    components: [...emptyDir, 'sockets'],
    concerns: oneOf('launcher-sock', 'launcher-unresponsive'),
    branches: false,
  },
  {
    components: [...emptyDir, 'container-disks'],
    concerns: (name) => /^(?:disk_\d{1,3}|kernel-boot)\.sock$/.test(name),
    branches: false,
  },
  { components: ['containers'], concerns: oneOf('container-disk-binary'), branches: false },
];

/** Index of the sockets directory: what has none is not a launcher pod. */
export const socketsLevel = 3;

/** Mask of the watches, inotify(7): coming and going of entries and of the directory itself. */
const watchMask = {
  IN_MOVED_FROM: 0x40,
  IN_MOVED_TO: 0x80,
  IN_CREATE: 0x100,
  IN_DELETE: 0x200,
  IN_DELETE_SELF: 0x400,
  IN_MOVE_SELF: 0x800,
} as const;

export const watched = Object.values(watchMask).reduce((mask, bit) => mask | bit, 0);

/** The watch is gone: the directory was deleted, or the watch removed. */
export const IN_IGNORED = 0x8000;
