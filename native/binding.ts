/**
 * The native addon as TypeScript sees it. Everything that needs a kernel interface which Node does not
 * offer is here and nothing else; decisions are not.
 *
 * Conventions
 * - A descriptor is a plain number. Whoever receives one owns it and closes it with {@link Native.close}.
 * - `caps` is a bit mask of kernel capability numbers. The privileged thread raises exactly these for
 *   the call and lowers them before the promise settles.
 * - Every failure is a {@link NativeError}. After a failure nothing differs from before the call unless
 *   `unchanged` is false.
 * - `deadlineMs` bounds the call; exceeding it gives ETIMEDOUT.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A failed system call or check. */
export interface NativeError extends Error {
  /** Symbolic errno, for instance `EACCES`; `EPERM` for a failed identity check. */
  readonly code: string;
  readonly errno: number;
  /** What was attempted, for instance `openat2 launcher-sock`. */
  readonly operation: string;
  /** True when an identity or type check refused, not the kernel. */
  readonly refused: boolean;
  /** False when something in the pod may differ from before the call. */
  readonly unchanged: boolean;
}

/** Options common to all privileged calls. */
export interface Call {
  readonly caps: bigint;
  readonly deadlineMs: number;
}

/** Peer of an accepted connection (SO_PEERCRED). */
export interface Peer {
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

/** A launcher process and its namespaces, taken together once. Descriptors belong to the caller. */
export interface Launcher {
  readonly pidfd: number;
  /** Mount namespace. */
  readonly mntns: number;
  /** Network namespace. */
  readonly netns: number;
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
  /** Inode of the pidfd (pidfs, Linux 6.9): equal for equal processes, never reused; 0n where unknown. */
  readonly pidfdInode: bigint;
}

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

export interface LinkState {
  readonly index: number;
  readonly name: string;
  readonly kind: string;
  readonly operstate: string;
  readonly up: boolean;
  readonly mac: string;
  readonly mtu: number;
  readonly controller: number;
  readonly addresses: { readonly ip: string; readonly prefixLength: number }[];
  readonly portLearning?: boolean;
  readonly routeLocalnet: boolean;
}

export interface RouteState {
  readonly destination: string;
  readonly gateway: string;
  readonly linkIndex: number;
  readonly metric: number;
}

export interface NetworkState {
  readonly links: LinkState[];
  readonly routes: RouteState[];
  readonly sysctls: {
    readonly ipv4ArpIgnore: number;
    readonly ipv4Forwarding: boolean;
    readonly ipv6Forwarding: boolean;
    readonly ipv4PingGroupStart: number;
    readonly ipv4PingGroupEnd: number;
    readonly ipv4UnprivilegedPortStart: number;
  };
}

export interface ForwardedPort {
  readonly protocol: 'tcp' | 'udp' | 'sctp';
  readonly port: number;
  /** 0 for a single port. */
  readonly endPort: number;
}

/** Desired set-up of one pod link. Link names other than `podInterface` are derived by the addon. */
export interface AttachmentPlan {
  readonly podInterface: string;
  /** tap0 when true, else `tap` + podInterface without its first three characters. */
  readonly primary: boolean;
  /** 0..99 */
  readonly index: number;
  /** 0 or 1: single queue. */
  readonly queues: number;
  readonly binding:
    | { readonly kind: 'bridge' }
    /** A bridge without an address of its own. */
    | { readonly kind: 'managed-tap' }
    | {
        readonly kind: 'masquerade';
        /** Network address of the guest's IPv4 network and its prefix length. */
        readonly ipv4: { readonly network: string; readonly prefixLength: number };
        readonly ipv6: { readonly network: string; readonly prefixLength: number };
        readonly ports: readonly ForwardedPort[];
        readonly istio: boolean;
        readonly migrationOverTcp: boolean;
      };
}

export interface DetachmentPlan {
  readonly podInterface: string;
  readonly primary: boolean;
}

export interface NetworkPlan {
  readonly attachments: readonly AttachmentPlan[];
  readonly detachments: readonly DetachmentPlan[];
  /** Owner and group of taps. */
  readonly uid: number;
  readonly gid: number;
  /** Where passt connects the guest: the group that it runs as. */
  readonly passtGid?: number;
}

/** dev:inode of a network namespace. */
export interface NamespaceId {
  readonly dev: bigint;
  readonly ino: bigint;
}

export type ClaimableDevice = 'kvm' | 'mshv' | 'tun' | 'vhost-net' | 'vhost-vsock' | 'sev' | 'vfio';
export type WriteOutcome = 'equal' | 'created' | 'replaced';
export type ClaimOutcome = 'claimed' | 'already-owned' | 'missing';
/** `disk`: `<volume>.img` shows disk.img of the volume; `directory`: `<volume>` shows the volume itself. */
export type PlugKind = 'disk' | 'directory';
export type FilesystemPlugOutcome = 'plugged' | 'not-ready' | 'missing';
export interface PlugOwner {
  readonly uid: number;
  readonly gid: number;
}
export interface BlockDevice {
  readonly major: number;
  readonly minor: number;
  /** Permission bits. */
  readonly mode: number;
}
/** An entry of hotplug-disks: `<volume>.img` or `<volume>`. */
export interface PluggedEntry {
  readonly name: string;
  /** Something is mounted on it. */
  readonly mounted: boolean;
  readonly block: boolean;
}
export type ContainerDiskState = 'absent' | 'not-listening' | 'ready';

/**
 * A claimable device as the launcher's /dev shows it. `other`: not the character device of the expected
 * numbers, or behind a link; `host`: the node of the host's own devtmpfs.
 */
export interface ObservedDevice {
  readonly device: ClaimableDevice;
  readonly state: 'missing' | 'present' | 'other' | 'host';
  readonly uid: number;
  readonly gid: number;
  /** Permission bits. */
  readonly mode: number;
}

/** A device node in the launcher's /dev. */
export interface DeviceNode {
  /** Below /dev. */
  readonly path: string;
  readonly type: 'b' | 'c';
  readonly major: number;
  readonly minor: number;
}

/** The cgroup hierarchy that decides about devices: its root directory. */
export interface DeviceHierarchy {
  readonly root: number;
  readonly version: 1 | 2;
}

/** A device program of a cgroup. */
export interface AttachedProgram {
  readonly id: number;
  /** struct bpf_insn; empty where the kernel hides them. */
  readonly instructions: Uint8Array;
}

/** A process as it was found in /proc. */
export interface Process {
  readonly pid: number;
  readonly ppid: number;
  /** Clock ticks after boot. */
  readonly startTicks: bigint;
  readonly kernelThread: boolean;
  /** What it calls itself, which proves nothing. */
  readonly comm: string;
}

export interface Thread {
  readonly tid: number;
  /** With the newline that the kernel puts behind it. */
  readonly comm: string;
}

export interface LauncherProcesses {
  /** The pinned process. */
  readonly launcher: number;
  /** Its parent. */
  readonly monitor: number;
  /** Of either, by number. */
  readonly children: readonly Process[];
}

/** A chain of the tables `ip nat` and `ip6 nat`. */
export interface NatChainState {
  readonly family: 'ip' | 'ip6';
  readonly name: string;
  /** Hook number, priority and policy of a base chain; empty for a regular one. */
  readonly hook: string;
  /** Number of rules. */
  readonly rules: number;
}

/** A kernel interface; `error` is empty when it is there, `EPERM` when the caller may not find out. */
export interface KernelFeature {
  readonly name: string;
  readonly error: string;
}

/** One inotify event. `overflow` stands alone and means: look everywhere again. */
export interface InotifyEvent {
  readonly wd: number;
  readonly mask: number;
  /** Name of the entry, empty for events on the watched directory itself. */
  readonly name: string;
}

export interface Native {
  // Privileges. Called once each, in this order, from the main thread at start.

