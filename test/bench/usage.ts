/** What a process has used, from the kernel's account (proc_pid_stat(5)). */
import { readFileSync } from 'node:fs';
import { childrenOf } from '../harness/pods/proc.js';

export interface Usage {
  /** User and system time of all threads, milliseconds. */
  readonly cpuMs: number;
  /** Resident memory, bytes. */
  readonly rssBytes: number;
  /** Whether the process ever had a child: one that lives, or one whose page faults were added up at its end. */
  readonly hadChildren: boolean;
}

const millisecondsPerTick = 10;
const pageBytes = 4096;

export function usageOf(pid: number): Usage {
  // Fields from the third on; the second may contain anything.
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
  const field = (number: number) => Number(fields[number - 3]);
  return {
    cpuMs: (field(14) + field(15)) * millisecondsPerTick,
    rssBytes: field(24) * pageBytes,
    hadChildren: field(11) > 0 || childrenOf(pid).length > 0,
  };
}
