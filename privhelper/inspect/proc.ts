/**
 * Files of /proc and of cgroups that everybody on the machine may read. No privilege is used for them, and
 * the helper's own thread does not wait for them.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { errnoOf } from '../failure.js';
import type { CommandLines } from './command-lines.js';

/** The whole text; throws EFBIG beyond `limit` bytes. */
export async function readBounded(path: string, limit: number): Promise<string> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const chunks: Buffer[] = [];
    for (let size = 0; ; ) {
      const { buffer, bytesRead } = await file.read({ buffer: Buffer.alloc(16 << 10) });
      if (bytesRead === 0) return Buffer.concat(chunks).toString('utf8');
      size += bytesRead;
      if (size > limit)
        throw Object.assign(new Error(`read ${path}`), { code: 'EFBIG', syscall: `read ${path}` });
      chunks.push(buffer.subarray(0, bytesRead));
    }
  } finally {
    await file.close();
  }
}

/** As {@link readBounded}; undefined for a file that is not there. */
export async function readIfAny(path: string, limit: number): Promise<string | undefined> {
  try {
    return await readBounded(path, limit);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** What a process says about itself, and how old it is. */
export interface ProcessFacts {
  readonly ageMs: number;
  /** VMI namespace and name on its command line; empty when they are not there or not names. */
  readonly claimedNamespace: string;
  readonly claimedName: string;
}

/** USER_HZ: the same on every architecture that KubeVirt supports. */
const ticksPerSecond = 100;
const maxCommandLine = 64 << 10;
const dnsSubdomain = /^[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?$/;

/** Start of the process in clock ticks after boot: field 22 of proc_pid_stat(5). NaN when it is not there. */
export function parseStartTicks(stat: string): number {
  // The command, field 2, may contain spaces and parentheses.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return Number(fields[19] ?? Number.NaN);
}

/** `--name` and `--namespace` of virt-launcher's command line, proc_pid_cmdline(5). */
export function parseClaims(commandLine: string): { claimedNamespace: string; claimedName: string } {
  const words = commandLine.split('\0');
  const flag = (name: string) => {
    const at = words.findIndex((word) => word === `--${name}` || word.startsWith(`--${name}=`));
    const word = words[at] ?? '';
    const value = word.includes('=') ? word.slice(word.indexOf('=') + 1) : (words[at + 1] ?? '');
    return at >= 0 && dnsSubdomain.test(value) ? value : '';
  };
  return { claimedNamespace: flag('namespace'), claimedName: flag('name') };
}

/** The words of a command line, each with a NUL at its end. Throws EFBIG beyond 64 KiB. */
export function readCommandLine(pid: number): Promise<string> {
  return readBounded(`/proc/${pid}/cmdline`, maxCommandLine);
}

/** The caller makes sure that the process lives when this resolves, or the number may mean another one. */
export async function readProcess(pid: number, commandLines: CommandLines): Promise<ProcessFacts> {
  const uptimeMs = Number((await readBounded('/proc/uptime', 128)).split(' ', 1)[0]) * 1000;
  const startTicks = parseStartTicks(await readBounded(`/proc/${pid}/stat`, 4096));
  const ageMs = Math.max(0, Math.round(uptimeMs - (startTicks * 1000) / ticksPerSecond) || 0);
  return { ageMs, ...parseClaims(await commandLines.of(pid)) };
}
