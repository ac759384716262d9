import type { PodState } from '../helper/pod-state.js';

/** Where virt-handler has kubelet's pods directory; the path is part of the ghost record's format. */
const podsDirectory = '/pods';
const socketsDirectory = 'volumes/kubernetes.io~empty-dir/sockets';

export function launcherSocketPath(podUid: string): string {
  return `${podsDirectory}/${podUid}/${socketsDirectory}/launcher-sock`;
}

/** The pod of a ghost record's socket; undefined for a path that no launcher can have. */
export function podUidOfSocket(socketFile: string): string | undefined {
  const match =
    /^\/+pods\/+([0-9A-Za-z-]{1,64})\/+volumes\/+kubernetes\.io~empty-dir\/+sockets\/+launcher-sock$/.exec(
      socketFile,
    );
  return match?.[1];
}

/** UIDs become path segments in the helper's hands; nothing else is passed on. */
export function isPodUid(uid: string): boolean {
  return /^[0-9A-Za-z-]{1,64}$/.test(uid);
}

export type SocketSearch =
  | { readonly kind: 'found'; readonly podUid: string }
  | { readonly kind: 'none' }
  | { readonly kind: 'multiple'; readonly podUids: readonly string[] };

/**
 * The pod of a VMI whose launcher socket exists on this host (KubeVirt cmd-client FindSocket).
 * `activePods`: pod UID -> node name. `nodeName` empty: pods of any node.
 * Of several, the one that the ghost record of this VMI names is taken: it is the one that was managed
 * before, while another one is the target of a migration on the same node.
 */
export function findSocket(
  activePods: Readonly<Record<string, string>>,
  nodeName: string,
  state: (podUid: string) => PodState | undefined,
  recordedPodUid: string | undefined,
): SocketSearch {
  const podUids = Object.entries(activePods)
    .filter(([uid, node]) => isPodUid(uid) && (nodeName === '' || node === nodeName))
    .map(([uid]) => uid)
    .filter((uid) => state(uid)?.launcherSocket === 'present');
  const [first] = podUids;
  if (first === undefined) return { kind: 'none' };
  if (podUids.length === 1) return { kind: 'found', podUid: first };
  const recorded = podUids.find((uid) => uid === recordedPodUid && state(uid)?.launcherExited === false);
  return recorded === undefined ? { kind: 'multiple', podUids } : { kind: 'found', podUid: recorded };
}

/** The sockets directory of any pod of the VMI exists here, whatever node it is listed for (KubeVirt FindPodDirOnHost). */
export function hasPodDirectory(
  activePods: Readonly<Record<string, string>>,
  state: (podUid: string) => PodState | undefined,
): boolean {
  return Object.keys(activePods).some((uid) => isPodUid(uid) && state(uid)?.directory === true);
}

/**
 * A launcher that was found before is gone for good (KubeVirt cmd-client IsSocketUnresponsive): its
 * directory or socket is missing, or it was marked. What cannot be examined counts as responsive.
 */
export function isSocketUnresponsive(state: PodState | undefined): boolean {
  if (state === undefined) return true;
  if (!state.directory) return state.launcherSocket !== 'refused';
  return state.unresponsiveMarker || state.launcherSocket === 'absent';
}
