/** NetworkService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type {
  ApplyResponseSchema,
  ObserveResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import { dhcpRecordFileName, dhcpRecordText } from '../network/dhcp-record.js';
import type { PodRef } from '../policy/check.js';
import type { NetworkSetup } from '../policy/network.js';

/** Readable by the launcher's user and by others, as virt-handler writes it. */
const dhcpRecordMode = 0o604;

export function observe(
  { native, pods, forbiddenNetworks }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ObserveResponseSchema>> {
  return pods.withLauncher(invocation, pod, (launcher) =>
    native.observeNetwork(invocation.call, launcher, forbiddenNetworks),
  );
}

/**
 * Records first: they are what the launcher starts from, and a set-up that fails afterwards leaves
 * files that the next attempt writes anew, or has taken files away that nobody needs any more.
 */
export function apply(
  { native, podsDir, pods, policy, forbiddenNetworks }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, attachments, detachments, records, passt }: NetworkSetup,
): Promise<MessageInitShape<typeof ApplyResponseSchema>> {
  return pods.withLauncher(invocation, { podUid, vmiUid }, async (launcher) => {
    let changed = false;
    const owner = { uid: policy.qemuUid, gid: policy.qemuGid, mode: dhcpRecordMode };
    for (const { podInterface, record } of records) {
      const name = dhcpRecordFileName(podInterface);
      const text = Buffer.from(dhcpRecordText(record));
      const written = await native.writeVolumeFile(
        invocation.call,
        podsDir,
        podUid,
        'private',
        name,
        text,
        owner,
      );
      changed ||= written;
    }
    for (const { podInterface } of detachments) {
      const name = dhcpRecordFileName(podInterface);
      const removed = await native.removeVolumeFile(invocation.call, podsDir, podUid, 'private', name);
      changed ||= removed;
    }
    const [uid, gid] = launcher.uid === 0 ? [0, 0] : [policy.qemuUid, policy.qemuGid];
    const plan = { attachments, detachments, uid, gid, ...(passt ? { passtGid: policy.qemuGid } : {}) };
    const applied = await native.applyNetwork(invocation.call, launcher, forbiddenNetworks, plan);
    pods.noteNetwork(podUid, new Date(), plan);
    return { changed: changed || applied };
  });
}