  /**
   * Mounts a writable /proc/sys/net over a read-only one, in this process's mount namespace; does nothing
   * where it is writable.
   */
  makeNetworkSysctlsWritable(): void;
  /**
   * Moves this thread, and those that it starts later, into a cgroup namespace, unless it is there. Before the
   * privileged threads are started.
   */
  joinCgroupNamespace(path: string): void;
  /**
   * Starts privileged threads: keep-caps set, CLONE_FS unshared, permitted set = `permitted`,
   * effective and inheritable empty, bounding set cut to `permitted`.
   */
  startPrivilegedThreads(options: { count: number; permitted: bigint }): void;
  /** setgroups, setresgid, setresuid for all threads. All but the privileged threads lose every capability. */
  dropPrivileges(options: { uid: number; gid: number; groups: number[] }): void;
  /**
   * For every thread: no_new_privs and its seccomp filter (ordinary or privileged). For the process:
   * not dumpable, RLIMIT_CORE 0. Does what it can without privileges in the agent (`privileged: false`).
   */
  lockDown(options: { privileged: boolean }): void;

  // Privileged calls. Each runs whole on one privileged thread.

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

  /** `forbidden`: network namespaces that must never be entered (host's, helper's own). */
  observeNetwork(call: Call, launcher: Launcher, forbidden: readonly NamespaceId[]): Promise<NetworkState>;
  applyNetwork(
    call: Call,
    launcher: Launcher,
    forbidden: readonly NamespaceId[],
    plan: NetworkPlan,
  ): Promise<boolean>;
  /**
   * Serves passt's repair socket until passt closes the connection, on a thread of its own: the number of TCP sockets
   * that were switched. On the target waits for the socket to appear.
   */
  repairPasst(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    side: 'source' | 'target',
  ): Promise<number>;
  observeNat(call: Call, launcher: Launcher, forbidden: readonly NamespaceId[]): Promise<NatChainState[]>;
  /**
   * What applyNetwork would do now, at most 256 operations; empty when the set-up is as planned. Ends at a
   * link that is yet to be made. Changes nothing.
   */
  pendingNetworkChanges(
    call: Call,
    launcher: Launcher,
    forbidden: readonly NamespaceId[],
    plan: NetworkPlan,
  ): Promise<string[]>;

