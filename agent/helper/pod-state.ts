import { type PodState as PodStateMessage, SocketState } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';

/** What the helper sees of a launcher pod on the host. */
export interface PodState {
  readonly podUid: string;
  /** The sockets volume exists and no component of its path is a link. */
  readonly directory: boolean;
  /** `refused`: something is there that is not a plain socket, or it could not be examined. */
  readonly launcherSocket: 'absent' | 'present' | 'refused';
  readonly unresponsiveMarker: boolean;
  /** Volume indexes with a container-disk socket, ascending. */
  readonly containerDisks: readonly number[];
  readonly kernelBoot: boolean;
  readonly containerDiskBinary: boolean;
  readonly launcherExited: boolean;
}

export function toPodState(message: PodStateMessage): PodState {
  return {
    podUid: message.podUid,
    directory: message.directory,
    launcherSocket: socketState(message.launcherSocket),
    unresponsiveMarker: message.unresponsiveMarker,
    containerDisks: message.containerDisks,
    kernelBoot: message.kernelBoot,
    containerDiskBinary: message.containerDiskBinary,
    launcherExited: message.launcherExited,
  };
}

function socketState(state: SocketState): PodState['launcherSocket'] {
  if (state === SocketState.PRESENT) return 'present';
  return state === SocketState.ABSENT ? 'absent' : 'refused';
}

export function samePodState(a: PodState, b: PodState): boolean {
  return (
    a.podUid === b.podUid &&
    a.directory === b.directory &&
    a.launcherSocket === b.launcherSocket &&
    a.unresponsiveMarker === b.unresponsiveMarker &&
    a.kernelBoot === b.kernelBoot &&
    a.containerDiskBinary === b.containerDiskBinary &&
    a.launcherExited === b.launcherExited &&
    a.containerDisks.length === b.containerDisks.length &&
    a.containerDisks.every((index, i) => index === b.containerDisks[i])
  );
}
