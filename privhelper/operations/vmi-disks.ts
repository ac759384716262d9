/** StorageService, as far as it is about volumes that hold disk images. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type ClaimVolumeDirectoryResponseSchema,
  type EnsureHostDiskResponseSchema,
  HostDiskOutcome,
  VolumeClaimOutcome,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { malformed } from '../failure.js';
import type { Helper } from '../helper.js';
import { type Invocation, ownerKept } from '../invocation.js';
import type { HostDisk, Volume } from '../policy/vmi-disks.js';
import { hostDiskSize } from '../storage/host-disk-size.js';

export function ensureHostDisk(
  { native, pods, policy }: Helper,
  invocation: Invocation,
  disk: HostDisk,
): Promise<MessageInitShape<typeof EnsureHostDiskResponseSchema>> {
  return pods.withLauncher(invocation, disk, async (launcher) => {
    const { volume, fileName } = disk;
    const { qemuUid, qemuGid } = policy;
    const state = await native.vmiDiskState(invocation.call, launcher, volume, fileName);
    if (state.exists) return { outcome: HostDiskOutcome.EXISTED };
    if (disk.capacity === 0n) throw malformed('capacity_bytes', 'missing');
    const { size, available } = hostDiskSize({ ...disk, free: state.availableBytes });
    if (size === undefined) return { outcome: HostDiskOutcome.NO_SPACE, availableBytes: available };
    const { call } = invocation;
    const made = await native.createVmiDisk(call, launcher, volume, fileName, size, qemuUid, qemuGid);
    // Something else made it meanwhile.
    if (!made) return { outcome: HostDiskOutcome.EXISTED };
    return { outcome: HostDiskOutcome.CREATED, sizeBytes: size, availableBytes: available };
  });
}

const outcomes = {
  claimed: VolumeClaimOutcome.CLAIMED,
  'already-owned': VolumeClaimOutcome.ALREADY_OWNED,
  foreign: VolumeClaimOutcome.LEFT_ALONE,
  kept: VolumeClaimOutcome.OWNER_KEPT,
} as const;

export function claimVolumeDirectory(
  { native, podsDir, pods, policy }: Helper,
  invocation: Invocation,
  request: Volume,
): Promise<MessageInitShape<typeof ClaimVolumeDirectoryResponseSchema>> {
  return pods.withLauncher(invocation, request, async (launcher) => {
    const { podUid, volume } = request;
    const { qemuUid, qemuGid } = policy;
    const { call } = invocation;
    const outcome = await native.claimVmiDisks(call, podsDir, podUid, launcher, volume, qemuUid, qemuGid);
    if (outcome === 'kept') invocation.remark = ownerKept;
    return { outcome: outcomes[outcome] };
  });
}
