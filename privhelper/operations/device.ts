/** DeviceService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import type { ClaimResponseSchema } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { ClaimOutcome as NativeOutcome } from '../../native/binding.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { DeviceClaim } from '../policy/devices.js';

const outcomes: Readonly<Record<NativeOutcome, ClaimOutcome>> = {
  claimed: ClaimOutcome.CLAIMED,
  'already-owned': ClaimOutcome.ALREADY_OWNED,
  missing: ClaimOutcome.MISSING,
};

export function claim(
  { native, pods, policy }: Helper,
  invocation: Invocation,
  request: DeviceClaim,
): Promise<MessageInitShape<typeof ClaimResponseSchema>> {
  return pods.callOnLauncher(invocation, request, async (launcher, call) => {
    const { qemuUid, qemuGid } = policy;
    const { requested, devices, blockVolumes } = request;
    const claimed = await native.claimDevices(call(), launcher, devices, blockVolumes, qemuUid, qemuGid);
    return {
      results: requested.map((device, i) => ({ device, outcome: outcome(claimed[i]) })),
      blockVolumes: blockVolumes.map((volume, i) => ({
        volume,
        outcome: outcome(claimed[devices.length + i]),
      })),
    };
  });
}

function outcome(native: NativeOutcome | undefined): ClaimOutcome {
  return native === undefined ? ClaimOutcome.UNSPECIFIED : outcomes[native];
}
