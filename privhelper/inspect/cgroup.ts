/** A process's cgroups with their limits, as the cgroup file systems show them to everybody. */
import { join, relative } from 'node:path';
import { errnoOf } from '../failure.js';
import { maxMountinfoBytes, parseMountinfo } from './mountinfo.js';
import { readBounded, readIfAny } from './proc.js';

export interface Hierarchy {
  /** Comma separated; empty for cgroup v2. */
  readonly controllers: string;
  readonly path: string;
  readonly values: { readonly file: string; readonly value: string }[];
  readonly problem: string;
}

/** Where one hierarchy is mounted. */
interface HierarchyMount {
  readonly version: 1 | 2;
  readonly controllers: readonly string[];
  readonly root: string;
  readonly mountPoint: string;
}

const maxFileBytes = 64 << 10;

const filesOfV2 = [
  'memory.current',
  'memory.max',
  'cpu.max',
  'cpu.weight',
  'cpuset.cpus.effective',
  'pids.current',
  'pids.max',
];

const filesOfV1: Readonly<Record<string, readonly string[]>> = {
  memory: ['memory.usage_in_bytes', 'memory.limit_in_bytes'],
  cpu: ['cpu.cfs_quota_us', 'cpu.cfs_period_us', 'cpu.shares'],
  cpuset: ['cpuset.cpus', 'cpuset.mems'],
  pids: ['pids.current', 'pids.max'],
  devices: ['devices.list'],
};

/**
 * Hierarchies and paths of proc_pid_cgroup(5). The container's own child for the threads beside vCPUs is left out:
 * limits are the container's.
 */
export function parseCgroup(text: string): { controllers: string; path: string }[] {
  return text.split('\n').flatMap((line) => {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line);
    const path = match?.[2]?.replace(/\/housekeeping$/, '');
    return path === undefined ? [] : { controllers: match?.[1] ?? '', path };
  });
}

/** Mounted hierarchies below `cgroupRoot`. */
export function parseHierarchyMounts(mountinfo: string, cgroupRoot: string): HierarchyMount[] {
  return parseMountinfo(mountinfo).flatMap(({ filesystem, mountPoint, root, superOptions }) => {
    const inside = mountPoint === cgroupRoot || mountPoint.startsWith(`${cgroupRoot}/`);
    if (!inside || !filesystem.startsWith('cgroup')) return [];
    const version = filesystem === 'cgroup2' ? 2 : 1;
    return { version, controllers: superOptions.split(','), root, mountPoint } as const;
  });
}

/** The caller makes sure that the process lives when this resolves. */
export async function readCgroups(pid: number, cgroupRoot: string): Promise<Hierarchy[]> {
  const mounts = parseHierarchyMounts(
    await readBounded('/proc/self/mountinfo', maxMountinfoBytes),
    cgroupRoot,
  );
  const found = parseCgroup(await readBounded(`/proc/${pid}/cgroup`, maxFileBytes));
  return Promise.all(found.map((each) => readHierarchy(each, mounts, cgroupRoot)));
}

async function readHierarchy(
  { controllers, path }: { readonly controllers: string; readonly path: string },
  mounts: readonly HierarchyMount[],
  cgroupRoot: string,
): Promise<Hierarchy> {
  const names = controllers.split(',');
  const mount = mounts.find((each) =>
    controllers === '' ? each.version === 2 : names.every((name) => each.controllers.includes(name)),
  );
  const problem = (text: string) => ({ controllers, path, values: [], problem: text });
  if (mount === undefined) return problem(`not mounted below ${cgroupRoot}`);
  const below = relative(mount.root, path);
  // A path that leads upwards lies outside the cgroup namespace of the helper.
  if (`/${below}/`.includes('/../')) return problem("outside the helper's cgroup namespace");
  const files = controllers === '' ? filesOfV2 : names.flatMap((name) => filesOfV1[name] ?? []);
  try {
    const values: Hierarchy['values'] = [];
    for (const file of files) {
      const value = await readIfAny(join(mount.mountPoint, below, file), maxFileBytes);
      if (value !== undefined) values.push({ file, value: value.trim() });
    }
    return { controllers, path, values, problem: '' };
  } catch (error) {
    return problem(`not readable: ${errnoOf(error)}`);
  }
}
