/** HelperService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type DescribeResponseSchema,
  type HealthResponseSchema,
  SelinuxMode,
} from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import type { Helper } from '../helper.js';
import type { SelinuxMode as Mode } from '../selinux.js';

/** The answer's name of each mode. */
export const selinuxModes: Readonly<Record<Mode, SelinuxMode>> = {
  disabled: SelinuxMode.DISABLED,
  permissive: SelinuxMode.PERMISSIVE,
  enforcing: SelinuxMode.ENFORCING,
};

export async function health(helper: Helper): Promise<MessageInitShape<typeof HealthResponseSchema>> {
  return {
    instanceId: helper.instance.id,
    version: helper.instance.version,
    startedAtMs: BigInt(helper.instance.startedAt.getTime()),
    selinux: selinuxModes[helper.selinux.mode()],
  };
}

export async function describe(helper: Helper): Promise<MessageInitShape<typeof DescribeResponseSchema>> {
  return { methods: [...helper.instance.methods] };
}
