import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

async function end(vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
}

async function expectNothingLeft(): Promise<void> {
  await waitFor('the state of all VMs to go', 20_000, () => system.state().length === 0);
  expect(await system.node.leftovers()).toEqual([]);
}

describe('VMIs of one name', () => {
  it('in two namespaces run at once, each in its pod, and end one by one', async () => {
    const [one, two] = await Promise.all([
      system.createVm({ name: 'twin', machine: 'fake', containerDisk: true }),
      system.createVm({ name: 'twin', namespace: 'kube-system', machine: 'fake', containerDisk: true }),
    ]);
    await Promise.all([one, two].map((vm) => system.waitForPhase(vm, 'Running')));
    for (const vm of [one, two]) {
      // Everything that was done for the VM was done in its own pod.
      const calls = system.audit().filter(({ vmi }) => vmi === vm.uid);
      expect(new Set(calls.map(({ pod }) => pod))).toEqual(new Set([vm.pod.uid]));
      expect(calls.map(({ method }) => method)).toContain('NetworkService.Apply');
    }
    await end(one);
    expect(system.vmi(two)?.status.phase).toBe('Running');
    expect(two.launcher.stopCommands()).toEqual([]);
    expect(system.state().some((path) => path.includes(two.uid))).toBe(true);
    await end(two);
    await expectNothingLeft();
  });

  it('AFT-022 REC-008 a new one waits until the launcher of the old one has gone, which is left alone', async () => {
    const old = await system.createVm({ name: 'again', machine: 'fake', containerDisk: true });
    await system.waitForPhase(old, 'Running');
    // With the agent away the old VMI goes and the new one comes unseen.
    await system.kill('agent');
    system.forgetVmi(old);
    const kept = system.state().filter((path) => path.includes(old.uid));
    const next = await system.createVm({ name: 'again', machine: 'fake', containerDisk: true });
    await system.startAgent();

    // The agent looks again every 5 s.
    await system.logged('agent', /waiting for the launcher of the older VMI/, 3, 60_000);
    expect(old.launcher.stopCommands()).toEqual([]);
    expect(system.state().filter((path) => path.includes(old.uid))).toEqual(kept);
    expect(system.vmi(next)?.status.phase).toBe('Scheduled');
    expect(next.launcher.commands()).toEqual([]);

    await old.pod.destroy();
    await system.waitForPhase(next, 'Running');
    expect(system.state().filter((path) => path.includes(old.uid))).toEqual([]);
    await end(next);
    await expectNothingLeft();
  });

  it('AFT-021 a new one starts although the ghost record names a dead predecessor, whose leftovers go', async () => {
    const old = await system.createVm({ name: 'ghost', machine: 'fake', containerDisk: true });
    await system.waitForPhase(old, 'Running');
    await system.kill('agent');
    system.forgetVmi(old);
    await old.pod.destroy();
    expect(system.state().filter((path) => path.includes(old.uid))).not.toEqual([]);

    const next = await system.createVm({ name: 'ghost', machine: 'fake', containerDisk: true });
    await system.startAgent();
    await system.waitForPhase(next, 'Running');
    expect(system.state().filter((path) => path.includes(old.uid))).toEqual([]);
    await end(next);
    await expectNothingLeft();
  });
});
