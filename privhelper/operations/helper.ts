/** HelperService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type {
  DescribeResponseSchema,
  HealthResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import type { Helper } from '../helper.js';

export async function health(helper: Helper): Promise<MessageInitShape<typeof HealthResponseSchema>> {
  return {
    instanceId: helper.instance.id,
    version: helper.instance.version,
    startedAtMs: BigInt(helper.instance.startedAt.getTime()),
    pinnedPods: helper.pods.pinned,
  };
}

export async function describe(helper: Helper): Promise<MessageInitShape<typeof DescribeResponseSchema>> {
  return { methods: [...helper.instance.methods] };
}
