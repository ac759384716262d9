import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { LauncherTestClient } from '../harness/launcher/client.js';
import { waitFor } from '../harness/pods/run.js';
import { atStep } from '../harness/system/steps.js';
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

function paused(vm: Vm): boolean {
  return (system.vmi(vm)?.status.conditions ?? []).some(
    ({ type, status }) => type === 'Paused' && status === 'True',
  );
}

/** The notify socket works: what happens in the launcher is shown by the API, both ways. */
async function expectEventsArrive(vm: Vm): Promise<void> {
  const vmi = system.vmi(vm);
  if (vmi === undefined) throw new Error(`${vm.name} is gone`);
  const client = new LauncherTestClient(vm.launcher.socketPath);
  try {
    await client.command('pauseVirtualMachine', vmi);
    await waitFor(`${vm.name} to be shown as paused`, 20_000, () => paused(vm));
    await client.command('unpauseVirtualMachine', vmi);
    await waitFor(`${vm.name} to be shown as running`, 20_000, () => !paused(vm));
  } finally {
    client.close();
  }
}

/** Phases that the agent wrote, in order. */
function recordPhases(vm: Vm): { readonly phases: string[]; stop(): void } {
  const phases: string[] = [];
  const stop = system.api.store.watch('virtualmachineinstances', (object) => {
    const { metadata, status } = object as unknown as {
      metadata: { uid: string };
      status?: { phase?: string };
    };
    if (metadata.uid === vm.uid) phases.push(status?.phase ?? '');
  });
  return { phases, stop };
}

describe('a running VM', () => {
  it.each(['helper', 'agent'] as const)(
    'REC-047 AFT-014 is not disturbed when the %s is killed: same QEMU, same phase, events arrive again',
    async (which) => {
      const vm = await system.createVm({ name: 'vm', obeysAcpi: false, terminationGracePeriodSeconds: 0 });
      await system.waitForPhase(vm, 'Running');
      const qemu = vm.launcher.qemuPid();
      expect(qemu).toBeDefined();

      const written = recordPhases(vm);
      await system.restart(which);
      await expectEventsArrive(vm);
      written.stop();
      expect(new Set(written.phases)).toEqual(new Set(['Running']));
      expect(vm.launcher.stopCommands()).toEqual([]);
      expect(vm.launcher.qemuPid()).toBe(qemu);

      system.deleteVmi(vm);
      await system.finishDeletion(vm);
      await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
      expect(await system.node.leftovers()).toEqual([]);
    },
  );

  it('AFT-014 without its ghost record stays Running over a restart of the agent', async () => {
    const vm = await system.createVm({ name: 'vm', machine: 'fake' });
    await system.waitForPhase(vm, 'Running');
    await system.kill('agent');
    rmSync(join(system.privateDir, 'ghost-records', vm.uid));
    const written = recordPhases(vm);
    await system.startAgent();
    await expectEventsArrive(vm);
    written.stop();
    expect(new Set(written.phases)).toEqual(new Set(['Running']));
    expect(vm.launcher.stopCommands()).toEqual([]);

    system.deleteVmi(vm);
    await system.finishDeletion(vm);
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
  });

  it('REC-048 deleted while the agent is dead is stopped and cleaned up by the next one', async () => {
    const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
    await system.waitForPhase(vm, 'Running');
    await system.kill('agent');
    system.forgetVmi(vm);
    expect(system.vmi(vm)).toBeUndefined();
    expect(system.state().filter((path) => path.includes(vm.uid))).not.toEqual([]);

    await system.startAgent();
    await atStep(system, vm.uid, 'cleaned', () => {});
    expect(vm.launcher.stopCommands()).toContain('deleteVirtualMachine');
    await system.finishDeletion(vm);
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
    expect(await system.node.leftovers()).toEqual([]);
  });

  it('REC-048 deleted with its pod while the agent is dead is cleaned up from the ghost record', async () => {
    const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
    await system.waitForPhase(vm, 'Running');
    await system.kill('agent');
    system.forgetVmi(vm);
    await vm.pod.destroy();
    expect(system.state().filter((path) => path.includes(vm.uid))).not.toEqual([]);

    await system.startAgent();
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
    expect(await system.node.leftovers()).toEqual([]);
  });
});
