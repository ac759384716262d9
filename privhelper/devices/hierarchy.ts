/** The cgroup hierarchy that decides about devices, found at start. */
import { existsSync, statfsSync } from 'node:fs';
import { join } from 'node:path';
import { openDirectory } from '../directories.js';

export interface DeviceHierarchy {
  /** Descriptor of its root directory. */
  readonly root: number;
  readonly version: 1 | 2;
}

/** linux/magic.h */
const cgroup1 = 0x27e0eb;
const cgroup2 = 0x63677270;

/**
 * The unified hierarchy when it is what is mounted at the path, else the controller `devices` below it, which decides
 * where both are mounted. Throws when there is neither, and for a hierarchy that shows a part of the host's only.
 *
 * @param root descriptor of `cgroupRoot`
 */
export function openDeviceHierarchy(cgroupRoot: string, root: number): DeviceHierarchy {
  if (typeOf(cgroupRoot) === cgroup2) {
    // Every cgroup but the root has it.
    if (existsSync(join(cgroupRoot, 'cgroup.events'))) throw partial(cgroupRoot);
    return { root, version: 2 };
  }
  const directory = join(cgroupRoot, 'devices');
  if (typeOf(directory) !== cgroup1) {
    throw new Error(`${cgroupRoot}: no cgroup hierarchy that decides about devices`);
  }
  // The root alone has it.
  if (!existsSync(join(directory, 'cgroup.sane_behavior'))) throw partial(directory);
  return { root: openDirectory(directory), version: 1 };
}

function partial(path: string): Error {
  return new Error(`${path} is not the root of the host's cgroups: mount the host's ${path} there`);
}

function typeOf(path: string): number | undefined {
  return existsSync(path) ? statfsSync(path).type : undefined;
}
