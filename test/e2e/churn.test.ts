import { readdirSync } from 'node:fs';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { signal, waitFor } from '../harness/pods/run.js';
import { ChildProcesses } from '../harness/system/child-processes.js';
import { agentMetrics } from '../harness/system/metrics.js';
import type { ProgramName } from '../harness/system/programs.js';
import { System } from '../harness/system/system.js';

/** More than the slack of what is compared; 200 take two minutes on a small machine. */
const cycles = Number(process.env['CHURN_VMS'] ?? 60);
const together = 10;
/** To the API server, kept for the next request. */
const idleConnections = 4;

let system: System;

beforeEach(async () => {
  const NODE_OPTIONS = `--import ${new URL('../harness/system/tell-timers.mjs', import.meta.url).pathname}`;
  system = await System.create((node) =>
    ChildProcesses.create(node, { agent: { NODE_OPTIONS }, helper: { NODE_OPTIONS } }),
  );
});

afterEach(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

/** Creates VMs, waits until they run, deletes them and waits until they are gone. */
async function cycle(batch: number): Promise<void> {
  await Promise.all(
    Array.from({ length: together }, async (_, i) => {
      const vm = await system.createVm({
        ...{ name: `vm-${batch}-${i}`, machine: 'fake', containerDisk: true },
        terminationGracePeriodSeconds: 5,
      });
      await system.waitForPhase(vm, 'Running', 120_000);
      system.deleteVmi(vm);
      await system.finishDeletion(vm, 120_000);
    }),
  );
}

/** What a process holds, as the kernel counts it, and its timers. */
async function held(which: ProgramName) {
  const pid = system[which]?.pid ?? 0;
  const count = (directory: string) => readdirSync(`/proc/${pid}/${directory}`).length;
  return { descriptors: count('fd'), threads: count('task'), timers: await timers(which, pid) };
}

async function timers(which: ProgramName, pid: number): Promise<number> {
  const from = system.logSize(which);
  signal(pid, 'SIGUSR2');
  const told = () => /^timers: (\d+)$/m.exec(system.log(which).slice(from))?.[1];
  return Number(await waitFor(`the ${which} to tell its timers`, 30_000, told));
}

/** Series of the agent's metrics that name a VMI. */
async function series(): Promise<string[]> {
  return (await agentMetrics(system)).split('\n').filter((line) => line.includes('namespace="'));
}

it('AFT-070 after VM upon VM agent, helper and host hold what they held before', async () => {
  await system.startProduct();
  await cycle(0);
  const settled = async () => ({
    agent: await held('agent'),
    helper: await held('helper'),
    series: await series(),
    leftovers: await system.node.present(),
  });
  const clean = (now: Awaited<ReturnType<typeof settled>>) =>
    now.series.length === 0 && now.leftovers.length === 0;
  const base = await waitFor('the first VMs to be gone', 30_000, async () => {
    const now = await settled();
    return clean(now) && now;
  });
  for (let batch = 1; batch < cycles / together; batch++) await cycle(batch);
  let last = base;
  await waitFor('everything to be as it was', 60_000, async () => {
    last = await settled();
    return (
      clean(last) &&
      (['agent', 'helper'] as const).every(
        (which) =>
          last[which].threads <= base[which].threads &&
          last[which].timers <= base[which].timers &&
          last[which].descriptors <= base[which].descriptors + idleConnections,
      )
    );
  }).catch((error: Error) => {
    throw new Error(`${error.message}: ${JSON.stringify(last)} instead of ${JSON.stringify(base)}`);
  });
}, 1_200_000);
