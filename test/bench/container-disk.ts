/** What a bind mount costs when mount(8) is forked for it. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { run } from '../harness/pods/run.js';

/** Mean of `rounds` read-only bind mounts, milliseconds. `directory` is on the node and private to this. */
export async function forkedMountMs(directory: string, rounds: number): Promise<number> {
  mkdirSync(directory);
  const [source, target] = [join(directory, 'source'), join(directory, 'target')];
  for (const path of [source, target]) writeFileSync(path, '');
  const script = `set -e
date +%s%N
for i in $(seq "$1"); do mount -o bind,ro "$2" "$3"; done
date +%s%N
for i in $(seq "$1"); do umount "$3"; done`;
  const output = await run('sh', ['-c', script, 'sh', String(rounds), source, target]);
  rmSync(directory, { recursive: true });
  const [from = '0', to = '0'] = output.trim().split('\n');
  return Number(BigInt(to) - BigInt(from)) / 1e6 / rounds;
}
