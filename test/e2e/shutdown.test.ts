import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

const watchdog = ['--watchdog-timeout', '3s'];

let system: System;
let started = 0;

beforeAll(async () => {
  system = await System.create();
  await system.startHelper();
  await system.startAgent(...watchdog);
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

async function runningVm(options: Partial<Parameters<System['createVm']>[0]> = {}): Promise<Vm> {
  started += 1;
  const vm = await system.createVm({
    name: `vm-${started}`,
    machine: 'fake',
    containerDisk: true,
    ...options,
  });
  await system.waitForPhase(vm, 'Running');
  return vm;
}

/** When the launcher got a command, milliseconds since the epoch. */
function timesOf(command: string, log: string): number[] {
  const lines = log.split('\n').filter((line) => line.endsWith(` launcher: command ${command}`));
  return lines.map((line) => Date.parse(line.split(' ')[0] ?? ''));
}

function eventsOf(vm: Vm, message: string): Record<string, unknown>[] {
  const all = system.api.store.list('events', vm.namespace) as Record<string, unknown>[];
  return all.filter(
    (event) =>
      event['message'] === message &&
      (event['involvedObject'] as { uid?: string } | undefined)?.uid === vm.uid,
  );
}

async function expectNothingLeft(vm: Vm): Promise<void> {
  await system.finishDeletion(vm);
  expect(system.vmi(vm)).toBeUndefined();
  await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
  expect(await system.node.leftovers()).toEqual([]);
}

describe('the end of a VM', () => {
  it('a guest that obeys its power button ends well', async () => {
    const vm = await runningVm();
    system.deleteVmi(vm);
    await system.waitForPhase(vm, 'Succeeded');
    await vm.launcher.exited;
    expect(new Set(vm.launcher.stopCommands())).toEqual(
      new Set(['shutdownVirtualMachine', 'deleteVirtualMachine']),
    );
    await expectNothingLeft(vm);
  });

  it('REC-022 a guest that ignores it is asked every 5 s and killed when its time is over', async () => {
    // Time for three, of which a slow machine may miss one.
    const graceSeconds = 12;
    const vm = await runningVm({ obeysAcpi: false, terminationGracePeriodSeconds: graceSeconds });
    system.deleteVmi(vm);
    await system.waitForPhase(vm, 'Failed', 60_000);
    const log = vm.launcher.log();
    const asked = timesOf('shutdownVirtualMachine', log);
    const [killed = 0] = timesOf('killVirtualMachine', log);
    // The domain's deletion time has whole seconds.
    expect(killed - (asked[0] ?? 0)).toBeGreaterThan((graceSeconds - 1) * 1000);
    expect(asked.length).toBeGreaterThanOrEqual(2);
    await waitFor('the event', 10_000, () => eventsOf(vm, 'Signaled Graceful Shutdown').length > 0);
    // Only until the launcher has told since when its domain is to end.
    const counts = eventsOf(vm, 'Signaled Graceful Shutdown').map(({ count }) => Number(count ?? 1));
    expect(counts.reduce((sum, count) => sum + count)).toBeLessThan(asked.length);
    await expectNothingLeft(vm);
  });

  it('REC-023 a guest without a grace period is killed at once', async () => {
    const vm = await runningVm({ obeysAcpi: false, terminationGracePeriodSeconds: 0 });
    system.deleteVmi(vm);
    await vm.launcher.exited;
    expect(vm.launcher.stopCommands()[0]).toBe('killVirtualMachine');
    expect(vm.launcher.commands()).not.toContain('shutdownVirtualMachine');
    await expectNothingLeft(vm);
  });

  it('LAU-008 a pod that is told to end has its guest shut down', async () => {
    const vm = await runningVm();
    vm.launcher.terminate();
    await system.waitForPhase(vm, 'Succeeded');
    await vm.launcher.exited;
    expect(vm.launcher.commands()).toContain('shutdownVirtualMachine');
    expect(vm.launcher.commands()).not.toContain('killVirtualMachine');
    system.deleteVmi(vm);
    await expectNothingLeft(vm);
  });

  it('REC-045 AFT-016 AFT-027 a launcher that died is marked, then its VM is Failed', async () => {
    const vm = await runningVm({ machine: 'qemu' });
    const marker = join(vm.pod.emptyDir('sockets'), 'launcher-unresponsive');
    const crashedAt = Date.now();
    vm.launcher.crash();
    await system.waitForPhase(vm, 'Failed');
    expect(existsSync(marker)).toBe(true);
    expect(Date.now() - crashedAt).toBeGreaterThan(3_000);
    // The marker is older than the write that says Failed.
    const written = system.vmi(vm)?.status.phaseTransitionTimestamps?.find(({ phase }) => phase === 'Failed');
    expect(statSync(marker).mtimeMs).toBeLessThanOrEqual(
      Date.parse(String(written?.phaseTransitionTimestamp)) + 1_000,
    );
    system.deleteVmi(vm);
    await expectNothingLeft(vm);
  });

  it('AFT-027 a launcher that only hangs is never given up, whatever the watchdog', async () => {
    const vm = await runningVm();
    vm.launcher.freeze();
    await system.kill('agent');
    const before = system.logSize('agent');
    await system.startAgent(...watchdog);
    // Each try takes 5 s and more, so that the watchdog has looked several times.
    await system.logged('agent', /launcher does not tell its domain/, 3, 60_000, before);
    expect(system.vmi(vm)?.status.phase).toBe('Running');
    expect(existsSync(join(vm.pod.emptyDir('sockets'), 'launcher-unresponsive'))).toBe(false);
    vm.launcher.thaw();
    await system.logged('agent', /domain running/, 1, 30_000, before);
    expect(vm.launcher.stopCommands()).toEqual([]);
    system.deleteVmi(vm);
    await expectNothingLeft(vm);
  });
});
