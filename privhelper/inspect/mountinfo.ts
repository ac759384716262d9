/** proc_pid_mountinfo(5) for people. Texts in it may be a launcher's. */

export interface MountEntry {
  readonly id: number;
  readonly parent: number;
  /** Device numbers of the file system. */
  readonly major: number;
  readonly minor: number;
  readonly mountPoint: string;
  readonly filesystem: string;
  readonly root: string;
  readonly source: string;
  readonly options: string;
  readonly superOptions: string;
  /** As they are: `shared:1 master:2`. */
  readonly optionalFields: string;
  /** shared, slave, private or unbindable. */
  readonly propagation: string;
  /** Volume index of a container disk. */
  readonly containerDisk: number | undefined;
}

/** Text of more bytes is not read. */
export const maxMountinfoBytes = 4 << 20;

const containerDisk = /^(?:\/var)?\/run\/kubevirt\/container-disks\/disk_(\d{1,3})\.img$/;

/** The mounts in order. Lines of another form are left out. */
export function parseMountinfo(text: string): MountEntry[] {
  return text.split('\n').flatMap((line) => {
    const [front = '', back] = line.split(' - ', 2);
    const [id, parent, device = '', root, mountPoint, options, ...tags] = front.split(' ').map(unescaped);
    const [filesystem, source, superOptions] = (back ?? '').split(' ').map(unescaped);
    const [, major, minor] = /^(\d{1,10}):(\d{1,10})$/.exec(device) ?? [];
    if (major === undefined || root === undefined || mountPoint === undefined || options === undefined)
      return [];
    if (filesystem === undefined || source === undefined) return [];
    const disk = containerDisk.exec(mountPoint)?.[1];
    return {
      id: Number(id),
      parent: Number(parent),
      major: Number(major),
      minor: Number(minor),
      mountPoint,
      filesystem,
      root,
      source,
      options,
      superOptions: superOptions ?? '',
      optionalFields: tags.join(' '),
      propagation: propagation(tags),
      containerDisk: disk === undefined ? undefined : Number(disk),
    };
  });
}

/** Volume indexes of the container disks that are mounted, ascending. */
export function mountedDisks(mounts: readonly MountEntry[]): number[] {
  const disks = mounts.flatMap(({ containerDisk }) => containerDisk ?? []);
  return [...new Set(disks)].sort((a, b) => a - b);
}

/** The mount that holds a path: the longest mount point above it, the last of several there. */
export function mountOf(mounts: readonly MountEntry[], path: string): MountEntry | undefined {
  let found: MountEntry | undefined;
  for (const mount of mounts) {
    const { mountPoint } = mount;
    const above = mountPoint === '/' || path === mountPoint || path.startsWith(`${mountPoint}/`);
    if (above && mountPoint.length >= (found?.mountPoint.length ?? 0)) found = mount;
  }
  return found;
}

function propagation(tags: readonly string[]): string {
  const has = (name: string) => tags.some((tag) => tag === name || tag.startsWith(`${name}:`));
  if (has('unbindable')) return 'unbindable';
  const kinds = [has('shared') ? 'shared' : '', has('master') ? 'slave' : ''].filter(Boolean);
  return kinds.length === 0 ? 'private' : kinds.join(', ');
}

/** The kernel writes space, tab, newline and backslash as octal numbers. */
function unescaped(text: string): string {
  return text.replace(/\\(040|011|012|134)/g, (_, octal: string) =>
    String.fromCharCode(Number.parseInt(octal, 8)),
  );
}
