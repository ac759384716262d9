/** PodService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type GetSelinuxContextResponseSchema,
  type IdentifyResponseSchema,
  type MarkUnresponsiveResponseSchema,
  type PodStateSchema,
  type ReleaseResponseSchema,
  SocketState,
  type StatResponseSchema,
  type WatchResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { EntryState } from '../../native/binding.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import { parseContext } from '../selinux.js';
import type { ObservedPod } from '../watch/subscription.js';
import { unlinkListeners } from './socket.js';

const socketStates: Readonly<Record<EntryState, SocketState>> = {
  absent: SocketState.ABSENT,
  present: SocketState.PRESENT,
  refused: SocketState.REFUSED,
};

export function podStateMessage(pod: ObservedPod): MessageInitShape<typeof PodStateSchema> {
  return { ...pod, launcherSocket: socketStates[pod.launcherSocket] };
}

export async function* watch(
  helper: Helper,
  invocation: Invocation,
): AsyncGenerator<MessageInitShape<typeof WatchResponseSchema>> {
  for await (const event of helper.watcher.watch(invocation.signal)) {
    switch (event.kind) {
      case 'pod':
        yield { event: { case: 'pod', value: podStateMessage(event.pod) } };
        break;
      case 'gone':
        yield { event: { case: 'gonePodUid', value: event.podUid } };
        break;
      case 'synced':
        yield { event: { case: 'synced', value: {} } };
        break;
    }
  }
}

export async function stat(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  { podUid }: { readonly podUid: string },
): Promise<MessageInitShape<typeof StatResponseSchema>> {
  const state = await native.podState(invocation.call, podsDir, podUid);
  return { pod: podStateMessage({ ...state, podUid, launcherExited: pods.hasExited(podUid) }) };
}

export function identify(
  { pods }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof IdentifyResponseSchema>> {
  return pods.withLauncher(invocation, pod, async ({ uid, gid }, pinnedNow) => ({
    changed: pinnedNow,
    uid,
    gid,
  }));
}

export function getSelinuxContext(
  { native, pods }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof GetSelinuxContextResponseSchema>> {
  return pods.withLauncher(invocation, pod, async (launcher) => ({
    context: parseContext(await native.launcherRootLabel(invocation.call, launcher)),
  }));
}

/** The launcher may be dead or hung, so it is not pinned for this. */
export function markUnresponsive(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof MarkUnresponsiveResponseSchema>> {
  return pods.withPod(pod, async () => ({
    changed: await native.markUnresponsive(invocation.call, podsDir, pod.podUid),
  }));
}

export function release(
  helper: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ReleaseResponseSchema>> {
  return helper.pods.withPod(pod, async () => {
    const unlinked = await unlinkListeners(helper, invocation, pod.podUid);
    const unclaimed = helper.tickets.dropPod(pod.podUid);
    const held = helper.pods.release(pod.podUid);
    return { changed: unlinked || unclaimed || held };
  });
}
