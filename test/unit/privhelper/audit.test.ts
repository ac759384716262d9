import { createHash } from 'node:crypto';
import {
  fstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { AuditLog } from '../../../privhelper/audit/audit.js';
import { AuditFile, type AuditFileOptions } from '../../../privhelper/audit/file.js';
import { TokenBucket } from '../../../privhelper/audit/limiter.js';
import { malformed, toFailure } from '../../../privhelper/failure.js';
import { agent, nativeError, podA, vmiA } from './fakes.js';

const call = {
  id: 'c-1',
  method: 'PodService.Identify',
  peer: agent,
  podUid: podA,
  vmiUid: vmiA,
  arguments: { volumeIndex: 3 },
};

function log() {
  const lines: Record<string, unknown>[] = [];
  const reports: string[] = [];
  const clock = { ms: 0, full: false };
  const audit = new AuditLog({
    sink: {
      append(line) {
        if (clock.full) throw new Error('ENOSPC');
        expect(line.endsWith('}\n')).toBe(true);
        lines.push(JSON.parse(line));
      },
    },
    now: () => new Date(clock.ms),
    monotonic: () => clock.ms,
    report: (message) => void reports.push(message),
  });
  return { audit, lines, reports, clock };
}

describe('audit log', () => {
  it('has a line before and a line after each call', () => {
    const { audit, lines } = log();
    audit.begin(call);
    audit.end(call, undefined, 1.23456);
    const common = {
      time: '1970-01-01T00:00:00.000Z',
      call: 'c-1',
      method: 'PodService.Identify',
      peer: { pid: agent.pid, uid: agent.uid },
      pod: podA,
      vmi: vmiA,
    };
    expect(lines).toEqual([
      { ...common, event: 'begin', arguments: { volumeIndex: 3 } },
      { ...common, event: 'end', decision: 'allowed', duration_ms: 1.235 },
    ]);
  });

  it('tells refused from failed, with errno and operation', () => {
    const { audit, lines } = log();
    audit.end(
      call,
      toFailure(nativeError('ELOOP', { refused: true, operation: 'openat2 launcher-sock' })),
      1,
    );
    audit.end(call, toFailure(nativeError('EBUSY')), 1);
    expect(lines).toMatchObject([
      { decision: 'refused', errno: 'ELOOP', operation: 'openat2 launcher-sock' },
      { decision: 'failed', errno: 'EBUSY' },
    ]);
  });

  it('writes of arguments and messages beyond their bounds how long they are and how they start', () => {
    const { audit, lines } = log();
    const images = Array.from({ length: 256 }, () => ({ imagePath: '\x01'.repeat(4000) }));
    audit.begin({ ...call, arguments: { images } });
    audit.end(call, malformed('images', 'x'.repeat(100_000)), 1);
    const text = JSON.stringify({ images });
    expect(lines[0]?.['arguments']).toEqual({
      length: text.length,
      sha256: createHash('sha256').update(text).digest('hex'),
      start: text.slice(0, 1024),
    });
    for (const line of lines) expect(JSON.stringify(line).length).toBeLessThan(4096);
    const most = { name: 'x'.repeat(16_384 - '{"name":""}'.length) };
    audit.begin({ ...call, arguments: most });
    expect(lines[2]?.['arguments']).toEqual(most);
  });

  it('does not let a call happen that cannot be written', () => {
    const { audit, clock, reports } = log();
    clock.full = true;
    expect(() => audit.begin(call)).toThrow('ENOSPC');
    audit.end(call, undefined, 1);
    expect(reports).toEqual(['audit line lost']);
  });

  it('limits a flood of refusals and counts what it left out', () => {
    const { audit, lines, clock } = log();
    for (let i = 0; i < 1000; i += 1) audit.refused({ method: 'connect' }, malformed('pod', 'missing'));
    expect(lines).toHaveLength(100);
    clock.ms += 50;
    audit.refused({ method: 'connect' }, malformed('pod', 'missing'));
    expect(lines).toHaveLength(101);
    expect(lines[100]).toMatchObject({ event: 'refusal', field: 'pod', suppressed: 900 });
    audit.refused({ method: 'connect' }, malformed('pod', 'missing'));
    audit.flush();
    expect(lines[101]).toMatchObject({ event: 'suppressed', suppressed: 1 });
    audit.flush();
    expect(lines).toHaveLength(102);
  });
});

describe('token bucket', () => {
  it('refills at its rate up to its burst', () => {
    let now = 0;
    const bucket = new TokenBucket(2, 10, () => now);
    expect([bucket.take(), bucket.take(), bucket.take()]).toEqual([true, true, false]);
    expect(bucket.wait()).toBe(100);
    now = 100;
    expect([bucket.take(), bucket.take()]).toEqual([true, false]);
    now = 100_000;
    expect([bucket.take(), bucket.take(), bucket.take()]).toEqual([true, true, false]);
  });
});

describe('audit file', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'audit-'));
  });
  afterEach(() => {
    rmSync(directory, { recursive: true });
  });
  const open = (maxBytes: number, reports: string[] = [], more: Partial<AuditFileOptions> = {}) => {
    let seconds = 0;
    return new AuditFile({
      path: join(directory, 'audit.jsonl'),
      maxBytes,
      keep: 2,
      setAppendOnly: async () => true,
      now: () => new Date(1000 * seconds++),
      report: (message) => void reports.push(message),
      ...more,
    });
  };
  const at = (second: number) => `audit.jsonl.1970-01-01T00-00-0${second}.000Z`;
  const text = (name: string) => readFileSync(join(directory, name), 'utf8');

  it('appends, also after a restart, for its owner only', async () => {
    for (const line of ['a\n', 'b\n']) {
      const file = open(1000);
      file.append(line);
      await file.close();
    }
    expect(text('audit.jsonl')).toBe('a\nb\n');
    expect(statSync(join(directory, 'audit.jsonl')).mode & 0o777).toBe(0o600);
  });

  it('rotates by size and keeps some older files', async () => {
    const file = open(4);
    for (const line of ['11\n', '22\n', '33\n', '44\n', '55\n', '66\n', '77\n', '88\n', '99\n', '00\n']) {
      file.append(line);
      await file.rotated();
    }
    await file.close();
    expect(readdirSync(directory).sort()).toEqual(['audit.jsonl', at(1), at(2)]);
    expect([text(at(1)), text(at(2)), text('audit.jsonl')]).toEqual(['44\n55\n66\n', '77\n88\n99\n', '00\n']);
  });

  it('loses no line while it rotates, and keeps every file but the removed append-only', async () => {
    const protectedInodes = new Set<number>();
    const waiting: (() => void)[] = [];
    const file = open(4, [], {
      keep: 9,
      setAppendOnly: async (fd, on) => {
        if (!on) await new Promise<void>((resolve) => waiting.push(resolve));
        if (on) protectedInodes.add(fstatSync(fd).ino);
        else protectedInodes.delete(fstatSync(fd).ino);
        return true;
      },
    });
    await file.protect();
    expect(file.appendOnly).toBe('set');
    for (const line of ['1111\n', '2222\n', '3333\n']) file.append(line);
    waiting.shift()?.();
    await file.rotated();
    file.append('4444\n');
    await file.close();
    expect([text(at(0)), text('audit.jsonl')]).toEqual(['1111\n2222\n3333\n', '4444\n']);
    const inodes = readdirSync(directory).map((name) => statSync(join(directory, name)).ino);
    expect([...protectedInodes].sort()).toEqual(inodes.sort());
  });

  it('goes on in the old file when it cannot rotate, and rotates at the next attempt', async () => {
    const reports: string[] = [];
    const file = open(4, reports);
    mkdirSync(join(directory, at(0)));
    for (const line of ['1111\n', '2222\n', '3333\n', '4444\n', '5555\n']) {
      file.append(line);
      await file.rotated();
    }
    await file.close();
    expect(reports).toEqual(['audit file not rotated']);
    expect([text(at(1)), text('audit.jsonl')]).toEqual(['1111\n2222\n3333\n4444\n', '5555\n']);
  });

  it('makes a new file when somebody has moved its own away', async () => {
    const reports: string[] = [];
    const file = open(4, reports);
    file.append('1111\n');
    renameSync(join(directory, 'audit.jsonl'), join(directory, 'moved'));
    for (const line of ['2222\n', '3333\n']) {
      file.append(line);
      await file.rotated();
    }
    await file.close();
    expect(reports).toEqual([]);
    expect([text('moved'), text('audit.jsonl')]).toEqual(['1111\n2222\n', '3333\n']);
  });

  it('works without the flag, and says so', async () => {
    const reports: string[] = [];
    const without = open(4, reports, { setAppendOnly: async () => false });
    await without.protect();
    expect(without.appendOnly).toBe('unsupported');
    expect(reports).toEqual([]);
    await without.close();
    const denied = open(4, reports, { setAppendOnly: () => Promise.reject(nativeError('EPERM')) });
    await denied.protect();
    expect(denied.appendOnly).toBe('failed');
    expect(reports).toEqual(['append-only flag of the audit file not set']);
    denied.append('1111\n');
    await denied.close();
    expect(text('audit.jsonl')).toBe('1111\n');
  });

  it('does not write through a link or to a device', () => {
    symlinkSync('/dev/null', join(directory, 'audit.jsonl'));
    expect(() => open(10)).toThrow(/ELOOP/);
    expect(() => open(10, [], { path: '/dev/null' })).toThrow(/not a regular file/);
  });

  it.runIf(process.platform === 'linux')('throws when the disk is full', () => {
    const file = open(1000);
    Reflect.set(file, 'fd', 1_000_000);
    expect(() => file.append('line\n')).toThrow(/EBADF/);
  });
});
