/** Mounts of the harness in the host's mount namespace. */
import { readFileSync } from 'node:fs';
import { run } from './run.js';

/** Mount points at or below `directory`, deepest first. */
export function mountsBelow(directory: string): string[] {
  return readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => unescapeOctal(line.split(' ')[4] ?? ''))
    .filter((point) => point === directory || point.startsWith(`${directory}/`))
    .reverse();
}

function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}

/** Detaches everything mounted at or below `directory`. */
export async function unmountBelow(directory: string): Promise<void> {
  const points = mountsBelow(directory);
  if (points.length > 0) await run('umount', ['-l', ...points]);
}

/** A directory that is a mount point of a shared peer group, as a node's / is. */
export async function makeShared(directory: string): Promise<void> {
  await run('mount', ['--bind', '--make-shared', directory, directory]);
}
