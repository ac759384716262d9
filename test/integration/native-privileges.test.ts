import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { caps, helperUid, NativeChild, permitted } from './native-child.js';

function field(status: string, name: string): string {
  const line = new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)?.[1];
  if (line === undefined) throw new Error(`no ${name} in ${status}`);
  return line;
}

const isPrivileged = (status: string): boolean => field(status, 'Name').startsWith('privsep-');
const hex = (mask: bigint): string => mask.toString(16).padStart(16, '0');

describe('privileges of a locked-down helper', () => {
  let directory: string;
  let child: NativeChild;
  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'native-'));
    writeFileSync(join(directory, 'a'), '');
    child = await NativeChild.start([directory], 3);
  });
  afterAll(async () => {
    await child?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('leaves nothing to ordinary threads', async () => {
    const threads = (await child.call<string[]>('threads')).filter((status) => !isPrivileged(status));
    expect(threads.length).toBeGreaterThan(5);
    for (const status of threads) {
      expect(field(status, 'Uid').split('\t')).toEqual(Array(4).fill(String(helperUid)));
      expect(field(status, 'Gid').split('\t')).toEqual(Array(4).fill(String(helperUid)));
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb']) expect(field(status, set)).toBe(hex(0n));
      expect(field(status, 'NoNewPrivs')).toBe('1');
      expect(field(status, 'Seccomp')).toBe('2');
      expect(field(status, 'Groups').trim()).toBe('');
    }
  });

  it('gives privileged threads exactly the permitted set, none of it in effect', async () => {
    const threads = (await child.call<string[]>('threads')).filter(isPrivileged);
    expect(threads.map((status) => field(status, 'Name')).sort()).toEqual([
      'privsep-keeper',
      'privsep-root',
      'privsep-root',
      'privsep-root',
    ]);
    for (const status of threads) {
      expect(field(status, 'CapPrm')).toBe(hex(permitted));
      expect(field(status, 'CapBnd')).toBe(hex(permitted));
      for (const set of ['CapInh', 'CapEff', 'CapAmb']) expect(field(status, set)).toBe(hex(0n));
      expect(field(status, 'Uid').split('\t')).toEqual(Array(4).fill(String(helperUid)));
      expect(field(status, 'NoNewPrivs')).toBe('1');
      expect(field(status, 'Seccomp')).toBe('2');
    }
  });

  it('denies programs, users, the network and root files to JavaScript', async () => {
    expect(await child.call('execute')).toBe('EPERM');
    expect(await child.call('setUser')).toBe('EPERM');
    expect(await child.call('dial')).toBe('EPERM');
    expect(await child.call('readShadow')).toBe('EACCES');
  });

  it('confines threads that are made later', async () => {
    const status = await child.call<string>('worker');
    expect(field(status, 'Seccomp')).toBe('2');
    expect(field(status, 'NoNewPrivs')).toBe('1');
    expect(field(status, 'CapPrm')).toBe(hex(0n));
  });

  it('raises only permitted capabilities, and only those of the call', async () => {
    const [fd] = await child.call<number[]>('directories');
    // The directory is root's alone.
    const call = { caps: caps('DAC_READ_SEARCH'), deadlineMs: 5000 };
    expect(await child.call('listDirectory', call, fd, [], 10)).toEqual(['a']);
    expect((await child.failure('listDirectory', { ...call, caps: 0n }, fd, [], 10)).code).toBe('EACCES');
    const refused = await child.failure('listDirectory', { caps: 1n << 25n, deadlineMs: 5000 }, fd, [], 10);
    expect(refused).toMatchObject({ code: 'EPERM', refused: true, unchanged: true });
    const outside = await child.failure('listDirectory', call, fd, ['..'], 10);
    expect(outside).toMatchObject({ code: 'EINVAL', refused: true });
  });

  it('cannot be started, dropped or locked twice', async () => {
    const started = await child.failure('startPrivilegedThreads', { count: 1, permitted: 0n });
    expect(started.code).toBe('EALREADY');
    expect((await child.failure('dropPrivileges', { uid: 1, gid: 1, groups: [] })).code).toBe('EALREADY');
    expect((await child.failure('lockDown', { privileged: true })).code).toBe('EALREADY');
    // Would let the threads make processes.
    expect((await child.failure('labelTaps')).code).toBe('EALREADY');
  });

  it('names what is wrong with an argument', async () => {
    const [fd] = await child.call<number[]>('directories');
    const call = { caps: caps('DAC_READ_SEARCH'), deadlineMs: 5000 };
    const pod = '0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11';
    const cases: [string, unknown[], string][] = [
      ['podState', [{ caps: 1, deadlineMs: 5000 }, fd, pod], 'argument caps'],
      ['podState', [{ caps: 0n, deadlineMs: 0 }, fd, pod], 'argument deadlineMs'],
      ['podState', [call, -1, pod], 'argument podsDir'],
      ['podState', [call, 99_999, pod], 'dup podsDir'],
      ['podState', [call, fd, `${pod}x`], 'pod UID'],
      ['podState', [call, fd, '../../../../../../../../../../../etc/'], 'pod UID'],
      ['podState', [undefined, fd, pod], 'argument call'],
      ['containerDiskStates', [call, fd, pod, [0, 1000]], 'argument index'],
      ['containerDiskStates', [call, fd, pod, [1.5]], 'argument index'],
      ['containerDiskStates', [call, fd, pod, Array(1003).fill(0)], 'argument indexes'],
      ['listDirectory', [call, fd, ['a/b'], 10], 'path: not an entry name'],
      ['listDirectory', [call, fd, 'a', 10], 'argument components'],
      ['listDirectory', [call, fd, [], 1e9], 'argument limit'],
    ];
    for (const [method, args, operation] of cases) {
      const failure = await child.failure(method, ...args);
      expect(failure.operation).toBe(operation);
      expect(failure.unchanged).toBe(true);
      expect(failure.message).toBe(`${operation}: ${failure.message.slice(operation.length + 2)}`);
    }
  });

  it('refuses more calls than it queues, and loses none', async () => {
    const [fd] = await child.call<number[]>('directories');
    const before = await child.call<number>('descriptors');
    const outcomes = await child.call<string[]>('many', 1000, 'listDirectory', [
      { caps: caps('DAC_READ_SEARCH'), deadlineMs: 30_000 },
      fd,
      [],
      10,
    ]);
    expect(outcomes).toHaveLength(1000);
    expect(outcomes.filter((outcome) => outcome === 'a').length).toBeGreaterThanOrEqual(256);
    expect(new Set(outcomes)).toEqual(new Set(outcomes.includes('EAGAIN') ? ['a', 'EAGAIN'] : ['a']));
    expect(await child.call('descriptors')).toBe(before);
  });
});
