import { describe, expect, it } from 'vitest';
import type { Process } from '../../../native/binding.js';
import { dispensableCaps, sysResource, withheldCaps } from '../../../privhelper/declarations.js';
import { parseCgroup } from '../../../privhelper/inspect/cgroup.js';
import { anyVcpuOf, findPit, innerPid, pitName } from '../../../privhelper/pods/processes.js';

const process = (pid: number, startTicks: bigint, more: Partial<Process> = {}): Process => ({
  ...{ pid, ppid: 2, startTicks, kernelThread: true, comm: 'kvm-pit/85' },
  ...more,
});

describe('STO-031 the timer thread of a VM', () => {
  const qemu = process(500, 1000n, { ppid: 400, kernelThread: false, comm: 'qemu-kvm' });

  it.each([
    ['NSpid:\t500\t85\n', 85],
    ['Name:\tqemu\nNSpid:\t500\t90\t85\nNSsid:\t1\n', 85],
    ['NSpid:\t500\n', undefined],
    ['Name:\tNSpid:\t1\t2\n', undefined],
    ['', undefined],
  ])('is called after the number in %j', (status, number) => {
    expect(innerPid(status)).toBe(number);
    if (number !== undefined) expect(pitName(number)).toBe('kvm-pit/85');
  });

  it('is the first one that is not older than QEMU', () => {
    const threads = [process(90, 5000n), process(70, 999n), process(80, 1001n), process(60, 1001n)];
    expect(findPit(threads, qemu)?.pid).toBe(60);
    expect(findPit([process(70, 999n)], qemu)).toBeUndefined();
  });
});

it.each([
  ['CPU 12/KVM\n', '12'],
  ['CPU 3/MSHV\n', '3'],
  ['CPU 3/MSHV', undefined],
  ['CPU 3/TCG\n', undefined],
  ['CPU /MSHV\n', undefined],
])('STO-031 a real-time thread called %j is that of vCPU %s', (comm, vcpu) => {
  expect(anyVcpuOf(comm)).toBe(vcpu);
});

describe('the cgroup of a container', () => {
  it('is shown without the child for the threads beside vCPUs', () => {
    const pod = '/kubepods/pod0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11/compute';
    expect(parseCgroup(`3:cpuset:${pod}/housekeeping\n0::${pod}\n0::${pod}/housekeeping/more\n`)).toEqual([
      { controllers: 'cpuset', path: pod },
      { controllers: '', path: pod },
      { controllers: '', path: `${pod}/housekeeping/more` },
    ]);
  });
});

describe('capabilities that a node does without', () => {
  const setUid = dispensableCaps & ~sysResource;

  it.each([
    ['all, on cgroup v1', sysResource, false, 0n],
    ['all, on cgroup v2', sysResource, true, setUid],
    ['none for limits, on cgroup v1', 0n, false, sysResource],
    ['none for limits, on cgroup v2', 0n, true, sysResource | setUid],
  ])('are few: given %s', (_what, permitted, cgroupsAreUnified, withheld) => {
    expect(withheldCaps({ permitted, cgroupsAreUnified })).toBe(withheld);
  });
});
