/** What container disks cost: many of one VM, one or more at a time, and a bind mount by mount(8). */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startManyDisks } from '../harness/pods/many-disks.js';
import { run } from '../harness/pods/run.js';
import type { System, Vm } from '../harness/system/system.js';
import type { BareLoop } from './bare-loop.js';
import type { Measurer } from './measurer.js';

/** Container disks of one VM that the helper mounts; the bare loop mounts as many others. */
export const manyDisks = 200;

/** Disks of one call, and VMs on which that is measured. */
export const batches = [
  { size: 1, vms: 1 },
  { size: 8, vms: 1 },
  { size: manyDisks, vms: 5 },
] as const;

/** Milliseconds of a disk in each call, in their order. */
export interface DiskTimes {
  readonly size: number;
  readonly helper: readonly number[];
  readonly bare: readonly number[];
}

/** The same number of disks by the helper and by the bare loop in turn. The VMs are added to `vms`. */
export async function measureDisks(
  system: System,
  measurer: Measurer,
  bareLoop: BareLoop,
  { size, vms: count }: (typeof batches)[number],
  vms: Vm[],
): Promise<DiskTimes> {
  const image = join(system.node.root, 'image');
  writeFileSync(image, 'image');
  const [helper, bare]: [number[], number[]] = [[], []];
  for (let i = 0; i < count; i++) {
    const vm = await system.createVm({ name: `disks-${size}-${i}`, machine: 'fake' });
    vms.push(vm);
    await startManyDisks(vm.pod, image, 2 * manyDisks);
    const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
    for (let first = 0; first < 2 * manyDisks; first += 2 * size) {
      const indexes = (from: number) => Array.from({ length: size }, (_, k) => from + k);
      const byHelper = async (from: number) => {
        const [took = Number.NaN] = await measurer.measure({
          measure: 'container disks',
          pod,
          indexes: indexes(from),
        });
        helper.push(took / size);
      };
      const byBareLoop = async (from: number) => {
        bare.push((await bareLoop.measure(`${pod.podUid} ${indexes(from).join(' ')}`)) / size);
      };
      // Whoever comes second finds more mounts.
      const [one, other] =
        (i + first / (2 * size)) % 2 === 0 ? [byHelper, byBareLoop] : [byBareLoop, byHelper];
      await one(first);
      await other(first + size);
    }
  }
  return { size, helper, bare };
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
