/** SocketService. The descriptors go to the agent by ticket; no byte of theirs passes through here. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import type {
  ClaimVirtiofsResponseSchema,
  CloseListenerResponseSchema,
  ConnectAttachmentResponseSchema,
  ConnectResponseSchema,
  ListenResponseSchema,
  ListenVsockResponseSchema,
  PodListener,
} from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { errnoOf, toFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { AttachmentRef, ListenerRef, SocketRef, VirtiofsRef } from '../policy/sockets.js';

export function connect(
  { native, podsDir, pods, tickets }: Helper,
  invocation: Invocation,
  socket: SocketRef,
): Promise<MessageInitShape<typeof ConnectResponseSchema>> {
  return pods.callOnLauncher(invocation, socket, async (launcher, call) => {
    const { podUid, entry, listener } = socket;
    const peer = listener === 'launcher' ? launcher : null;
    const fd = await native.connectSocket(call(), podsDir, podUid, entry, peer);
    return { ticket: tickets.issue(fd, invocation.ticketOwner(socket)) };
  });
}

export function connectAttachment(
  { native, podsDir, pods, tickets }: Helper,
  invocation: Invocation,
  attachment: AttachmentRef,
): Promise<MessageInitShape<typeof ConnectAttachmentResponseSchema>> {
  return pods.withLauncher(invocation, attachment, () =>
    pods.withAttachment(attachment, async () => {
      const fd = await native.connectAttachment(invocation.call, podsDir, attachment.attachmentPodUid);
      return { ticket: tickets.issue(fd, invocation.ticketOwner(attachment)) };
    }),
  );
}

export function listen(
  { native, podsDir, pods, policy, tickets }: Helper,
  invocation: Invocation,
  request: ListenerRef,
): Promise<MessageInitShape<typeof ListenResponseSchema>> {
  return pods.callOnLauncher(invocation, request, async (launcher, call) => {
    const { podUid, listener, entry, owner } = request;
    const asRoot = owner === 'launcher' && launcher.uid === 0;
    const [uid, gid] = asRoot ? [0, 0] : [policy.qemuUid, policy.qemuGid];
    const { fd, dev, ino } = await native.listenSocket(call(), podsDir, podUid, entry, uid, gid);
    pods.noteListener(podUid, listener, { entry, dev, ino });
    return { ticket: tickets.issue(fd, invocation.ticketOwner(request)) };
  });
}

export function claimVirtiofs(
  { native, podsDir, pods, policy }: Helper,
  invocation: Invocation,
  request: VirtiofsRef,
): Promise<MessageInitShape<typeof ClaimVirtiofsResponseSchema>> {
  return pods.callOnLauncher(invocation, request, async (_, call) => {
    const { podUid, entry } = request;
    const { qemuUid, qemuGid } = policy;
    try {
      const claimed = await native.claimSocket(call(), podsDir, podUid, entry, qemuUid, qemuGid);
      return { outcome: claimed ? ClaimOutcome.CLAIMED : ClaimOutcome.ALREADY_OWNED };
    } catch (error) {
      // The container has not come that far.
      if (errnoOf(error) !== 'ENOENT') throw error;
      return { outcome: ClaimOutcome.MISSING };
    }
  });
}

export function closeListener(
  helper: Helper,
  invocation: Invocation,
  request: ListenerRef,
): Promise<MessageInitShape<typeof CloseListenerResponseSchema>> {
  return helper.pods.withPod(request, async () => ({
    changed: await unlinkListener(helper, invocation, request.podUid, request.listener),
  }));
}

/** The socket is the agent's alone: what is not claimed in time is closed, and the rest goes with the agent. */
export async function listenVsock(
  { native, tickets }: Helper,
  invocation: Invocation,
): Promise<MessageInitShape<typeof ListenVsockResponseSchema>> {
  const fd = await native.listenVsock(invocation.call);
  return { ticket: tickets.issue(fd, invocation.ticketOwner({})) };
}

/**
 * Unlinks all sockets that the helper made in the pod. True when one was there. What a pod puts in the way does
 * not keep it from being released: behind it there is nothing of the helper's.
 */
export async function unlinkListeners(
  helper: Helper,
  invocation: Invocation,
  podUid: string,
): Promise<boolean> {
  let unlinked = false;
  for (const listener of helper.pods.listeners(podUid)) {
    try {
      unlinked = (await unlinkListener(helper, invocation, podUid, listener)) || unlinked;
    } catch (error) {
      if (!toFailure(error).refused) throw error;
    }
  }
  return unlinked;
}

/** False when the helper made none or the pod is gone. */
async function unlinkListener(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  podUid: string,
  listener: PodListener,
): Promise<boolean> {
  const made = pods.listener(podUid, listener);
  if (made === undefined) return false;
  let unlinked = false;
  try {
    unlinked = await native.unlinkSocket(invocation.call, podsDir, podUid, made.entry, made);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
  pods.forgetListener(podUid, listener);
  return unlinked;
}
