/** Reading /proc, where everything may have gone by the time it is read. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** Empty when it is not there. */
export function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

export function readlinkIfThere(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}

export function readdirIfThere(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}

/** Children of the main thread of a process. */
export function childrenOf(pid: number): number[] {
  return readIfThere(`/proc/${pid}/task/${pid}/children`)
    .split(' ')
    .filter((text) => text !== '')
    .map(Number);
}

const clockTicksPerSecond = 100;

/** Fields of /proc/PID/stat from the third on; empty when the process has gone. */
function statFields(pid: number): string[] {
  return readIfThere(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ');
}

/** 0 when the process has gone or has no parent that can be seen. */
export function parentOf(pid: number): number {
  return Number(statFields(pid)[1] ?? 0);
}

/** Seconds between boot and the start of a process; undefined when it has gone. */
export function startTime(pid: number): number | undefined {
  const ticks = statFields(pid)[19];
  return ticks === undefined ? undefined : Number(ticks) / clockTicksPerSecond;
}

/** Seconds since boot. */
export function uptime(): number {
  return Number(readIfThere('/proc/uptime').split(' ')[0]);
}
