/** An append-only file that is rotated by size: one older file is kept. */
import { closeSync, constants, fchownSync, fstatSync, openSync, renameSync, writeSync } from 'node:fs';
import type { AuditSink } from './audit.js';

export interface AuditFileOptions {
  readonly path: string;
  /** Size from which the file is rotated, bytes. */
  readonly maxBytes: number;
  readonly report: (message: string, error?: unknown) => void;
}

export class AuditFile implements AuditSink {
  private fd: number;
  private size: number;
  /** The last line was cut off by a full disk. */
  private torn = false;

  /** Opens or creates the file, mode 0600. A link or another type of file is an error. */
  constructor(private readonly options: AuditFileOptions) {
    this.fd = openAppend(options.path);
    this.size = fstatSync(this.fd).size;
  }

  chown(uid: number, gid: number): void {
    fchownSync(this.fd, uid, gid);
  }

  append(line: string): void {
    if (this.size >= this.options.maxBytes) this.rotate();
    const bytes = Buffer.from(this.torn ? `\n${line}` : line);
    const written = writeSync(this.fd, bytes);
    this.size += written;
    this.torn = written < bytes.length;
    if (this.torn) throw new Error(`audit file: ${written} of ${bytes.length} bytes written`);
  }

  close(): void {
    closeSync(this.fd);
  }

  private rotate(): void {
    try {
      renameSync(this.options.path, `${this.options.path}.1`);
      const next = openAppend(this.options.path);
      closeSync(this.fd);
      this.fd = next;
      this.torn = false;
    } catch (error) {
      // Lines go on into the old file; the next attempt comes after another maxBytes.
      this.options.report('audit file not rotated', error);
    }
    this.size = 0;
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
