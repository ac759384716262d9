/** The helper's own directories, made ready while it still is root. */
import {
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
} from 'node:fs';
import { join } from 'node:path';
import { errnoOf } from './failure.js';

/** Missing in node:fs; the same number on every architecture that KubeVirt supports. */
const O_PATH = 0o10000000;

export interface Ownership {
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
}

/** Makes the directory if it is missing and gives it owner and mode. A link is an error. */
export function ownDirectory(path: string, { uid, gid, mode }: Ownership): void {
  mkdirSync(path, { recursive: true, mode: 0o755 });
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    // The mode first, and only where it differs: what is another user's takes CAP_FOWNER to change.
    if ((fstatSync(fd).mode & 0o7777) !== mode) fchmodSync(fd, mode);
    fchownSync(fd, uid, gid);
  } finally {
    closeSync(fd);
  }
}

/** Throws when the directory has entries that `isOwn` does not know: it would be wrong to take it over. */
export function assertDedicated(path: string, isOwn: (name: string) => boolean): void {
  let names: string[] = [];
  try {
    names = readdirSync(path);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
  const foreign = names.find((name) => !isOwn(name));
  if (foreign !== undefined)
    throw new Error(`${path} holds ${foreign}: give the helper a directory of its own`);
}

/** Gives regular files of a directory to a user. Links and other types are left alone. */
export function ownFiles(path: string, isOwn: (name: string) => boolean, uid: number, gid: number): void {
  for (const name of readdirSync(path).filter(isOwn)) {
    const fd = openSync(join(path, name), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      if (fstatSync(fd).isFile()) fchownSync(fd, uid, gid);
    } finally {
      closeSync(fd);
    }
  }
}

/** A descriptor that only names the directory; links on the way to it are followed, kubelet may use them. */
export function openDirectory(path: string): number {
  return openSync(path, O_PATH | constants.O_DIRECTORY);
}
