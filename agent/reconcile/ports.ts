/**
 * What the reconcile loop needs from the rest of the agent. The loop knows these interfaces only; tests
 * give it recorded answers, the composition root gives it the real ones. Method names follow the side
 * effects that the golden vectors list.
 */
import type { VirtualMachineOptions } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { Domain } from '../api/domain.js';
import type { Vmi, VmiRef } from '../api/vmi.js';

/** Connection to one launcher. Every call has the deadline of wire.md 4.1 and throws a LauncherError. */
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

export interface LauncherProbe {
  readonly unresponsive: boolean;
  readonly initialized: boolean;
}

/** The launcher clients of this node, one per VMI UID. */
export interface LauncherClients {
  /** reconcile.md 13.3. */
  isUnresponsive(vmi: Vmi | VmiRef): Promise<LauncherProbe>;
  /** Connects if needed: ghost record, connection, notify pipe. Single flight per UID. */
  get(vmi: Vmi | VmiRef): Promise<LauncherClient>;
  /** get, then Ping. */
  getVerified(vmi: Vmi | VmiRef): Promise<LauncherClient>;
  /** Closes the connection and the notify pipe, deletes the ghost record if its UID is this one. */
  close(vmi: VmiRef): Promise<void>;
  /** Milliseconds since the epoch when the launcher was first looked for without success; undefined if not known. */
  notInitializedSince(uid: string): number | undefined;
}

export interface ContainerDisks {
  /** False: not yet, ask again. Throws after the grace of one minute since `notInitializedSince`. */
  ready(vmi: Vmi, notInitializedSince: number): Promise<boolean>;
  mountAndVerify(vmi: Vmi): Promise<void>;
  unmount(vmi: VmiRef, spec: Vmi['spec'] | undefined): Promise<void>;
  computeChecksums(vmi: Vmi): Promise<DiskChecksums>;
}

export interface DiskChecksums {
  /** Volume name -> CRC32. */
  readonly containerDisks: ReadonlyMap<string, number>;
  readonly kernel?: number;
  readonly initrd?: number;
}

/** Hotplugged volumes. `mount` throws WaitingForHotplugMount or NotExist as reconcile.md 5.2 tells apart. */
export interface HotplugVolumes {
  mount(vmi: Vmi): Promise<void>;
  unmount(vmi: Vmi): Promise<void>;
  unmountAll(vmi: VmiRef): Promise<void>;
  isMounted(vmi: Vmi, volume: string, attachmentPodUid: string): Promise<boolean>;
}

export class WaitingForHotplugMount extends Error {
  override readonly name = 'WaitingForHotplugMount';
}
export class NotExist extends Error {
  override readonly name = 'NotExist';
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
  /** reconcile.md 18, in order. */
  claim(vmi: Vmi): Promise<void>;
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
  /** "none" without SELinux; undefined when it could not be read. */
  selinuxContext(vmi: Vmi): Promise<string | undefined>;
  /** Bytes, undefined when it could not be read. */
  isoSize(vmi: Vmi, podUid: string, path: string): Promise<number | undefined>;
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
  delete(key: string): void;
  keys(): string[];
}
export interface GhostRecords {
  lastKnownUid(key: string): string | undefined;
}

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
}
