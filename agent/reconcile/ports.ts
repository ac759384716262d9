/**
 * What the reconcile loop needs from the rest of the agent to have effects; of other rooms it uses pure functions and types
 * only. Tests give it recorded answers, the composition root gives it the real ones. Method names follow the side effects
 * that the golden vectors list.
 */
import type { VirtualMachineOptions } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { Domain } from '../api/domain.js';
import type { Vmi, VmiRef } from '../api/vmi.js';
import type { Iso } from './status/iso-size.js';

/** Connection to one launcher. Every call has a deadline and throws a LauncherError. */
export interface LauncherClient {
  ping(): Promise<void>;
  getDomain(): Promise<Domain | undefined>;
  getGuestInfo(): Promise<GuestAgentInfo>;
  syncVirtualMachine(vmi: Vmi, options: VirtualMachineOptions): Promise<void>;
  shutdownVirtualMachine(vmi: Vmi | VmiRef): Promise<void>;
  killVirtualMachine(vmi: Vmi | VmiRef): Promise<void>;
  deleteVirtualMachine(vmi: Vmi | VmiRef): Promise<void>;
  hotplugHostDevices(vmi: Vmi): Promise<void>;
  virtualMachineMemoryDump(vmi: Vmi, dumpPath: string): Promise<void>;
}

export interface GuestAgentInfo {
  readonly guestAgentVersion: string;
  readonly supportedCommands: readonly { readonly name: string; readonly enabled: boolean }[];
}

