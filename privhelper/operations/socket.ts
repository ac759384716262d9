/** SocketService. The descriptors go to the agent by ticket; no byte of theirs passes through here. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type {
  CloseNotifyResponseSchema,
  ConnectResponseSchema,
  ListenNotifyResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { errnoOf } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type { NamedSocket } from '../policy/requests.js';

/** Where virt-launcher sends its events, in the pod's `public` volume. */
const notifySocket = 'domain-notify-pipe.sock';

function owner(invocation: Invocation, { podUid, vmiUid }: PodRef) {
  return { peer: invocation.peer, callId: invocation.id, podUid, vmiUid };
}

export function connect(
  { native, podsDir, pods, tickets }: Helper,
  invocation: Invocation,
  socket: NamedSocket,
): Promise<MessageInitShape<typeof ConnectResponseSchema>> {
  return pods.withLauncher(invocation, socket, async (launcher) => {
    const { podUid, volume, name } = socket;
    const fd = await native.connectSocket(invocation.call, podsDir, podUid, volume, name, launcher);
    return { ticket: tickets.issue(fd, owner(invocation, socket)) };
  });
}

export function listenNotify(
  { native, podsDir, pods, policy, tickets }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ListenNotifyResponseSchema>> {
  return pods.withLauncher(invocation, pod, async (launcher) => {
    const [uid, gid] = launcher.uid === 0 ? [0, 0] : [policy.qemuUid, policy.qemuGid];
    const { call } = invocation;
    const { fd, dev, ino } = await native.listenSocket(
      call,
      podsDir,
      pod.podUid,
      'public',
      notifySocket,
      uid,
      gid,
    );
    pods.setNotifySocket(pod.podUid, { dev, ino });
    return { ticket: tickets.issue(fd, owner(invocation, pod)) };
  });
}

export function closeNotify(
  helper: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof CloseNotifyResponseSchema>> {
  return helper.pods.withPod(pod, async () => ({
    changed: await unlinkNotify(helper, invocation, pod.podUid),
  }));
}

/** Unlinks the notify socket that the helper made; false when there is none or the pod is gone. */
export async function unlinkNotify(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  podUid: string,
): Promise<boolean> {
  const inode = pods.notifySocket(podUid);
  if (inode === undefined) return false;
  let unlinked = false;
  try {
    unlinked = await native.unlinkSocket(invocation.call, podsDir, podUid, 'public', notifySocket, inode);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
  pods.setNotifySocket(podUid, undefined);
  return unlinked;
}
