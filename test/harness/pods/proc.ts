/** Reading /proc, where everything may have gone by the time it is read. */
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync, statSync } from 'node:fs';

/** Empty when it is not there. */
export function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

/** What a file has from a position on, bytes; empty when it is not there. */
export function readFrom(path: string, position: number): string {
  const size = sizeIfThere(path);
  if (size <= position) return '';
  const file = openSync(path, 'r');
  try {
    const buffer = Buffer.alloc(size - position);
    return buffer.toString('utf8', 0, readSync(file, buffer, 0, buffer.length, position));
  } finally {
    closeSync(file);
  }
}

/** Bytes; 0 when it is not there. */
export function sizeIfThere(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
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

/**
 * Whether a socket of that file name is listened on in the network namespace of a process. That it is there says less:
 * it is bound first.
 */
export function isListening(pid: number, name: string): boolean {
  const accepts = '00010000';
  return readIfThere(`/proc/${pid}/net/unix`)
    .split('\n')
    .some((line) => line.endsWith(`/${name}`) && line.split(/ +/)[3] === accepts);
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
