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

/** The mounts in order. Lines of another form are left out; a number that is none is 0. */
export function parseMountinfo(text: string): MountEntry[] {
  return text.split('\n').flatMap((line) => parseMount(line.split(' ')) ?? []);
}

function parseMount(fields: readonly string[]): MountEntry | undefined {
  // The optional fields end at the last `-` that leaves room for all that follows.
  const separator = fields.lastIndexOf('-', fields.length - 4);
  if (separator < 6) return undefined;
  const [id, parent, device = '', , , options = ''] = fields;
  const [root, mountPoint] = fields.slice(3, 5).map(unescaped);
  const [filesystem, source] = fields.slice(separator + 1).map(unescaped);
  const superOptions = fields[separator + 3] ?? '';
  const [, major, minor] = /^([^:]*):([^:]*)$/.exec(device) ?? [];
  if (root === undefined || mountPoint === undefined || filesystem === undefined) return undefined;
  if (source === undefined || major === undefined) return undefined;
  const tags = fields.slice(6, separator);
  const disk = containerDisk.exec(mountPoint)?.[1];
  return {
    id: integer(id),
    parent: integer(parent),
    major: integer(major),
    minor: integer(minor),
    mountPoint,
    filesystem,
    root,
    source,
    options,
    superOptions,
    optionalFields: tags.join(' '),
    propagation: propagation(tags),
    containerDisk: disk === undefined ? undefined : Number(disk),
  };
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

function integer(text = ''): number {
  return /^[+-]?\d+$/.test(text) ? Number(text) : 0;
}

/** The kernel writes blanks and some other bytes as three octal digits. Undefined for any other backslash. */
function unescaped(text = ''): string | undefined {
  if (/\\(?![0-7]{3})/.test(text)) return undefined;
  return text.replace(/(?:\\[0-7]{3})+/g, (escapes) => {
    const bytes = escapes.slice(1).split('\\');
    return Buffer.from(bytes.map((octal) => Number.parseInt(octal, 8))).toString();
  });
}
