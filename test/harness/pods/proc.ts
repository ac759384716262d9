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

/** Seconds between boot and the start of a process; undefined when it has gone. */
export function startTime(pid: number): number | undefined {
  const fields = readIfThere(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ');
  // Field 22; the text left starts with field 3.
  return fields[19] === undefined ? undefined : Number(fields[19]) / clockTicksPerSecond;
}

/** Seconds since boot. */
export function uptime(): number {
  return Number(readIfThere('/proc/uptime').split(' ')[0]);
}
