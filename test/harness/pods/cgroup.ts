/** Control groups of a pod, named as kubelet names them, in every hierarchy that is mounted. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readIfThere } from './proc.js';
import { signal, waitFor } from './run.js';

/** One cgroup hierarchy: the directory of the harness's own cgroup in it. */
interface Hierarchy {
  /** Empty for cgroup v2. */
  readonly controllers: readonly string[];
  readonly mountPoint: string;
  readonly base: string;
}

export type CgroupDriver = 'cgroupfs' | 'systemd';

/**
 * What runc lets a container do by default (any mknod, but use only of these), with the devices that a
 * launcher gets from its device plugins.
 */
const allowedDevices = [
  'c *:* m',
  'b *:* m',
  'c 1:3 rwm',
  'c 1:5 rwm',
  'c 1:7 rwm',
  'c 1:8 rwm',
  'c 1:9 rwm',
  'c 5:0 rwm',
  'c 5:2 rwm',
  'c 136:* rwm',
  'c 10:200 rwm',
  'c 10:232 rwm',
  'c 10:238 rwm',
];

/**
 * Hierarchies of /proc/self/cgroup. Pods go below the harness's own cgroup: on an ordinary node that is
 * the root, and inside a confined harness it keeps the pods within its limits.
 */
export function cgroupHierarchies(): Hierarchy[] {
  const mounts = readFileSync('/proc/self/mountinfo', 'utf8').split('\n');
  return readFileSync('/proc/self/cgroup', 'utf8')
    .trim()
    .split('\n')
    .flatMap((line) => {
      const [, names, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
      if (names === undefined || path === undefined) return [];
      const mount = mounts.find((entry) => {
        const [head, tail] = entry.split(' - ');
        if (head === undefined || tail === undefined) return false;
        const [type, , options] = tail.split(' ');
        if (names === '') return type === 'cgroup2';
        return (
          type === 'cgroup' && names.split(',').every((name) => (options ?? '').split(',').includes(name))
        );
      });
      const mountPoint = mount?.split(' ')[4];
      if (mountPoint === undefined) return [];
      const controllers = names === '' ? [] : names.split(',');
      return [{ controllers, mountPoint, base: join(mountPoint, path) }];
    });
}

function podPath(podUid: string, driver: CgroupDriver): string {
  if (driver === 'cgroupfs') return `kubepods/burstable/pod${podUid}`;
  return `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${podUid.replaceAll('-', '_')}.slice`;
}

function containerName(id: string, driver: CgroupDriver): string {
  return driver === 'cgroupfs' ? id : `cri-containerd-${id}.scope`;
}

/** Makes a cgroup below the harness's own in every hierarchy. Resolves to its directories. */
export function makeCgroup(name: string): string[] {
  return cgroupHierarchies().map(({ base, controllers }) => makeBelow(base, name, controllers));
}

/** Lets a container use a block device, as the runtime does for a claim of the pod. On v1: a program is not extended. */
export function grantDevice(
  cgroups: readonly string[],
  { major, minor }: { major: number; minor: number },
): void {
  for (const list of cgroups.map((directory) => join(directory, 'devices.allow'))) {
    if (existsSync(list)) writeFileSync(list, `b ${major}:${minor} rwm`);
  }
}

/** Kills what is in that cgroup and removes it with everything below it. */
export async function removeCgroup(name: string, timeoutMs: number): Promise<void> {
  for (const directory of cgroupHierarchies().map(({ base }) => join(base, name))) {
    await waitFor(`cgroup ${directory} to be removed`, timeoutMs, () => {
      for (const pid of pidsBelow([directory])) signal(pid, 'SIGKILL');
      return removeTree(directory);
    });
  }
}

/** What is in this process's cgroups: the directories below them, and every process. */
export function ownCgroups(): { readonly directories: string[]; readonly pids: number[] } {
  const bases = cgroupHierarchies().map(({ base }) => base);
  return {
    directories: bases.flatMap(withChildren).filter((each) => !bases.includes(each)),
    pids: pidsBelow(bases),
  };
}

/** A directory, with those above it as far as they are missing. */
function makeBelow(base: string, relative: string, controllers: readonly string[]): string {
  let directory = base;
  for (const component of relative.split('/')) {
    const parent = directory;
    directory = join(directory, component);
    mkdirSync(directory, { recursive: true });
    if (controllers.includes('cpuset')) {
      for (const file of ['cpuset.cpus', 'cpuset.mems']) {
        writeFileSync(join(directory, file), readFileSync(join(parent, file)));
      }
    }
  }
  return directory;
}

/** The cgroups of one pod. */
export class PodCgroups {
  readonly #hierarchies = cgroupHierarchies();

  constructor(
    private readonly podUid: string,
    private readonly driver: CgroupDriver,
  ) {}

  /** Makes the cgroup of a container. Resolves to its directories, one a hierarchy. */
  create(containerId: string): string[] {
    return this.#hierarchies.map(({ base, controllers }) => {
      const relative = join(podPath(this.podUid, this.driver), containerName(containerId, this.driver));
      const directory = makeBelow(base, relative, controllers);
      if (controllers.includes('devices')) {
        writeFileSync(join(directory, 'devices.deny'), 'a');
        for (const rule of allowedDevices) writeFileSync(join(directory, 'devices.allow'), rule);
      }
      return directory;
    });
  }

  /** Pod directories that exist. */
  directories(): string[] {
    return this.#hierarchies
      .map(({ base }) => join(base, podPath(this.podUid, this.driver)))
      .filter((directory) => existsSync(directory));
  }

  /** Processes of the pod in all hierarchies. */
  pids(): number[] {
    return pidsBelow(this.directories());
  }

  /** Kills every process of the pod, waits until they are gone, and removes the cgroups. */
  async destroy(timeoutMs: number): Promise<void> {
    await waitFor(`processes of pod ${this.podUid} to end`, timeoutMs, () => {
      const pids = this.pids();
      for (const pid of pids) signal(pid, 'SIGKILL');
      return pids.length === 0;
    });
    for (const { base } of this.#hierarchies) {
      await waitFor(`cgroup of pod ${this.podUid} to be removed`, timeoutMs, () =>
        removeTree(join(base, podPath(this.podUid, this.driver))),
      );
      removeEmptyParents(base, podPath(this.podUid, this.driver));
    }
  }
}