  /** `index` null: of the kernel-boot container. */
  containerDiskState(
    call: Call,
    podsDir: number,
    podUid: string,
    index: number | null,
  ): Promise<ContainerDiskState>;
  /** `imagePath` empty: the only file of /disk. False when mounted already. */
  mountContainerDisk(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    index: number,
    imagePath: string,
  ): Promise<boolean>;
  /** A file of the kernel-boot container at kernel-boot/<name>. False when mounted already. */
  mountKernelArtifact(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    imagePath: string,
    name: string,
  ): Promise<boolean>;
  /**
   * The image, open for reading on a read-only mount of its own. `index` null: a file of the kernel-boot
   * container, whose `imagePath` must be given.
   */
  openContainerDisk(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    index: number | null,
    imagePath: string,
  ): Promise<number>;
  /**
   * Unmounts container disks and kernel artifacts, removes their mount points and at last their sockets.
   * `launcher` null: the process is gone and its mounts with it.
   */
  unmountContainerDisks(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher | null,
  ): Promise<boolean>;
  /**
   * What is plugged into the launcher after its start, or was once: entries of its hotplug-disks that bear the name of
   * a volume. `launcher` null: as the host sees them.
   */
  listPlugged(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher | null,
  ): Promise<PluggedEntry[]>;
  /** Gives what is mounted for the volume, by whomever, to the owner; `absent` when nothing is. */
  ownPlugged(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    volume: string,
    kind: PlugKind,
    owner: PlugOwner,
  ): Promise<'absent' | 'unchanged' | 'changed'>;
  /**
   * Mounts the volume that the attachment pod has at /<volume>, writable, nosuid, nodev, noexec, and gives it to the
   * owner. `not-ready`: nobody listens there, or there is no such volume; `missing`: it has no disk.img.
   */
  plugFilesystem(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    attachmentPodUid: string,
    volume: string,
    kind: PlugKind,
    owner: PlugOwner,
  ): Promise<FilesystemPlugOutcome>;
  /** The volume's device node in the launcher pod, null when there is none. Refuses what is no block device. */
  pluggedDevice(call: Call, podsDir: number, podUid: string, volume: string): Promise<BlockDevice | null>;
  /** The only device that the attachment pod has for the volume. */
  attachedDevice(
    call: Call,
    podsDir: number,
    attachmentPodUid: string,
    volume: string,
  ): Promise<BlockDevice | 'not-ready' | 'missing'>;
  /** Makes the device node unless it is there, and gives it to the owner. False when nothing was to be done. */
  plugBlock(
    call: Call,
    podsDir: number,
    podUid: string,
    volume: string,
    device: BlockDevice,
    owner: PlugOwner,
  ): Promise<boolean>;
  /**
   * Takes every mount off an entry, in the launcher and on the host, then the entry away. `launcher` null: the process
   * is gone and its mounts with it.
   */
  unplug(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher | null,
    name: string,
  ): Promise<boolean>;
  /**
   * Gives nodes of the launcher's /dev to uid:gid: the devices, and a block device /dev/<name> for each of
   * `volumes`. One outcome for each device, then one for each volume.
   */
  claimDevices(
    call: Call,
    launcher: Launcher,
    devices: readonly ClaimableDevice[],
    volumes: readonly string[],
    uid: number,
    gid: number,
  ): Promise<ClaimOutcome[]>;
  /** All claimable devices. Changes nothing. */
  observeDevices(call: Call, launcher: Launcher): Promise<ObservedDevice[]>;

