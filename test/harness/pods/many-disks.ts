/** Many container disks in one pod. */
import type { Pod } from './pod.js';

/** One container with an image that listens as the container disks of the volumes `first` to `first` + `count` - 1. */
export async function startManyDisks(pod: Pod, image: string, count: number, first = 0): Promise<void> {
  const listen = `for (let i = ${first}; i < ${first + count}; i++)
    require('node:net').createServer((socket) => socket.destroy()).listen(\`/disks/disk_\${i}.sock\`)`;
  const container = await pod.startContainer({
    name: 'volumedisks',
    setup: ['copy', image, '/disk/disk.img', 'volume', pod.emptyDir('container-disks'), '/disks'],
    command: ['node', '-e', listen],
  });
  await pod.waitForListener(container, `disk_${first + count - 1}.sock`);
}
