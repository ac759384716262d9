import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { signal, waitFor } from '../harness/pods/run.js';
import { atStep } from '../harness/system/steps.js';
import { System, type Vm, type VmOptions } from '../harness/system/system.js';

/** Every step of a VM's start, and what the start waits for there so that the kill falls between it and the next. */
const steps: Readonly<Record<string, (killed: Promise<void>) => Partial<VmOptions>>> = {
  seen: (killed) => ({ beforeLauncher: killed }),
  'launcher ready': () => ({}),
  connected: (killed) => ({ beforeContainerDisk: killed }),
  'container disks ready': () => ({}),
  'container disks mounted': () => ({}),
  'network set up': () => ({}),
  'devices claimed': () => ({}),
  'sync sent': () => ({ faults: { slowSyncSeconds: 0.5 } }),
  'sync done': () => ({}),
  'domain running': () => ({}),
};

let system: System;
/** Runs all the time: whatever is killed, nothing happens to it. */
let bystander: Vm;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
  bystander = await system.createVm({ name: 'bystander', machine: 'fake' });
  await system.waitForPhase(bystander, 'Running');
});

afterAll(async () => {
  try {
    expect(bystander.launcher.stopCommands()).toEqual([]);
    await end(bystander);
    expect(await system.node.leftovers()).toEqual([]);
    expect(system.state()).toEqual([]);
  } finally {
    await system.stop();
  }
  expect(await system.node.leftovers()).toEqual([]);
});

async function end(vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await atStep(system, vm.uid, 'cleaned', () => {});
  await system.finishDeletion(vm);
  expect(system.vmi(vm)).toBeUndefined();
}

describe.each(['helper', 'agent'] as const)('the %s is killed while a VM starts', (which) => {
  it.each(Object.keys(steps))('at step "%s": the VM becomes Running and leaves nothing', async (step) => {
    const uid = randomUUID();
    const killed = atStep(system, uid, step, () => signal(system[which]?.pid ?? 0, 'SIGKILL'));
    const restarted = killed.then(() => system.restart(which));
    const [vm] = await Promise.all([
      system.createVm({ name: 'vm', uid, machine: 'fake', containerDisk: true, ...steps[step]?.(killed) }),
      restarted,
    ]);
    await system.waitForPhase(vm, 'Running');
    expect(vm.launcher.stopCommands()).toEqual([]);
    expect(system.vmi(bystander)?.status.phase).toBe('Running');

    await end(vm);
    await waitFor(`state of ${uid} to go`, 10_000, () => !system.state().some((path) => path.includes(uid)));
  });
});
