/**
 * Block devices that the host itself uses: for a file system outside of kubelet's volumes, or to swap. No pod gets
 * them, whatever node shows them.
 */
import { readdir, readlink } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { errnoOf, exhausted } from '../failure.js';
import { readBounded, readIfAny } from '../inspect/proc.js';
import type { DeviceNumbers } from '../pods/plugged-devices.js';

/** What block devices are used for, by their numbers. */
export interface DiskUses {
  /** Where file systems of the host are mounted. */
  readonly mounts: ReadonlyMap<string, string>;
  /** Devices to which the host swaps. */
  readonly swaps: ReadonlySet<string>;
  /** Devices of btrfs file systems: their mounts have numbers that are no device's. */
  readonly btrfs: ReadonlySet<string>;
}

/**
 * What the host uses a device for; undefined for nothing.
 * @param related the device, its partitions, and what is made of these (volumes of LVM, RAID, encryption), and so on
 */
export function useByHost(
  { mounts, swaps, btrfs }: DiskUses,
  related: readonly string[],
): string | undefined {
  for (const device of related) {
    const mountPoint = mounts.get(device);
    if (mountPoint !== undefined) return `${device} is mounted at ${mountPoint}`;
    if (swaps.has(device)) return `${device} is swap space`;
    if (btrfs.has(device)) return `${device} is part of a btrfs file system`;
  }
  return undefined;
}

/**
 * Devices of file systems that are no volumes of pods, and where one of their mounts is.
 * @param mountinfo text of proc_pid_mountinfo(5) of the host
 * @param kubeletPodsDir as the host names it
 */
export function hostMounts(mountinfo: string, kubeletPodsDir: string): Map<string, string> {
  const mounts = new Map<string, string>();
  for (const line of mountinfo.split('\n')) {
    const [, , device = '', , mountPoint = ''] = line.split(' ', 5);
    if (!mounts.has(device) && !isVolume(mountPoint, kubeletPodsDir)) mounts.set(device, mountPoint);
  }
  return mounts;
}

/** kubelet mounts volumes below a pod's directory and below those of plugins. */
function isVolume(mountPoint: string, kubeletPodsDir: string): boolean {
  const isBelow = (directory: string, depth: number) =>
    mountPoint.startsWith(`${directory}/`) &&
    mountPoint.slice(directory.length + 1).split('/').length >= depth;
  return isBelow(kubeletPodsDir, 2) || isBelow(`${dirname(kubeletPodsDir)}/plugins`, 2);
}

/** Partitions, and layers above, of one device. */
const maxRelated = 512;
const maxMountinfoBytes = 16 << 20;
const maxFileBytes = 64 << 10;

export class DisksInUse {
  /**
   * @param mountinfo of the host, `/proc/1/mountinfo`
   * @param kubeletPodsDir as the host names it
   * @param kernel where sysfs and procfs are mounted
   */
  constructor(
    private readonly mountinfo: string,
    private readonly kubeletPodsDir: string,
    private readonly kernel = { sys: '/sys', proc: '/proc' },
  ) {}

  /** What the host uses each device for, where it does; in the order of the devices. */
  async uses(devices: readonly DeviceNumbers[]): Promise<(string | undefined)[]> {
    if (devices.length === 0) return [];
    const facts = {
      mounts: hostMounts(await readBounded(this.mountinfo, maxMountinfoBytes), this.kubeletPodsDir),
      swaps: await this.#swaps(),
      btrfs: await this.#btrfsDevices(),
    };
    const uses: (string | undefined)[] = [];
    for (const { major, minor } of devices) {
      uses.push(useByHost(facts, await this.#related(`${major}:${minor}`)));
    }
    return uses;
  }

  /** Throws RESOURCE_EXHAUSTED when there are more than can be looked at. */
  async #related(device: string): Promise<string[]> {
    const found = new Set([device]);
    for (const each of found) {
      const directory = `${this.kernel.sys}/dev/block/${each}`;
      const holders = (await names(`${directory}/holders`)).map((name) => this.#numbersOf(name));
      // A partition is a directory of its disk, named after it.
      const disk = basename(await target(directory));
      const partitions = (await names(directory))
        .filter((name) => disk !== '' && name.startsWith(disk))
        .map((name) => readNumbers(`${directory}/${name}/dev`));
      for (const numbers of await Promise.all([...holders, ...partitions])) {
        if (numbers !== undefined) found.add(numbers);
      }
      if (found.size > maxRelated) {
        throw exhausted(
          'look at block device',
          `${device} has more than ${maxRelated} partitions and layers`,
        );
      }
    }
    return [...found];
  }

  /** proc_swaps(5): the first field names a device or a file. */
  async #swaps(): Promise<Set<string>> {
    const text = (await readIfAny(`${this.kernel.proc}/swaps`, maxFileBytes)) ?? '';
    const lines = text.split('\n').map((line) => line.split(/\s+/, 2));
    return this.#devices(
      lines.filter(([, type]) => type === 'partition').map(([path = '']) => basename(path)),
    );
  }

  async #btrfsDevices(): Promise<Set<string>> {
    const root = `${this.kernel.sys}/fs/btrfs`;
    const lists = (await names(root)).map((filesystem) => names(`${root}/${filesystem}/devices`));
    return this.#devices((await Promise.all(lists)).flat());
  }

  /** Numbers of the devices with these names, of those that are there. */
  async #devices(named: readonly string[]): Promise<Set<string>> {
    const numbers = await Promise.all(named.map((name) => this.#numbersOf(name)));
    return new Set(numbers.filter((each) => each !== undefined));
  }

  #numbersOf(name: string): Promise<string | undefined> {
    return readNumbers(`${this.kernel.sys}/class/block/${name}/dev`);
  }
}

async function readNumbers(file: string): Promise<string | undefined> {
  return (await readIfAny(file, maxFileBytes))?.trim();
}

/** None for a directory that is not there. */
async function names(directory: string): Promise<string[]> {
  try {
    return await readdir(directory);
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes(errnoOf(error))) return [];
    throw error;
  }
}

/** Where a link leads; empty for none. */
async function target(path: string): Promise<string> {
  try {
    return await readlink(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return '';
    throw error;
  }
}