/** Thrown by LauncherClient. `disconnected`: the connection is gone; a kill or delete counts as done. */
export class LauncherError extends Error {
  override readonly name = 'LauncherError';
  constructor(
    message: string,
    readonly disconnected: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * Thrown by LauncherClients.get: the key has a ghost record of another UID. `alive`: that launcher still
 * answers, or hangs, so nothing of it may be cleaned up yet.
 */
export class GhostRecordConflict extends Error {
  override readonly name = 'GhostRecordConflict';
  constructor(
    message: string,
    readonly predecessor: VmiRef,
    readonly alive: boolean,
  ) {
    super(message);
  }
}

/**
 * Thrown by LauncherClients.get while attempts are held back after failures (1 s, doubling to 60 s). The
 * message is that of the last failure; nothing was tried now. Come back after `retryAfterMs`.
 */
export class ConnectHeldBack extends Error {
  override readonly name = 'ConnectHeldBack';
  constructor(
    message: string,
    readonly retryAfterMs: number,
  ) {
    super(message);
  }
}

export interface LauncherProbe {
  readonly unresponsive: boolean;
  readonly initialized: boolean;
}

/** The launcher clients of this node, one per VMI UID. */
export interface LauncherClients {
  /** Whether the launcher is there (KubeVirt pkg/virt-handler/launcher-clients IsLauncherClientUnresponsive). */
  isUnresponsive(vmi: Vmi | VmiRef): Promise<LauncherProbe>;
  /** Connects if needed: ghost record, connection, notify pipe. Single flight per UID. */
  get(vmi: Vmi | VmiRef): Promise<LauncherClient>;
  /** get, then Ping. */
  getVerified(vmi: Vmi | VmiRef): Promise<LauncherClient>;
  /**
   * Closes the connection and the notify pipe and forgets when the launcher was first looked for. The
   * ghost record stays, so that a cleanup that fails half-way is found again after a restart. Nothing
   * happens for an empty UID.
   */
  close(vmi: VmiRef): Promise<void>;
  /** Deletes the ghost record of the key if its UID is this one: the very last step of a cleanup. */
  forget(vmi: VmiRef): Promise<void>;
  /** Milliseconds since the epoch when the launcher was first looked for without success; undefined if not known. */
  notInitializedSince(uid: string): number | undefined;
}

/** The launcher's pod: its process found, checked and held, its cgroup known. Idempotent. */
export interface LauncherPods {
  identify(vmi: Vmi): Promise<void>;
}

export interface ContainerDisks {
  /** False: not yet, ask again. Throws after the grace of one minute since `notInitializedSince`. */
  ready(vmi: Vmi, notInitializedSince: number): Promise<boolean>;
  mountAndVerify(vmi: Vmi): Promise<void>;
  unmount(vmi: VmiRef): Promise<void>;
  /** Those that are known; nothing waits for the others. */
  computeChecksums(vmi: Vmi): DiskChecksums;
}

export interface DiskChecksums {
  /** Volume name -> CRC32. */
  readonly containerDisks: ReadonlyMap<string, number>;
  readonly kernel?: number;
  readonly initrd?: number;
}

/** Hotplugged volumes. */
export interface HotplugVolumes {
  /**
   * Tries every volume; throws WaitingForHotplugMount for such as are not there yet, NotExist for such as are gone,
   * VolumeFailed for such as cannot be mounted, any other error for what concerns all of them, and an AggregateError of
   * these for several reasons.
   */
  mount(vmi: Vmi): Promise<void>;
  /** Unmounts what the spec no longer wants, but for the volumes that the domain still has `attached`. */
  unmount(vmi: Vmi, attached: ReadonlySet<string>): Promise<void>;
  unmountAll(vmi: VmiRef): Promise<void>;
  /** Undefined while nobody can tell. */
  isMounted(vmi: Vmi, volume: string): Promise<boolean | undefined>;
}

export class WaitingForHotplugMount extends Error {
  override readonly name = 'WaitingForHotplugMount';
}
export class NotExist extends Error {
  override readonly name = 'NotExist';
}
/** Does not concern the other volumes, nor the VM. */
export class VolumeFailed extends Error {
  override readonly name = 'VolumeFailed';
}

/** An error that makes the VMI Failed. The message begins with "Critical network error: ". */
export class CriticalNetworkError extends Error {
  override readonly name = 'CriticalNetworkError';
}

export interface PodNetworks {
  /** Sets up the pod networks named. Throws CriticalNetworkError for what cannot be undone. */
  setup(vmi: Vmi, networks: readonly string[]): Promise<void>;
  teardown(vmi: VmiRef): Promise<void>;
}

export interface NetStat {
  /** Writes status.interfaces of the VMI given. */
  updateStatus(vmi: Vmi, domain: Domain | undefined): Promise<void>;
  teardown(vmi: VmiRef): void;
}

export interface DeviceOwnership {
  /**
   * Gives the launcher its devices and files, in the order of KubeVirt pkg/virt-handler/controller.go
   * setupDevicesOwnerships. False: not all are there yet, ask again. Throws after the grace of one minute since
   * `notInitializedSince`.
   */
  claim(vmi: Vmi, notInitializedSince: number): Promise<boolean>;
}

/** Which devices the launcher's container may open, once a block volume was plugged (KubeVirt pkg/virt-handler/cgroup). */
export interface DevicePolicy {
  /**
   * Allows the VMI's block volumes and what is plugged, and nothing that is not: after plugging and after unplugging.
   * Idempotent.
   */
  apply(vmi: Vmi): Promise<void>;
}

/** Limits, pinning, scheduling of the launcher's processes. */
export interface Hypervisor {
  adjustResources(vmi: Vmi): Promise<void>;
  handleHousekeeping(vmi: Vmi, domain: Domain | undefined): Promise<void>;
}

export interface DownwardMetrics {
  startServer(vmi: Vmi): Promise<void>;
  stopServer(vmi: VmiRef): void;
}

export interface MigrationProxy {
  stopTargetListener(uid: string): void;
  stopSourceListener(uid: string): void;
}

export type NodeHookPoint = 'PreVMStart' | 'PostVMStart' | 'PreVMStop' | 'PostVMStop';
export interface NodeHooks {
  readonly present: boolean;
  call(point: NodeHookPoint, vmi: Vmi | VmiRef): Promise<void>;
}

/** Facts about the launcher's pod that the status write asks for. */
export interface LauncherFacts {
  /** "none" without SELinux, undefined without a pod. Throws when the label could not be read. */
  selinuxContext(vmi: Vmi, podUid: string | undefined): Promise<string | undefined>;
  /** Bytes. Throws when it could not be read. */
  isoSize(vmi: Vmi, podUid: string, iso: Iso): Promise<number>;
}

export interface VmiApi {
  /** PUT of the whole object. Throws an ApiError (409: conflict). */
  update(vmi: Vmi): Promise<Vmi>;
}

export type EventType = 'Normal' | 'Warning';
export interface EventRecorder {
  event(vmi: Vmi | VmiRef, type: EventType, reason: string, message: string): void;
}

/** Read side of the caches. Objects are shared: never change one, copy it first. */
export interface VmiStore {
  get(key: string): Vmi | undefined;
}
export interface DomainStore {
  get(key: string): Domain | undefined;
  /** Stores what a launcher answered; tells the queue as an event would. */
  put(key: string, domain: Domain): void;
  delete(key: string): void;
  keys(): string[];
}
export interface GhostRecords {
  lastKnownUid(key: string): string | undefined;
}

/** What this node keeps for a VMI beside the domain: ghost record, launcher client, mounts. */
export interface LocalState {
  holds(vmi: VmiRef): Promise<boolean>;
}

/** The part of the work queue that a pass uses on its own key. */
export interface Requeue {
  /** The earliest pending time of a key wins. */
  addAfter(key: string, milliseconds: number): void;
  addRateLimited(key: string): void;
}

/** Own writes whose event has not come back yet. */
export interface WriteExpectations {
  satisfied(key: string): boolean;
  set(key: string, adds: number, deletes: number): void;
  delete(key: string): void;
}

export interface LoopMetrics {
  /** kubevirt_vmi_sync_total: one successful write of the VMI. */
  vmiSynced(vmi: VmiRef): void;
  /** Drops the series of a VMI that is no longer in the local store. */
  forgetVmi(key: string): void;
  /** kubevirt_vmi_guest_os_panic_total. */
  guestPanicked(vmi: VmiRef, type: string, bugcheckCode: string): void;
}

/** Who did a step of a VM's start. */
export type Actor = 'agent' | 'helper' | 'launcher' | 'api';
/** Notes when each step of a VM's life happened. Steps come again on every pass; the first one counts. */
export interface Timeline {
  mark(vmi: VmiRef, step: string, who: Actor): void;
}
