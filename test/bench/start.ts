/** From "VMI seen" to SyncVirtualMachine sent, where pod and launcher are there before the VMI is. */
import { LauncherTestClient } from '../harness/launcher/client.js';
import type { LauncherHandle } from '../harness/launcher/start.js';
import type { System, Vm } from '../harness/system/system.js';

/** Steps of the agent's timeline, in order, that are nothing but its own work and the helper's. */
export const startSteps = [
  'launcher ready',
  'connected',
  'container disks ready',
  'container disks mounted',
  'network set up',
  'devices claimed',
  'sync sent',
] as const;

/** Milliseconds of one start. */
export interface Start {
  /** What each of `startSteps` took. */
  readonly steps: readonly number[];
  /** From the first step to the last. */
  readonly total: number;
}

const vmDeadlineMs = 60_000;
const launchersAtATime = 4;

/** Starts VMs one after another, each when the one before runs. */
export async function startOneByOne(
  system: System,
  count: number,
): Promise<{ readonly vms: readonly Vm[]; readonly starts: readonly Start[] }> {
  const vms: Vm[] = [];
  const starts: Start[] = [];
  for (let i = 0; i < count; i++) {
    const vm = await system.createVm({
      ...vmOf('single', i),
      beforeVmi: (_, launcher) => answered(launcher),
    });
    vms.push(vm);
    await system.waitForPhase(vm, 'Running', vmDeadlineMs);
    starts.push(startOf(system, vm));
  }
  return { vms, starts };
}

/** Starts VMs at once: all VMIs are created when every launcher is there. */
export async function startTogether(
  system: System,
  count: number,
  atStart: () => void,
): Promise<{ readonly vms: readonly Vm[]; readonly starts: readonly Start[] }> {
  let ready = 0;
  let release = () => {};
  const all = new Promise<void>((resolve) => {
    release = resolve;
  });
  const permits = new Permits(launchersAtATime);
  const vms = await Promise.all(
    Array.from({ length: count }, async (_, i) => {
      await permits.take();
      return system.createVm({
        ...vmOf('together', i),
        beforeVmi: async (_, launcher) => {
          await answered(launcher);
          permits.give();
          ready += 1;
          if (ready === count) {
            atStart();
            release();
          }
          await all;
        },
      });
    }),
  );
  for (const vm of vms) await system.waitForPhase(vm, 'Running', vmDeadlineMs);
  return { vms, starts: vms.map((vm) => startOf(system, vm)) };
}

export async function endVms(system: System, vms: readonly Vm[]): Promise<void> {
  for (const vm of vms) system.deleteVmi(vm);
  await Promise.all(vms.map((vm) => system.finishDeletion(vm)));
}

/** A launcher written in Go answers its first call as fast as all others; the stand-in has to get there first. */
async function answered({ socketPath }: LauncherHandle): Promise<void> {
  const client = new LauncherTestClient(socketPath);
  try {
    await client.versions();
  } finally {
    client.close();
  }
}

function vmOf(kind: string, number: number) {
  return { name: `${kind}-${number}`, machine: 'fake', containerDisk: true } as const;
}

function startOf(system: System, vm: Vm): Start {
  const noted = new Map(system.timeline(vm.uid).map(({ step, atMs }) => [step, atMs]));
  let before = 0;
  const steps = startSteps.map((step) => {
    const at = noted.get(step);
    if (at === undefined) throw new Error(`VM ${vm.name} has no step "${step}"`);
    const took = at - before;
    before = at;
    return took;
  });
  return { steps, total: before };
}

/** So many at a time. */
class Permits {
  readonly #waiting: (() => void)[] = [];

  constructor(private free: number) {}

  async take(): Promise<void> {
    if (this.free > 0) {
      this.free -= 1;
      return;
    }
    await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.free += 1;
    else next();
  }
}
