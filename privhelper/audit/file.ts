/**
 * An append-only file that is rotated by size. The file in use has the given name; older ones have the time
 * of their rotation after it and are removed when there are too many. Where the file system can, all of
 * them carry the append-only flag: nobody without CAP_LINUX_IMMUTABLE changes or removes what is written,
 * the helper's own user included.
 */
import {
  closeSync,
  constants,
  fchownSync,
  fstatSync,
  openSync,
  readdirSync,
  renameSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { errnoOf } from '../failure.js';
import type { AuditSink } from './audit.js';

export interface AuditFileOptions {
  readonly path: string;
  /** Size from which the file is rotated, bytes. */
  readonly maxBytes: number;
  /** Older files that are kept. */
  readonly keep: number;
  /** Sets or clears the append-only flag of a file. False: the file system has none. */
  readonly setAppendOnly: (fd: number, on: boolean) => Promise<boolean>;
  readonly now: () => Date;
  readonly report: (message: string, error?: unknown) => void;
}

/** What is known of the flag of the file in use; `unset` before protect has looked. */
export type AppendOnly = 'unset' | 'set' | 'unsupported' | 'failed';

/** The older files beside the one in use, the oldest first. */
export function olderFiles(path: string): string[] {
  const prefix = `${basename(path)}.`;
  return readdirSync(dirname(path))
    .filter((name) => name.startsWith(prefix) && /^\d{4}-[0-9TZ.-]+$/.test(name.slice(prefix.length)))
    .sort()
    .map((name) => join(dirname(path), name));
}

export class AuditFile implements AuditSink {
  appendOnly: AppendOnly = 'unset';
  private fd: number;
  private size: number;
  /** The last line was cut off by a full disk. */
  private torn = false;
  private rotating: Promise<void> | undefined;

  /** Opens or creates the file, mode 0600. A link or another type of file is an error. */
  constructor(private readonly options: AuditFileOptions) {
    this.fd = openAppend(options.path);
    this.size = fstatSync(this.fd).size;
  }

  /** Gives the file to a user. One with the append-only flag keeps its owner, which must be that user. */
  chown(uid: number, gid: number): void {
    const owner = fstatSync(this.fd);
    if (owner.uid !== uid || owner.gid !== gid) fchownSync(this.fd, uid, gid);
  }

  /** Sets the append-only flag of the file in use and of older ones. Never throws. */
  async protect(): Promise<void> {
    this.appendOnly = await this.flag(this.fd, true);
    try {
      for (const path of olderFiles(this.options.path)) await this.withOlder(path, true);
    } catch (error) {
      this.options.report('older audit files not protected', error);
    }
  }

  append(line: string): void {
    if (this.size >= this.options.maxBytes && this.rotating === undefined) {
      this.rotating = this.rotate().finally(() => {
        this.rotating = undefined;
      });
    }
    const bytes = Buffer.from(this.torn ? `\n${line}` : line);
    const written = writeSync(this.fd, bytes);
    this.size += written;
    this.torn = written < bytes.length;
    if (this.torn) throw new Error(`audit file: ${written} of ${bytes.length} bytes written`);
  }

  /** Resolves when no rotation is under way. */
  async rotated(): Promise<void> {
    await this.rotating;
  }

  async close(): Promise<void> {
    await this.rotated();
    closeSync(this.fd);
  }

  /** Lines go on into the old file until the new one is there. */
  private async rotate(): Promise<void> {
    const { path, now, report } = this.options;
    const old = this.fd;
    try {
      await this.flag(old, false);
      moveAside(path, now());
      this.fd = openAppend(path);
      this.size = 0;
      this.torn = false;
    } catch (error) {
      // The next attempt comes after another maxBytes.
      this.size = 0;
      report('audit file not rotated', error);
      await this.flag(old, true);
      return;
    }
    this.appendOnly = await this.flag(this.fd, true);
    await this.flag(old, true);
    closeSync(old);
    await this.prune();
  }

  private async prune(): Promise<void> {
    const { path, keep, report } = this.options;
    try {
      const older = olderFiles(path);
      for (const each of older.slice(0, Math.max(0, older.length - keep))) {
        await this.withOlder(each, false);
        unlinkSync(each);
      }
    } catch (error) {
      report('old audit files not removed', error);
    }
  }

  private async withOlder(path: string, on: boolean): Promise<void> {
    const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      if (fstatSync(fd).isFile()) await this.flag(fd, on);
    } finally {
      closeSync(fd);
    }
  }

  /** A file without the flag is still opened to append only, by a helper that has no other way to write. */
  private async flag(fd: number, on: boolean): Promise<AppendOnly> {
    try {
      return (await this.options.setAppendOnly(fd, on)) ? 'set' : 'unsupported';
    } catch (error) {
      this.options.report(`append-only flag of the audit file not ${on ? 'set' : 'cleared'}`, error);
      return 'failed';
    }
  }
}

/** A file that is gone from its place already was moved by an attempt that then could not make a new one. */
function moveAside(path: string, now: Date): void {
  try {
    renameSync(path, `${path}.${now.toISOString().replaceAll(':', '-')}`);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
}

function openAppend(path: string): number {
  const flags =
    constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const fd = openSync(path, flags, 0o600);
  if (!fstatSync(fd).isFile()) {
    closeSync(fd);
    throw new Error(`${path} is not a regular file`);
  }
  return fd;
}
