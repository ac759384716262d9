/** Directories, sockets and files of pods, and the processes of launchers. */
import type { Call, Launcher } from './call.js';

export type EntryState = 'absent' | 'present' | 'refused';

export interface PodState {
  readonly directory: boolean;
  readonly launcherSocket: EntryState;
  readonly unresponsiveMarker: boolean;
  /** Ascending, at most 1000. */
  readonly containerDisks: number[];
  readonly kernelBoot: boolean;
  readonly containerDiskBinary: boolean;
}

/** emptyDir volumes of a pod that calls may name. */
export type PodVolume =
  | 'sockets'
  | 'public'
  | 'private'
  | 'container-disks'
  | 'libvirt-runtime'
  | 'ephemeral-disks'
  | 'hotplug-disks'
  | 'virtiofs-containers';

/** An entry in a volume or in directories below it. */
export interface VolumeEntry {
  readonly volume: PodVolume;
  /** 1 to 4 names of A-Z a-z 0-9 . _ -, none starting with a dot. */
  readonly path: readonly string[];
}

export interface ListeningSocket {
  readonly fd: number;
  readonly dev: bigint;
  readonly ino: bigint;
}

export type WriteOutcome = 'equal' | 'created' | 'replaced';

/** Each runs whole on one privileged thread. */
export interface PodCalls {
  /** Names of the directory `components` below `dirfd`, nothing followed, at most `limit` (else E2BIG). */
  listDirectory(call: Call, dirfd: number, components: readonly string[], limit: number): Promise<string[]>;
  /** Adds an inotify watch on a directory below `dirfd`, nothing followed. Resolves to the watch descriptor. */
  watchDirectory(
    call: Call,
    inotify: number,
    dirfd: number,
    components: readonly string[],
    mask: number,
  ): Promise<number>;
  podState(call: Call, podsDir: number, podUid: string): Promise<PodState>;
  /** Connects to the pod's launcher-sock, pins the listener and checks that its cgroup has the pod UID. */
  pinLauncher(call: Call, podsDir: number, podUid: string): Promise<Launcher>;
  /** Alive and still in the pod's cgroup; refuses otherwise. */
  checkLauncher(call: Call, launcher: Launcher, podUid: string): Promise<void>;
  /** Value of `security.selinux` of the launcher's root directory, at most 4096 bytes; empty where it has none. */
  launcherRootLabel(call: Call, launcher: Launcher): Promise<Uint8Array>;
  /**
   * Connects to a socket of the pod. The listener must be the pinned process; for null, any process of the pod,
   * which may have exited and left others listening. No link and no mount is passed below the volume. Non-blocking stream socket.
   */
  connectSocket(
    call: Call,
    podsDir: number,
    podUid: string,
    entry: VolumeEntry,
    launcher: Launcher | null,
  ): Promise<number>;
  /** The same for `hotplug-disks/hp.sock`; a pod with a volume `sockets` is refused. */
  connectAttachment(call: Call, podsDir: number, podUid: string): Promise<number>;
  /**
   * Replaces a stale socket (never a link or another type) and listens, mode 0755, owner uid:gid. Makes a missing
   * directory right below the volume, mode 0755, same owner.
   */
  listenSocket(
    call: Call,
    podsDir: number,
    podUid: string,
    entry: VolumeEntry,
    uid: number,
    gid: number,
  ): Promise<ListeningSocket>;
  /** Gives the socket at the entry to uid:gid. False when it was theirs already. */
  claimSocket(
    call: Call,
    podsDir: number,
    podUid: string,
    entry: VolumeEntry,
    uid: number,
    gid: number,
  ): Promise<boolean>;
  /** Unlinks the entry if it is still that inode. False when it was not there, another one or not to be reached. */
  unlinkSocket(
    call: Call,
    podsDir: number,
    podUid: string,
    entry: VolumeEntry,
    inode: { readonly dev: bigint; readonly ino: bigint },
  ): Promise<boolean>;
  /** Creates the marker unless it exists or launcher-sock accepts a connection (then refused). */
  markUnresponsive(call: Call, podsDir: number, podUid: string): Promise<boolean>;
  /** Writes a file atomically into a pod's volume (temporary file, rename), unless it is equal already. */
  writeVolumeFile(
    call: Call,
    podsDir: number,
    podUid: string,
    volume: PodVolume,
    name: string,
    content: Uint8Array,
    owner: { readonly uid: number; readonly gid: number; readonly mode: number },
  ): Promise<WriteOutcome>;
  /** Unlinks an entry of a pod's volume that is no directory; no link is followed. False when there is none. */
  removeVolumeFile(
    call: Call,
    podsDir: number,
    podUid: string,
    volume: PodVolume,
    name: string,
  ): Promise<boolean>;
  /** Bytes of a regular file; no link and no mount is passed below the volume. */
  volumeFileSize(call: Call, podsDir: number, podUid: string, entry: VolumeEntry): Promise<bigint>;
}
