import {
  closeSync,
  constants,
  fstatSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, posix } from 'node:path';
import { getSystemErrorMap } from 'node:util';
import { type VmiRef, vmiKey } from '../api/vmi.js';
import type { Logger } from '../log/log.js';
import type { GhostRecords } from '../reconcile/ports.js';

/** What is remembered of every VM that this node ever connected to, until it is cleaned up. */
export interface GhostRecord {
  readonly name: string;
  readonly namespace: string;
  /** As virt-handler sees it: /pods/<pod UID>/volumes/kubernetes.io~empty-dir/sockets/launcher-sock. */
  readonly socketFile: string;
  readonly uid: string;
}

const maxRecords = 4096;
const maxRecordBytes = 16 * 1024;
const temporaryPrefix = '.writing-';

/** The key has a record of another VMI. */
export class DifferingUid extends Error {
  override readonly name = 'DifferingUid';
  constructor(readonly existing: GhostRecord) {
    super('can not add ghost record when entry already exists with differing UID');
  }
}

/** The key has a record of this VMI with another socket. */
export class DifferingSocket extends Error {
  override readonly name = 'DifferingSocket';
  constructor(readonly existing: GhostRecord) {
    super('can not add ghost record when entry already exists with differing socket file location');
  }
}

export function recordRef(record: GhostRecord): VmiRef {
  return { namespace: record.namespace, name: record.name, uid: record.uid };
}

/**
 * Ghost records in the files and the format of virt-handler (KubeVirt pkg/virt-handler/cache), so that
 * either program finds what the other left. One file for each VMI, named by its UID; written beside and
 * renamed, so that a crash leaves the old content or the new one.
 */
export class GhostRecordStore implements GhostRecords {
  private readonly records = new Map<string, GhostRecord>();

  constructor(
    private readonly directory: string,
    private readonly log: Logger,
  ) {}

  /** Reads all records. What is not a record is logged and left alone. Throws when the directory cannot be read. */
  load(): void {
    this.records.clear();
    const names = readdirSync(this.directory).sort();
    for (const name of names.slice(0, maxRecords)) {
      const path = join(this.directory, name);
      if (name.startsWith(temporaryPrefix)) {
        rmSync(path, { force: true });
        continue;
      }
      try {
        const record = parseRecord(readSmallFile(path));
        this.records.set(vmiKey(record), record);
      } catch (error) {
        this.log.error(`Unable to read ghost record checkpoint, ${name}`, error);
      }
    }
    if (names.length > maxRecords) {
      this.log.error(`${names.length - maxRecords} ghost records beyond ${maxRecords} are ignored`);
    }
  }

  /** Remembers a VM. Throws DifferingUid or DifferingSocket, or an error that names the field or the file. */
  add(record: GhostRecord): void {
    if (record.name === '') throw new Error("can not add ghost record when 'name' is not provided");
    if (record.namespace === '') throw new Error("can not add ghost record when 'namespace' is not provided");
    if (record.uid === '') throw new Error('unable to add ghost record with empty UID');
    if (record.socketFile === '') throw new Error('unable to add ghost record without a socketFile');
    const key = vmiKey(record);
    const existing = this.records.get(key);
    if (existing === undefined) {
      this.write(record);
      return;
    }
    if (existing.uid !== record.uid) throw new DifferingUid(existing);
    if (cleanPath(existing.socketFile) !== record.socketFile) throw new DifferingSocket(existing);
  }

  /** Puts the record of the same VMI in place of one whose launcher is dead. */
  replace(record: GhostRecord): void {
    this.write(record);
  }

  /** Deletes the record of the key. Throws when its file cannot be removed; the record stays then. */
  delete(key: string): void {
    const record = this.records.get(key);
    if (record === undefined) return;
    if (record.uid === '') throw new Error('unable to remove ghost record with empty UID');
    const path = this.path(record.uid);
    try {
      unlinkSync(path);
    } catch (error) {
      const reason =
        getSystemErrorMap().get((error as NodeJS.ErrnoException).errno ?? 0)?.[1] ?? String(error);
      throw new Error(`failed to delete checkpoint ${record.uid}, remove ${path}: ${reason}`, {
        cause: error,
      });
    }
    this.records.delete(key);
  }

  get(key: string): GhostRecord | undefined {
    return this.records.get(key);
  }

  lastKnownUid(key: string): string | undefined {
    return this.records.get(key)?.uid;
  }

  findBySocket(socketFile: string): GhostRecord | undefined {
    return this.list().find((record) => cleanPath(record.socketFile) === socketFile);
  }

  list(): GhostRecord[] {
    return [...this.records.values()];
  }

  private write(record: GhostRecord): void {
    const { name, namespace, socketFile, uid } = record;
    const path = this.path(uid);
    const temporary = join(this.directory, `${temporaryPrefix}${uid}`);
    rmSync(temporary, { force: true });
    writeFileSync(temporary, goJson({ name, namespace, socketFile, uid }), { mode: 0o600, flag: 'wx' });
    renameSync(temporary, path);
    this.records.set(vmiKey(record), record);
  }

  private path(uid: string): string {
    if (!isFileName(uid)) throw new Error(`ghost record UID ${JSON.stringify(uid)} is not a file name`);
    return join(this.directory, uid);
  }
}

/** As Go's filepath.Clean, which keeps no slash at the end. */
function cleanPath(path: string): string {
  return posix.normalize(path).replace(/(.)\/$/, '$1');
}

function isFileName(uid: string): boolean {
  return /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/.test(uid);
}

/** JSON as Go writes it: these characters are escaped. */
function goJson(value: object): string {
  return JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Opens nothing but a regular file of a sane size and follows no link. */
function readSmallFile(path: string): string {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile()) throw new Error('not a regular file');
    if (stat.size > maxRecordBytes) throw new Error(`${stat.size} bytes, at most ${maxRecordBytes}`);
    const buffer = Buffer.alloc(stat.size);
    return buffer.toString('utf8', 0, readSync(fd, buffer));
  } finally {
    closeSync(fd);
  }
}

/** Keys match in any case, and null is empty, as Go's encoding/json has it. Throws an error that names the field. */
function parseRecord(text: string): GhostRecord {
  const value: unknown = JSON.parse(text) ?? {};
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error('not a JSON object');
  const fields = { name: '', namespace: '', socketFile: '', uid: '' };
  for (const [key, field] of Object.entries(value)) {
    const known = (Object.keys(fields) as (keyof typeof fields)[]).find(
      (k) => k.toLowerCase() === key.toLowerCase(),
    );
    if (known === undefined || field === null) continue;
    if (typeof field !== 'string') throw new Error(`field ${known} is not a string`);
    fields[known] = field;
  }
  return fields;
}
