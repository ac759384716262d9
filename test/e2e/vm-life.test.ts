import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { guestLines, guestMark } from '../harness/guest/disk.js';
import { startPeer } from '../harness/guest/peer.js';
import { waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

let system: System;

beforeEach(async () => {
  system = await System.create();
});

afterEach(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

/** The image that was made in the empty claim is the guest's to read and write. */
function expectClaimInUse(vm: Vm): void {
  const directory = `/proc/${vm.launcher.pid}/root/run/kubevirt-private/vmi-disks/data`;
  const image = statSync(join(directory, 'disk.img'));
  expect([image.size, image.uid, image.gid]).toEqual([4 * 1024 * 1024, 107, 107]);
  expect(statSync(directory).uid).toBe(107);
  expect(readFileSync(join(directory, 'disk.img')).toString('latin1', 0, guestMark.length)).toBe(guestMark);
  expect(vm.launcher.console()).toContain(guestLines.secondDisk);
}

describe('one VM from Scheduled to Running and back to gone', () => {
  it.each(['masquerade', 'bridge'] as const)(
    'STO-025 runs, answers over its network and ends: %s',
    async (binding) => {
      await system.startProduct();
      const peer = await startPeer(system.node, { '/boot.ipxe': '#!ipxe\n:idle\nsleep 1\ngoto idle\n' });
      try {
        const vm = await system.createVm({
          name: 'vm',
          binding,
          bootUrl: `${peer.url}/boot.ipxe`,
          ...(binding === 'masquerade' ? { claim: '4Mi' } : {}),
        });
        const volumes = structuredClone(system.vmi(vm)?.spec.volumes);
        await system.waitForPhase(vm, 'Running');

        // The guest booted from the disk that was mounted for it and reached the peer as its pod.
        const request = await peer.request('/boot.ipxe', 60_000);
        expect(request.from).toContain(vm.pod.podIP);
        expect(vm.launcher.console()).toContain(guestLines.script);
        expect(await waitFor('the guest to answer', 10_000, () => system.node.ping(vm.pod.podIP))).toBe(true);

        if (binding === 'masquerade') expectClaimInUse(vm);
        // That a claim is a host disk for the launcher never reaches the API.
        expect(system.vmi(vm)?.spec.volumes).toEqual(volumes);

        system.deleteVmi(vm);
        await system.finishDeletion(vm);
        expect(system.vmi(vm)).toBeUndefined();
      } finally {
        await peer.stop();
      }
      // Helper and agent go on; of the pod nothing is left.
      expect(await system.node.leftovers()).toEqual([]);
    },
    180_000,
  );
});
