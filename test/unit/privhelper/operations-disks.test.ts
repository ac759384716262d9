import { describe, expect, it, vi } from 'vitest';
import { ClaimOutcome } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { PlugOutcome } from '../../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { HostDiskOutcome, VolumeClaimOutcome } from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { Native } from '../../../native/binding.js';
import type { Helper } from '../../../privhelper/helper.js';
import { ownerKept } from '../../../privhelper/invocation.js';
import { plugFilesystem } from '../../../privhelper/operations/hotplug.js';
import { claimVirtiofs } from '../../../privhelper/operations/socket.js';
import { claimVolumeDirectory, ensureHostDisk } from '../../../privhelper/operations/vmi-disks.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { hostDiskSize } from '../../../privhelper/storage/host-disk-size.js';
import { fakeNative, invocation, nativeError, podA, podB, refA } from './fakes.js';

const launcher = { pidfd: 100 };

function helperWith(methods: Partial<Native>): Helper {
  const onLauncher = (_i: unknown, _r: unknown, body: (...of: unknown[]) => unknown) =>
    body(launcher, () => ({}));
  const pods = { withLauncher: onLauncher, callOnLauncher: onLauncher };
  return { native: fakeNative(methods), policy: createPolicy(), podsDir: 3, pods } as unknown as Helper;
}

const disk = {
  ...refA,
  volume: 'v',
  fileName: 'disk.img',
  capacity: 1000n,
  tolerance: 10,
  reserve: 100n,
} as const;

describe('host disks', () => {
  function setUp(state: { exists: boolean; availableBytes: bigint }, made = true) {
    const createVmiDisk = vi.fn(async () => made);
    return { helper: helperWith({ vmiDiskState: async () => state, createVmiDisk }), createVmiDisk };
  }

  it('makes what fits, of the configured user', async () => {
    const { helper, createVmiDisk } = setUp({ exists: false, availableBytes: 1100n });
    expect(await ensureHostDisk(helper, invocation(), disk)).toEqual({
      outcome: HostDiskOutcome.CREATED,
      sizeBytes: 1000n,
      availableBytes: 1000n,
    });
    expect(createVmiDisk).toHaveBeenCalledExactlyOnceWith(
      expect.anything(),
      launcher,
      'v',
      'disk.img',
      1000n,
      107,
      107,
    );
  });

  it('STO-026 leaves an image that exists or appears meanwhile as it is', async () => {
    const before = setUp({ exists: true, availableBytes: 0n });
    expect(await ensureHostDisk(before.helper, invocation(), disk)).toEqual({
      outcome: HostDiskOutcome.EXISTED,
    });
    expect(before.createVmiDisk).not.toHaveBeenCalled();
    const meanwhile = setUp({ exists: false, availableBytes: 5000n }, false);
    expect(await ensureHostDisk(meanwhile.helper, invocation(), disk)).toEqual({
      outcome: HostDiskOutcome.EXISTED,
    });
  });

  it('makes nothing without space and nothing without a size', async () => {
    const full = setUp({ exists: false, availableBytes: 999n });
    expect(await ensureHostDisk(full.helper, invocation(), disk)).toEqual({
      outcome: HostDiskOutcome.NO_SPACE,
      availableBytes: 899n,
    });
    const { helper } = setUp({ exists: false, availableBytes: 5000n });
    await expect(ensureHostDisk(helper, invocation(), { ...disk, capacity: 0n })).rejects.toMatchObject({
      field: 'capacity_bytes',
      refused: true,
    });
    expect(full.createVmiDisk).not.toHaveBeenCalled();
  });

  it('counts a reserve beyond what is free as no space at all, whatever is tolerated', () => {
    const space = { capacity: 1n << 60n, reserve: 131072n };
    expect(hostDiskSize({ ...space, free: 131071n, tolerance: 100 })).toEqual({
      size: undefined,
      available: 0n,
    });
    expect(hostDiskSize({ ...space, free: 131072n, tolerance: 100 }).size).toBeUndefined();
    expect(hostDiskSize({ ...space, free: 131073n, tolerance: 100 }).size).toBe(1n);
  });
});

it.each([
  ['claimed', VolumeClaimOutcome.CLAIMED],
  ['already-owned', VolumeClaimOutcome.ALREADY_OWNED],
  ['foreign', VolumeClaimOutcome.LEFT_ALONE],
  ['kept', VolumeClaimOutcome.OWNER_KEPT],
] as const)('answers that the directory of a volume is %s', async (native, outcome) => {
  const claimVmiDisks = vi.fn(async () => native);
  const helper = helperWith({ claimVmiDisks });
  const call = invocation();
  expect(await claimVolumeDirectory(helper, call, { ...refA, volume: 'v' })).toEqual({ outcome });
  expect(call.remark).toBe(native === 'kept' ? ownerKept : undefined);
  expect(claimVmiDisks).toHaveBeenCalledWith(expect.anything(), 3, podA, launcher, 'v', 107, 107);
});

it.each([
  ['kept', 'missing', PlugOutcome.UNCHANGED, ownerKept, []],
  ['unchanged', 'missing', PlugOutcome.UNCHANGED, undefined, []],
  ['absent', 'plugged-kept', PlugOutcome.CHANGED, ownerKept, ['v.img']],
  ['absent', 'plugged', PlugOutcome.CHANGED, undefined, ['v.img']],
  ['absent', 'missing', PlugOutcome.MISSING, undefined, []],
] as const)('a plugged volume may keep its owner: %s, %s', async (owned, plugged, outcome, remark, names) => {
  const helper = helperWith({ ownPlugged: async () => owned, plugFilesystem: async () => plugged });
  const recorded = new Set<string>();
  Object.assign(helper.pods, { withAttachment: (_plug: unknown, operation: () => unknown) => operation() });
  const hotplugRecords = {
    entries: () => [],
    add: (_pod: unknown, name: string) => recorded.add(name),
    remove: (_pod: unknown, name: string) => recorded.delete(name),
  };
  const call = invocation();
  const plug = { ...refA, attachmentPodUid: podB, volume: 'v', kind: 'disk' } as const;
  expect(await plugFilesystem(Object.assign(helper, { hotplugRecords }) as never, call, plug)).toEqual({
    outcome,
  });
  expect([call.remark, [...recorded]]).toEqual([remark, names]);
});

it('tells a virtiofs socket that is not there yet from one that cannot be had', async () => {
  const entry = { volume: 'virtiofs-containers', path: ['fs.sock'] } as const;
  const claimSocket = vi.fn(async () => true);
  const helper = helperWith({ claimSocket });
  const claim = () => claimVirtiofs(helper, invocation(), { ...refA, entry });
  expect(await claim()).toEqual({ outcome: ClaimOutcome.CLAIMED });
  claimSocket.mockResolvedValueOnce(false);
  expect(await claim()).toEqual({ outcome: ClaimOutcome.ALREADY_OWNED });
  claimSocket.mockRejectedValueOnce(nativeError('ENOENT'));
  expect(await claim()).toEqual({ outcome: ClaimOutcome.MISSING });
  claimSocket.mockRejectedValueOnce(nativeError('ENOTSOCK'));
  await expect(claim()).rejects.toThrow('ENOTSOCK');
});