/** Processes in cgroups and those below them. */
function pidsBelow(directories: readonly string[]): number[] {
  const pids = new Set<number>();
  for (const directory of directories.flatMap(withChildren)) {
    for (const line of readIfThere(join(directory, 'cgroup.procs')).split('\n')) {
      if (line !== '' && line !== '0') pids.add(Number(line));
    }
  }
  return [...pids];
}

function withChildren(directory: string): string[] {
  return [directory, ...childDirectories(directory).flatMap(withChildren)];
}

function childDirectories(directory: string): string[] {
  try {
    return readdirSync(directory, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => join(directory, entry.name));
  } catch {
    return [];
  }
}

/** False while a cgroup is still busy. */
function removeTree(directory: string): boolean {
  if (!existsSync(directory)) return true;
  if (!childDirectories(directory).every(removeTree)) return false;
  try {
    rmdirSync(directory);
    return true;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'ENOENT') return true;
    if (code === 'EBUSY' || code === 'ENOTEMPTY') return false;
    throw error;
  }
}

/** kubepods and its class are shared by the pods of a run: they go with the last one. */
function removeEmptyParents(base: string, relative: string): void {
  const components = relative.split('/');
  for (let length = components.length - 1; length > 0; length--) {
    const directory = join(base, ...components.slice(0, length));
    if (!existsSync(directory)) continue;
    if (childDirectories(directory).length > 0) return;
    if (!removeTree(directory)) return;
  }
}
