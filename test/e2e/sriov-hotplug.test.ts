/** An SR-IOV device for a running VM: agent, helper and launcher together. The device itself is made up. */
import { afterEach, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { waitFor } from '../harness/pods/run.js';
import { mayLift, NotedLimits } from '../harness/preload/prlimit.js';
import { ChildProcesses } from '../harness/system/child-processes.js';
import { System } from '../harness/system/system.js';
import { memlockOf } from '../integration/resources-fixture.js';

let system: System | undefined;

afterEach(async () => {
  await system?.stop();
  expect(await system?.node.leftovers()).toEqual([]);
});

const plugged = 'vf';

it('AFT-046 AFT-049 NET-029 an SR-IOV device is plugged after the limit of locked memory was raised, and tried again until it is', async () => {
  let limits: NotedLimits | undefined;
  const running = await System.create(async (node) => {
    limits = await NotedLimits.create(node.root);
    return ChildProcesses.create(node, { helper: limits.env });
  });
  system = running;
  await running.startProduct();
  const vm = await running.createVm({ name: 'vm', faults: { hostDevices: 2 } });
  await running.waitForPhase(vm, 'Running');
  const qemu = await waitFor('QEMU', 10_000, () => vm.launcher.qemuPid());
  expect(limits?.lines()).toEqual([]);

  // The network in the spec, and virt-controller's word that Multus has plugged it.
  const change = (how: (vmi: Vmi) => void) =>
    running.api.store.change('virtualmachineinstances', vm.namespace, vm.name, (copy) =>
      how(copy as unknown as Vmi),
    );
  change(({ spec, status }) => {
    spec.networks?.push({ name: plugged, multus: { networkName: 'sriov' } });
    spec.domain.devices.interfaces?.push({ name: plugged, sriov: {} });
    status.interfaces = [...(status.interfaces ?? []), { name: plugged, infoSource: 'multus-status' }];
  });
  const source = () => running.vmi(vm)?.status.interfaces?.find(({ name }) => name === plugged)?.infoSource;
  await running.waitForVmi(vm, 'the device in the domain', () => source() === 'domain, multus-status');

  // Each time the limit first, then the launcher; nothing in between tells the agent to try again but its clock.
  const line = /"msg":"(QEMU may lock any memory|failed to hotplug SR-IOV host devices)/;
  const steps = running
    .log('agent')
    .split('\n')
    .flatMap((text) => {
      const [, step] = line.exec(text) ?? [];
      return step ?? [];
    });
  const raised = 'QEMU may lock any memory';
  const failed = 'failed to hotplug SR-IOV host devices';
  if (mayLift) {
    // Raised once, it is found raised.
    expect(steps).toEqual([raised, failed, failed]);
    expect(memlockOf(qemu)).toBe('unlimited unlimited');
  } else {
    expect(steps).toEqual([raised, failed, raised, failed, raised]);
    const unlimited = 'ffffffffffffffff';
    expect(limits?.lines()).toEqual(Array.from({ length: 3 }, () => `${qemu} ${unlimited} ${unlimited}`));
  }
  const asked = () => vm.launcher.commands().filter((name) => name === 'hotplugHostDevices').length;
  expect(asked()).toBe(3);

  // A device that does not come is no fault of the VM's.
  const { phase, conditions } = running.vmi(vm)?.status ?? {};
  expect(phase).toBe('Running');
  expect(conditions?.filter(({ type }) => type === 'Synchronized')).toEqual([]);

  // It is there: no pass asks for it any more.
  const syncs = () => vm.launcher.commands().filter((name) => name === 'syncVirtualMachine').length;
  const before = syncs();
  change(({ metadata }) => {
    metadata.annotations = { ...metadata.annotations, another: 'pass' };
  });
  await waitFor('another pass', 20_000, () => syncs() > before);
  expect(asked()).toBe(3);
  running.deleteVmi(vm);
  await running.finishDeletion(vm);
}, 120_000);