  /** Device nodes in /dev and its directories that are no mounts; at most 4096 entries (else E2BIG). */
  listDeviceNodes(call: Call, launcher: Launcher): Promise<DeviceNode[]>;
  /**
   * cgroup v2: makes the program (struct bpf_insn) the only one of the launcher's cgroup, and of crun's above it, in
   * one step. False when it was already. The one before stays when it cannot be loaded.
   */
  replaceDevicePrograms(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
    instructions: Uint8Array,
  ): Promise<boolean>;
  /** cgroup v2: the programs of the launcher's own cgroup. */
  attachedDevicePrograms(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
  ): Promise<AttachedProgram[]>;
  /** cgroup v1: text of devices.list of the launcher's cgroup. */
  readDeviceList(call: Call, hierarchy: DeviceHierarchy, launcher: Launcher, podUid: string): Promise<string>;
  /** cgroup v1: writes to devices.allow and devices.deny, one after another, up to the first that fails. */
  changeDeviceList(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
    changes: readonly { readonly allow: boolean; readonly rule: string }[],
  ): Promise<void>;
  /**
   * Looks for an image in a volume of vmi-disks, which must be a mount of its own. Anything but a regular file of
   * that mount is refused; an image that an earlier call did not live to give away counts as missing. `file`
   * empty: the directory itself, which exists.
   */
  vmiDiskState(
    call: Call,
    launcher: Launcher,
    volume: string,
    file: string,
  ): Promise<{ readonly exists: boolean; readonly availableBytes: bigint }>;
  /** Makes an image of `size` bytes without data, owner uid:gid, mode 0644. False when there is one, left untouched. */
  createVmiDisk(
    call: Call,
    launcher: Launcher,
    volume: string,
    file: string,
    size: bigint,
    uid: number,
    gid: number,
  ): Promise<boolean>;
  /**
   * Gives the directory of a volume of vmi-disks away. `foreign`: it is not the root of a volume that kubelet
   * mounted for this pod, so it was left alone.
   */
  claimVmiDisks(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    volume: string,
    uid: number,
    gid: number,
  ): Promise<'claimed' | 'already-owned' | 'foreign'>;

