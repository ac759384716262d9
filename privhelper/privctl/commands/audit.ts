/** `privctl audit`: the audit log as operations. Reads the files, so it needs no helper. */
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { StringDecoder } from 'node:string_decoder';
import { setTimeout as sleep } from 'node:timers/promises';
import { olderFiles } from '../../audit/file.js';
import { type Operation, OperationReader } from '../../audit/operations.js';
import { errnoOf } from '../../failure.js';
import { CommandError, exitCodes, shortUid, table } from '../output.js';
import type { Session } from '../session.js';

const chunkBytes = 64 << 10;
/** A longer line is not the helper's: its requests have at most a few megabytes, its lines far less. */
const maxLine = 8 << 20;
const followMs = 300;

/** A log file that is read as it grows. */
export class LogFile {
  private readonly fd: number;
  private readonly decoder = new StringDecoder('utf8');
  private rest = '';

  constructor(private readonly path: string) {
    this.fd = openSync(path, 'r');
  }

  /** The lines that are complete by now. */
  *lines(): Generator<string> {
    const chunk = Buffer.alloc(chunkBytes);
    for (;;) {
      const n = readSync(this.fd, chunk);
      if (n === 0) return;
      const lines = (this.rest + this.decoder.write(chunk.subarray(0, n))).split('\n');
      this.rest = lines.pop() ?? '';
      if (this.rest.length > maxLine) this.rest = '';
      for (const line of lines) if (line !== '') yield line;
    }
  }

  /** The path means another file by now: this one has been rotated away. */
  get isRotated(): boolean {
    try {
      return statSync(this.path).ino !== fstatSync(this.fd).ino;
    } catch {
      return false;
    }
  }

  close(): void {
    closeSync(this.fd);
  }
}

function openLog(path: string): LogFile {
  try {
    return new LogFile(path);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'EACCES') throw new CommandError(exitCodes.refused, `the audit log ${path} needs root`);
    const hint = 'Is --audit-file what the helper was started with?';
    throw new CommandError(exitCodes.failed, `no audit log: open ${path}: ${errno}`, hint);
  }
}

/** Start of the time that a person means: `10m`, `2h`, `1d` ago, or a point in time. */
export function sinceTime(text: string, now: number): number {
  const match = /^(\d{1,6})([smhd])$/.exec(text);
  if (match !== null) {
    const unit = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[match[2] ?? 's'] ?? 0;
    return now - Number(match[1]) * unit;
  }
  const time = Date.parse(text);
  if (Number.isNaN(time)) {
    throw new CommandError(
      exitCodes.usage,
      `--since: ${text} is neither a duration (10m, 2h, 1d) nor a time`,
    );
  }
  return time;
}

/** What is asked for. */
export function selector(options: {
  readonly refused: boolean;
  readonly pod: string | undefined;
  readonly since: number;
}): (operation: Operation) => boolean {
  const { refused, pod, since } = options;
  return ({ outcome, time, pod: podUid, vmi }) =>
    (!refused || outcome === 'refused' || outcome === 'suppressed') &&
    (pod === undefined || podUid?.startsWith(pod) === true || vmi?.startsWith(pod) === true) &&
    Date.parse(time) >= since;
}

export async function audit(session: Session): Promise<void> {
  const { auditFile, since, limit, follow } = session.options;
  const selected = selector({
    ...session.options,
    since: since === undefined ? Number.NEGATIVE_INFINITY : sinceTime(since, Date.now()),
  });
  const reader = new OperationReader();
  let file = openLog(auditFile);
  const earlier = olderLogs(auditFile);
  const last: Operation[] = [];
  const keep = (operation: Operation) => {
    if (!selected(operation)) return;
    last.push(operation);
    if (limit > 0 && last.length > limit) last.shift();
  };
  for (const each of [...earlier, file]) {
    for (const line of each.lines()) reader.read(line).forEach(keep);
  }
  for (const each of earlier) each.close();
  const unfinished = reader.unfinished.filter(selected);
  const order = (a: Operation, b: Operation) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0);
  show(session, [...last.sort(order), ...(follow ? [] : unfinished)], { heading: true });
  if (reader.malformed > 0) {
    process.stderr.write(`privctl: ${reader.malformed} lines of ${auditFile} are not the helper's\n`);
  }
  while (follow) {
    await sleep(followMs);
    const rotated = file.isRotated;
    const operations = [...file.lines()].flatMap((line) => reader.read(line)).filter(selected);
    show(session, operations, { heading: false });
    if (rotated) {
      file.close();
      file = openLog(auditFile);
    }
  }
  file.close();
}

/** Those that are readable: one may be removed at any time. */
function olderLogs(path: string): LogFile[] {
  return olderFiles(path).flatMap((older) => {
    try {
      return new LogFile(older);
    } catch {
      return [];
    }
  });
}

const titles = ['TIME', 'OUTCOME', 'METHOD', 'POD', 'BY', 'MS', 'DETAIL'];

function show(session: Session, operations: readonly Operation[], { heading }: { heading: boolean }): void {
  if (session.json) {
    for (const operation of operations) session.value(operation);
    return;
  }
  if (operations.length === 0) {
    if (heading && !session.options.follow) session.lines(['Nothing in the audit log matches.']);
    return;
  }
  const columns = titles.map((title) => (title === 'MS' ? ({ title, align: 'right' } as const) : { title }));
  const lines = table(
    columns,
    operations.map((operation) => row(operation, session.options.full)),
  );
  session.lines(heading ? lines : lines.slice(1));
}

function row(operation: Operation, full: boolean): string[] {
  const { time, outcome, method, pod, actor, durationMs } = operation;
  return [
    time,
    outcome,
    method ?? '',
    shortUid(pod ?? '', full),
    actor,
    durationMs === undefined ? '' : durationMs.toFixed(1),
    detail(operation, full),
  ];
}

/** Room for arguments in a table. */
const detailWidth = 60;

function detail({ outcome, message, field, suppressed, arguments: given }: Operation, full: boolean): string {
  if (outcome === 'interrupted') return 'no end: the helper was started anew during the call';
  if (outcome === 'suppressed') return `${suppressed ?? 0} more refusals`;
  if (message !== undefined) {
    return field === undefined || message.startsWith(field) ? message : `${field}: ${message}`;
  }
  const text = given === undefined ? '' : JSON.stringify(given);
  if (text === '{}') return '';
  return full || text.length <= detailWidth ? text : `${text.slice(0, detailWidth - 1)}...`;
}
