import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { signal, waitFor } from '../harness/pods/run.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { killInSystemCall } from '../harness/system/process-trace.js';
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
    // The record of the VM is the last that goes.
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
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

/** What the helper made in the pod's network. */
async function networkOf({ pod }: Vm) {
  const network = new PodNetwork(pod);
  const links = await network.links();
  const { 'k6t-eth0': bridge, tap0 } = await network.addresses();
  const tap = links.get('tap0');
  return {
    links: [...links.keys()].sort(),
    flags: ['k6t-eth0', 'tap0'].map((name) => links.get(name)?.flags),
    addresses: { bridge, tap0 },
    tap: { master: tap?.master, mtu: tap?.mtu, ...tap?.linkinfo?.info_data },
    routes: (await network.routes('-4')).filter((route) => route.includes('k6t-eth0')),
    rules: await network.ruleset(),
    localnet: await network.sysctl('ipv4.conf.k6t-eth0.route_localnet'),
    forwarding: await network.sysctl('ipv4.ip_forward'),
  };
}

async function expectLife(vm: Vm): Promise<void> {
  await system.waitForPhase(vm, 'Running');
  expect(vm.launcher.stopCommands()).toEqual([]);
  expect(system.vmi(bystander)?.status.phase).toBe('Running');
  // Nothing is missing and nothing is there twice: it is what was set up for the bystander in one go.
  expect(await networkOf(vm)).toEqual(await networkOf(bystander));
  await end(vm);
  await waitFor(`the state of ${vm.uid} to go`, 10_000, () =>
    system.state().every((path) => !path.includes(vm.uid)),
  );
}

describe.each(['helper', 'agent'] as const)('the %s is killed while a VM starts', (which) => {
  it.each(Object.keys(steps))('at step "%s": the VM becomes Running and leaves nothing', async (step) => {
    const uid = randomUUID();
    const killed = atStep(system, uid, step, () => signal(system[which]?.pid ?? 0, 'SIGKILL'));
    const [vm] = await Promise.all([
      system.createVm({ name: 'vm', uid, machine: 'fake', containerDisk: true, ...steps[step]?.(killed) }),
      killed.then(() => system.restart(which)),
    ]);
    await expectLife(vm);
  });
});

/**
 * The system calls that change something in a VM's start, in their order: the notify socket, the record
 * and the mount of the container disk, and every other message that makes the pod's network (after five that look;
 * native/test/net_fault_test.cc has them all).
 */
const calls: readonly (readonly [call: string, nth: number])[] = [
  ['bind', 1],
  ['listen', 1],
  ['rename', 1],
  ['open_tree', 1],
  ['setns', 2],
  ['move_mount', 1],
  ['setns', 3],
  ...Array.from({ length: 6 }, (_, i): [string, number] => ['sendto', 6 + 2 * i]),
];

describe('the helper is killed inside an operation', () => {
  it.each(calls)(
    'NET-032 before its %s number %i: the VM becomes Running and leaves nothing',
    async (call, nth) => {
      const killed = await killInSystemCall(system.helper?.pid ?? 0, call, nth);
      const [vm] = await Promise.all([
        system.createVm({ name: 'vm', machine: 'fake', containerDisk: true }),
        killed.death.then(() => system.restart('helper')),
      ]);
      await expectLife(vm);
    },
  );
});
