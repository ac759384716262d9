import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { guestLines } from '../harness/guest/disk.js';
import { startPeer } from '../harness/guest/peer.js';
import { waitFor } from '../harness/pods/run.js';
import { System } from '../harness/system/system.js';

let system: System;

beforeEach(async () => {
  system = await System.create();
});

afterEach(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

describe('one VM from Scheduled to Running and back to gone', () => {
  it.each(['masquerade', 'bridge'] as const)(
    'runs, answers over its network and ends: %s',
    async (binding) => {
      await system.startProduct();
      const peer = await startPeer(system.node, { '/boot.ipxe': '#!ipxe\n:idle\nsleep 1\ngoto idle\n' });
      try {
        const vm = await system.createVm({ name: 'vm', binding, bootUrl: `${peer.url}/boot.ipxe` });
        await system.waitForPhase(vm, 'Running');

        // The guest booted from the disk that was mounted for it and reached the peer as its pod.
        const request = await peer.request('/boot.ipxe', 60_000);
        expect(request.from).toContain(vm.pod.podIP);
        expect(vm.launcher.console()).toContain(guestLines.script);
        expect(await waitFor('the guest to answer', 10_000, () => system.node.ping(vm.pod.podIP))).toBe(true);

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