  /** Changes nothing, as little as the next two. */
  launcherProcesses(call: Call, launcher: Launcher): Promise<LauncherProcesses>;
  kernelThreads(call: Call, comm: string): Promise<Process[]>;
  /** Threads of a process of the pod. Refuses, as the next three do, a process that is not the one that was found. */
  processThreads(call: Call, podUid: string, process: Process): Promise<Thread[]>;
  /** RLIMIT_MEMLOCK unlimited, soft and hard. False when it was. */
  liftMemlock(call: Call, podUid: string, process: Process): Promise<boolean>;
  /** SCHED_FIFO, priority 1. False when all threads had it. */
  scheduleThreads(call: Call, podUid: string, process: Process, threads: readonly Thread[]): Promise<boolean>;
  /** CPUs of `like` and, for `realtime`, SCHED_FIFO, priority 2. False when the kernel's thread had both. */
  affineKernelThread(
    call: Call,
    podUid: string,
    process: Process,
    like: Thread,
    kernelThread: Process,
    realtime: boolean,
  ): Promise<boolean>;
  /**
   * Makes the child cgroup `housekeeping` of the launcher's cgroup and confines the launcher's threads but those of
   * vCPUs to `cpus` there; none are moved without any. `uid`: the launcher's.
   */
  isolateEmulator(
    call: Call,
    cgroupRoot: number,
    podUid: string,
    launcher: Launcher,
    uid: number,
    cpus: readonly number[],
  ): Promise<{ readonly changed: boolean; readonly moved: number }>;

  /** Sets or clears the append-only flag of a file that the helper owns. False: the file system has no such flag. */
  setAppendOnly(call: Call, fd: number, on: boolean): Promise<boolean>;

  // Unprivileged calls.

  close(fd: number): void;
  /** Which of the kernel interfaces that operations use this kernel has. Nothing takes effect. */
  probeKernel(): KernelFeature[];
  /** dev:inode of what a descriptor or a path (at start only) denotes. */
  namespaceId(path: string): NamespaceId;
  /** Binds and listens on a unix socket; an old socket at the path is replaced. Mode and group as given. */
  listenUnix(options: {
    path: string;
    type: 'stream' | 'seqpacket';
    mode: number;
    gid: number;
    backlog: number;
  }): number;
  /** Accepts on a listening descriptor until stopped. Takes over the descriptor. */
  acceptConnections(fd: number, onConnection: (fd: number, peer: Peer) => void): { stop(): void };
  /**
   * Serves the descriptor channel: each accepted connection carries one request message of at most
   * `maxBytes`, within `timeoutMs`, then `onRequest`; `reply` sends one status byte and at most one
   * descriptor (which it closes) and ends the connection.
   */
  serveDescriptors(
    fd: number,
    options: { maxBytes: number; timeoutMs: number; maxConnections: number },
    onRequest: (request: Uint8Array, peer: Peer, reply: (status: number, fd: number | null) => void) => void,
  ): { stop(): void };
  /** Redeems a ticket on the descriptor channel. A status other than 0 gives an error of that errno. */
  claimDescriptor(path: string, ticket: Uint8Array, timeoutMs: number): Promise<number>;
  /** Makes an inotify instance whose events go to `onEvents` in batches. An overflow event has wd -1. */
  createInotify(onEvents: (events: InotifyEvent[]) => void): { readonly fd: number; close(): void };
  removeWatch(inotify: number, wd: number): void;
  /** Calls back once when the process of the pidfd has exited. The descriptor stays the caller's. */
  onProcessExit(pidfd: number, callback: () => void): { cancel(): void };
}

/** Loads the addon that `npm run build:native` made. Throws when it is missing. */
export function loadNative(): Native {
  const require = createRequire(import.meta.url);
  const here = dirname(fileURLToPath(import.meta.url));
  // The sources run from <root>/native, the build from <root>/dist/native.
  const root = here.includes(join('dist', 'native')) ? join(here, '..', '..') : join(here, '..');
  return require(join(root, 'build', 'Release', 'privsep.node')) as Native;
}
