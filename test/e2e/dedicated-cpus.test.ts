/** A VM with dedicated CPUs, from the VMI to the threads. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { waitFor } from '../harness/pods/run.js';
import { System } from '../harness/system/system.js';
import { threadsOf } from '../integration/resources-fixture.js';

let system: System;

beforeEach(async () => {
  system = await System.create();
});

afterEach(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

describe('a VM with dedicated CPUs', () => {
  it('STO-030 has its emulator’s threads in a cgroup of their own, also when agent and helper start again', async () => {
    await system.startProduct();
    const cpu = { dedicatedCpuPlacement: true, isolateEmulatorThread: true };
    const vm = await system.createVm({ name: 'vm', cpu });
    await system.waitForPhase(vm, 'Running');
    const container = vm.launcher.container.cgroups.find((path) => path.includes('/cpuset/')) ?? '';
    const tasks = () => readFileSync(join(container, 'tasks'), 'utf8');
    const qemu = await waitFor('QEMU', 10_000, () => vm.launcher.qemuPid());
    // QEMU under emulation has no thread that is called as one of KVM's, so none stays behind.
    const isolated = () => tasks() === '' && threadsOf(qemu).every(({ cpus }) => cpus === '0');
    await waitFor('the threads to be moved', 60_000, isolated);

    const isolations = () =>
      system.audit().filter((line) => line['method'] === 'ResourceService.IsolateEmulator');
    const before = isolations().length;
    await system.restart('helper');
    await system.restart('agent');
    await waitFor('another pass', 60_000, () => isolations().length > before + 1);
    expect(isolations().filter(({ decision }) => decision !== undefined && decision !== 'allowed')).toEqual(
      [],
    );
    expect(isolated()).toBe(true);
    expect(system.vmi(vm)?.status.phase).toBe('Running');

    system.deleteVmi(vm);
    await system.finishDeletion(vm);
  }, 180_000);
});
