/** What container disks cost: many of them in one pod, and a bind mount when mount(8) is forked for it. */
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';

/** One container with an image that listens as the container disks of volumes 0 to `count` - 1. */
export async function startManyDisks(pod: Pod, image: string, count: number): Promise<void> {
  const listen = `for (let i = 0; i < ${count}; i++)
    require('node:net').createServer((socket) => socket.destroy()).listen(\`/disks/disk_\${i}.sock\`)`;
  const container = await pod.startContainer({
    name: 'volumedisks',
    setup: ['copy', image, '/disk/disk.img', 'volume', pod.emptyDir('container-disks'), '/disks'],
    command: ['node', '-e', listen],
  });
  const last = join(pod.emptyDir('container-disks'), `disk_${count - 1}.sock`);
  await pod.waitUnlessExited(container, 'last socket', () => existsSync(last));
}

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
