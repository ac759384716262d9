/** What must be the same before and after an attack, as text that can be compared. */
import { lstatSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { readlinkIfThere } from '../../harness/pods/proc.js';
import { run } from '../../harness/pods/run.js';

/** Each entry of a tree: type, mode, owner, links, size, times of content and of inode, content. */
export function treeOf(directory: string): string[] {
  const info = lstatSync(directory, { bigint: true });
  const { mode, uid, gid, nlink, rdev, size, mtimeNs, ctimeNs } = info;
  const content = info.isFile()
    ? readFileSync(directory, 'base64')
    : info.isSymbolicLink()
      ? readlinkSync(directory)
      : '';
  const own = [directory, mode.toString(8), uid, gid, nlink, rdev, size, mtimeNs, ctimeNs, content].join(' ');
  if (!info.isDirectory()) return [own];
  const names = readdirSync(directory).sort();
  return [own, ...names.flatMap((name) => treeOf(join(directory, name)))];
}

/** Mounts as each thread of a process sees them; all of them the same unless one has lost its way home. */
export function mountsOf(pid: number): string[] {
  const threads = readdirSync(`/proc/${pid}/task`);
  const seen = threads.map((tid) => readFileSync(`/proc/${pid}/task/${tid}/mountinfo`, 'utf8'));
  return [...new Set(seen)];
}

/** Links, addresses, routes, packet filter and the switches of forwarding in a process's network namespace. */
export async function networkOf(pid: number): Promise<string> {
  const script = `set -e
    printf '%s\\n' link addr 'route show table all' | ip -d -o -batch -
    nft list ruleset
    cd /proc/sys/net
    cat ipv4/ip_forward ipv4/conf/all/arp_ignore ipv6/conf/all/forwarding`;
  return run('nsenter', [`--net=/proc/${pid}/ns/net`, '--', 'sh', '-c', script]);
}

/** What the descriptors of a process are, sorted: `socket`, `pipe`, `net`, a path. */
export function descriptorsOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`)
    .flatMap((fd) => readlinkIfThere(`/proc/${pid}/fd/${fd}`) ?? [])
    .map((link) => link.replace(/:\[\d+\]$/, '').replace(/^\/proc\/\d+\/task\/\d+$/, '/proc/pid/task/tid'))
    .sort();
}

export function threadsOf(pid: number): number {
  return readdirSync(`/proc/${pid}/task`).length;
}

/** Resident memory, bytes. */
export function memoryOf(pid: number): number {
  const [, kibibytes] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Number(kibibytes) * 1024;
}

export const ticksPerSecond = 100;

/** User and system time, ticks. */
export function processorTime(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
  return Number(fields[11]) + Number(fields[12]);
}
