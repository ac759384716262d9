/** DeviceService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import { ClaimOutcome, type ClaimResponseSchema } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { ClaimOutcome as NativeOutcome } from '../../native/binding.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { DeviceClaim } from '../policy/requests.js';

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
  return pods.withLauncher(invocation, request, async (launcher) => {
    const { qemuUid, qemuGid } = policy;
    const { call } = invocation;
    const results = await native.claimDevices(call, launcher, request.devices, qemuUid, qemuGid);
    return {
      results: request.requested.map((device, i) => {
        const result = results[i];
        return { device, outcome: result === undefined ? ClaimOutcome.UNSPECIFIED : outcomes[result] };
      }),
    };
  });
}
