/** Images and volumes in launcher pods. */
import type { Call, Launcher } from './call.js';
import type { DeviceDecision, DeviceHierarchy } from './devices.js';

/** `disk`: `<volume>.img` shows disk.img of the volume; `directory`: `<volume>` shows the volume itself. */
export type PlugKind = 'disk' | 'directory';

/** `plugged-kept`: what it is keeps its owner, for somebody else than this kernel decides about that. */
export type FilesystemPlugOutcome = 'plugged' | 'plugged-kept' | 'not-ready' | 'missing';

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

/** A device that an attachment pod shows, and what decides whether its process may open it. */
export interface AttachedDevice extends BlockDevice {
  readonly policy: DeviceDecision;
}

/** An entry of hotplug-disks: `<volume>.img` or `<volume>`. */
export interface PluggedEntry {
  readonly name: string;
  /** Something is mounted on it. */
  readonly mounted: boolean;
  readonly block: boolean;
}

export type ContainerDiskState = 'absent' | 'not-listening' | 'ready';

/** An image in a container of the pod, and where it is mounted. */
export interface ImageMount {
  /** Of the container disk; null: a file of the kernel-boot container. */
  readonly index: number | null;
  /** Empty: the only file of /disk. */
  readonly imagePath: string;
  /** Of the mount point in kernel-boot; of no meaning for a container disk. */
  readonly name: string;
}

/**
 * Each runs whole on one privileged thread. What reaches a claim has one of its own: EAGAIN when too many wait for
 * volumes that do not answer.
 */
export interface DiskCalls {
  /**
   * Up to the first that is not ready, in the order of `indexes`, of which null is the kernel-boot container. An error
   * names its item.
   */
  containerDiskStates(
    call: Call,
    podsDir: number,
    podUid: string,
    indexes: readonly (number | null)[],
  ): Promise<ContainerDiskState[]>;
  /**
   * In order, up to the first that fails, which the error names as its item; those before it are mounted then. False
   * when all were mounted already.
   */
  mountContainerDisks(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    images: readonly ImageMount[],
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
  /**
   * Gives what is mounted for the volume, by whomever, to the owner; `absent` when nothing is. `kept`: the server of its
   * file system refuses.
   */
  ownPlugged(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    volume: string,
    kind: PlugKind,
    owner: PlugOwner,
  ): Promise<'absent' | 'unchanged' | 'changed' | 'kept'>;
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
    hierarchy: DeviceHierarchy,
    podsDir: number,
    attachmentPodUid: string,
    volume: string,
  ): Promise<AttachedDevice | 'not-ready' | 'missing'>;
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
   * mounted for this pod, so it was left alone. `kept`: the server of its file system refuses.
   */
  claimVmiDisks(
    call: Call,
    podsDir: number,
    podUid: string,
    launcher: Launcher,
    volume: string,
    uid: number,
    gid: number,
  ): Promise<'claimed' | 'already-owned' | 'foreign' | 'kept'>;
}
