/** Small files of the helper's own state: read within a bound, replaced as a whole. */
import { closeSync, constants, fstatSync, openSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { errnoOf } from '../failure.js';

/** Undefined when there is none; empty when it is longer than `maxBytes`, as none of ours is. Other errors are thrown. */
export function readStateFile(path: string, maxBytes: number): string | undefined {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
  try {
    return fstatSync(fd).size > maxBytes ? '' : readFileSync(fd, 'utf8');
  } finally {
    closeSync(fd);
  }
}

/** Not synced to the disk: what ends the host ends what the state is about, and a torn file blocks nothing. */
export function replaceStateFile(directory: string, name: string, text: string): void {
  const temporary = join(directory, `.${name}.tmp`);
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW;
  const fd = openSync(temporary, flags, 0o600);
  try {
    writeFileSync(fd, text);
  } finally {
    closeSync(fd);
  }
  renameSync(temporary, join(directory, name));
}
