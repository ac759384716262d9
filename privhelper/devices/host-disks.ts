/**
 * Block devices that the host itself uses: for a file system outside of kubelet's volumes, or to swap. No pod gets
 * them, whatever node shows them.
 */
import { readdir, readlink } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { errnoOf, exhausted } from '../failure.js';
import { readBounded, readIfAny } from '../inspect/proc.js';
import type { DeviceNumbers } from '../pods/plugged-devices.js';

/** What block devices are used for. */
export interface HostDiskFacts {
  /** Text of proc_pid_mountinfo(5) of the host. */
  readonly mountinfo: string;
  /** As the host names it. */
  readonly kubeletPodsDir: string;
  /** Numbers of devices to which the host swaps. */
  readonly swaps: ReadonlySet<string>;
  /** Numbers of devices of btrfs file systems: their mounts have numbers that are no device's. */
  readonly btrfs: ReadonlySet<string>;
  /** The device, its partitions, and what is made of these (volumes of LVM, RAID, encryption), and so on. */
  readonly related: readonly string[];
}

/** What the host uses the device for; undefined for nothing. */
export function useByHost({
  mountinfo,
  kubeletPodsDir,
  swaps,
  btrfs,
  related,
}: HostDiskFacts): string | undefined {
  const wanted = new Set(related);
  for (const device of related) {
    if (swaps.has(device)) return `${device} is swap space`;
    if (btrfs.has(device)) return `${device} is part of a btrfs file system`;
  }
  for (const line of mountinfo.split('\n')) {
    const [, , device = '', , mountPoint = ''] = line.split(' ', 5);
    if (wanted.has(device) && !isVolume(mountPoint, kubeletPodsDir)) {
      return `${device} is mounted at ${mountPoint}`;
    }
  }
  return undefined;
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

export class HostDisks {
  /**
   * @param mountinfo of the host, `/proc/1/mountinfo`
   * @param kubeletPodsDir as the host names it
   */
  constructor(
    private readonly mountinfo: string,
    private readonly kubeletPodsDir: string,
  ) {}

  /** What the host uses each device for, where it does; in the order of the devices. */
  async uses(devices: readonly DeviceNumbers[]): Promise<(string | undefined)[]> {
    if (devices.length === 0) return [];
    const facts = {
      mountinfo: await readBounded(this.mountinfo, maxMountinfoBytes),
      kubeletPodsDir: this.kubeletPodsDir,
      swaps: await swaps(),
      btrfs: await btrfsDevices(),
    };
    const uses: (string | undefined)[] = [];
    for (const { major, minor } of devices) {
      uses.push(useByHost({ ...facts, related: await relatives(`${major}:${minor}`) }));
    }
    return uses;
  }
}

/** Throws RESOURCE_EXHAUSTED when there are more than can be looked at. */
async function relatives(device: string): Promise<string[]> {
  const found = new Set([device]);
  for (const each of found) {
    const directory = `/sys/dev/block/${each}`;
    const holders = (await names(`${directory}/holders`)).map((name) => `/sys/class/block/${name}/dev`);
    // A partition is a directory of its disk, named after it.
    const disk = basename(await target(directory));
    const partitions = (await names(directory))
      .filter((name) => disk !== '' && name.startsWith(disk))
      .map((name) => `${directory}/${name}/dev`);
    for (const file of [...holders, ...partitions]) {
      const numbers = (await readIfAny(file, maxFileBytes))?.trim();
      if (numbers !== undefined) found.add(numbers);
    }
    if (found.size > maxRelated) {
      throw exhausted('look at block device', `${device} has more than ${maxRelated} partitions and layers`);
    }
  }
  return [...found];
}

/** proc_swaps(5): the first field names a device or a file. */
async function swaps(): Promise<Set<string>> {
  const devices = new Set<string>();
  const lines = ((await readIfAny('/proc/swaps', maxFileBytes)) ?? '').split('\n').slice(1);
  for (const line of lines) {
    const [path = '', type] = line.split(/\s+/, 2);
    if (type !== 'partition') continue;
    const numbers = await readIfAny(`/sys/class/block/${basename(path)}/dev`, maxFileBytes);
    if (numbers !== undefined) devices.add(numbers.trim());
  }
  return devices;
}

async function btrfsDevices(): Promise<Set<string>> {
  const devices = new Set<string>();
  for (const filesystem of await names('/sys/fs/btrfs')) {
    for (const name of await names(`/sys/fs/btrfs/${filesystem}/devices`)) {
      const numbers = await readIfAny(`/sys/class/block/${name}/dev`, maxFileBytes);
      if (numbers !== undefined) devices.add(numbers.trim());
    }
  }
  return devices;
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
