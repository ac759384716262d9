/** Proof, from the kernel's own account, that privileges are where they should be and nowhere else. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { errnoOf } from './failure.js';

export interface ThreadStatus {
  /** real, effective, saved, filesystem */
  readonly uids: readonly number[];
  readonly effective: bigint;
  readonly permitted: bigint;
  readonly inheritable: bigint;
  readonly ambient: bigint;
  readonly bounding: bigint;
  readonly noNewPrivs: boolean;
  /** 2: a filter is installed. */
  readonly seccomp: number;
}

export interface Expected {
  readonly uid: number;
  readonly privilegedThreads: number;
  /** Union of all declarations. */
  readonly permitted: bigint;
}

/** Parses /proc/PID/task/TID/status. Throws when a line is missing. */
export function parseThreadStatus(text: string): ThreadStatus {
  const field = (name: string) => {
    const match = new RegExp(`^${name}:\\s*(.+)$`, 'm').exec(text);
    if (match?.[1] === undefined) throw new Error(`thread status without ${name}`);
    return match[1].trim();
  };
  const mask = (name: string) => BigInt(`0x${field(name)}`);
  return {
    uids: field('Uid').split(/\s+/).map(Number),
    effective: mask('CapEff'),
    permitted: mask('CapPrm'),
    inheritable: mask('CapInh'),
    ambient: mask('CapAmb'),
    bounding: mask('CapBnd'),
    noNewPrivs: field('NoNewPrivs') === '1',
    seccomp: Number(field('Seccomp')),
  };
}

/** Throws unless exactly the privileged threads keep exactly the permitted set, and nobody anything else. */
export function verifyThreads(threads: readonly ThreadStatus[], expected: Expected): void {
  let privileged = 0;
  for (const thread of threads) {
    if (thread.uids.length !== 4 || thread.uids.some((uid) => uid !== expected.uid)) {
      throw new Error(`a thread runs as uid ${thread.uids.join('/')}`);
    }
    if (thread.effective !== 0n) throw new Error('a thread has effective capabilities');
    if (thread.inheritable !== 0n) throw new Error('a thread has inheritable capabilities');
    if (thread.ambient !== 0n) throw new Error('a thread has ambient capabilities');
    if (!thread.noNewPrivs) throw new Error('a thread has not set no_new_privs');
    if (thread.seccomp !== 2) throw new Error('a thread has no system call filter');
    if (thread.permitted === 0n) continue;
    privileged += 1;
    if (thread.permitted !== expected.permitted) {
      throw new Error(`a thread may raise capabilities 0x${thread.permitted.toString(16)}`);
    }
    if ((thread.bounding & ~expected.permitted) !== 0n) {
      throw new Error(`a privileged thread's bounding set is 0x${thread.bounding.toString(16)}`);
    }
  }
  if (privileged !== expected.privilegedThreads) {
    throw new Error(`${privileged} threads are privileged, expected ${expected.privilegedThreads}`);
  }
}

/** The status of every thread of a process. A thread that ends meanwhile is left out. */
export function readThreads(pid: number | 'self' = 'self'): (ThreadStatus & { readonly tid: number })[] {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).flatMap((tid) => {
    let text: string;
    try {
      text = readFileSync(join(tasks, tid, 'status'), 'utf8');
    } catch (error) {
      if (errnoOf(error) === 'ENOENT' || errnoOf(error) === 'ESRCH') return [];
      throw error;
    }
    return { tid: Number(tid), ...parseThreadStatus(text) };
  });
}
