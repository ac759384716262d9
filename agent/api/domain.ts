/**
 * The Domain as a launcher reports it (JSON of Go structs without tags, so the keys are the Go field
 * names). Of the whole only the structures that the agent reads are named, of these also fields that nobody reads yet:
 * those of migrations, backups and panics. See wire.md 6 of the specification for the encoding.
 */
export type DomainLifecycle =
  | ''
  | 'NoState'
  | 'Running'
  | 'Blocked'
  | 'Paused'
  | 'ShuttingDown'
  | 'Shutoff'
  | 'Crashed'
  | 'PMSuspended'
  /** Made by the agent for a launcher that exists but does not answer; never sent by a launcher. */
  | 'Unknown';

export interface DomainMeta {
  name: string;
  namespace: string;
  uid: string;
  /** RFC 3339; set when the launcher reports that the domain is gone. */
  deletionTimestamp?: string | undefined;
}

export interface DomainStatus {
  Status: DomainLifecycle;
  Reason: string;
  Interfaces: DomainInterfaceStatus[];
  OSInfo: GuestOsInfo;
  FSFreezeStatus: { Status: string };
  GuestPanicInfo?: GuestPanicInfo | undefined;
  PanicCount: number;
}

export interface DomainInterfaceStatus {
  Mac: string;
  Ip: string;
  IPs: string[];
  InterfaceName: string;
}

export interface GuestOsInfo {
  Name: string;
  KernelRelease: string;
  Version: string;
  PrettyName: string;
  VersionId: string;
  KernelVersion: string;
  Machine: string;
  Id: string;
}

/** Arguments exceed 2^53 and are kept as decimal text. */
export interface GuestPanicInfo {
  Type: string;
  Arg1: string;
  Arg2: string;
  Arg3: string;
  Arg4: string;
  Arg5: string;
}

export interface GracePeriod {
  DeletionGracePeriodSeconds: number;
  DeletionTimestamp?: string | undefined;
  MarkedForGracefulShutdown?: boolean | undefined;
}

export interface MigrationMetadata {
  UID: string;
  StartTimestamp?: string | undefined;
  EndTimestamp?: string | undefined;
  Failed: boolean;
  FailureReason: string;
  AbortStatus: string;
  Mode: string;
}

export interface MemoryDumpMetadata {
  FileName: string;
  StartTimestamp?: string | undefined;
  EndTimestamp?: string | undefined;
  Completed: boolean;
  Failed: boolean;
  FailureReason: string;
}

export interface BackupMetadata {
  Name: string;
  Mode: string;
  SkipQuiesce: boolean;
  StartTimestamp?: string | undefined;
  EndTimestamp?: string | undefined;
  Completed: boolean;
  Failed: boolean;
  BackupMsg: string;
  CheckpointName: string;
  /** JSON text. */
  Volumes: string;
  QuiesceStatus: string;
}

export interface AccessCredentialMetadata {
  Succeeded: boolean;
  Message: string;
}

export interface KubeVirtMetadata {
  UID: string;
  GracePeriod?: GracePeriod | undefined;
  Migration?: MigrationMetadata | undefined;
  Backup?: BackupMetadata | undefined;
  AccessCredential?: AccessCredentialMetadata | undefined;
  MemoryDump?: MemoryDumpMetadata | undefined;
}

export interface DomainDisk {
  Alias?: { Name: string; UserDefined: boolean } | undefined;
  Source: { File: string; Dev: string; DataStore?: object | undefined };
  Target: { Device: string };
}

export interface DomainInterface {
  Alias?: { Name: string; UserDefined: boolean } | undefined;
  MAC?: { MAC: string } | undefined;
  LinkState?: { State: string } | undefined;
  Driver?: { Queues?: number | undefined } | undefined;
}

export interface DomainHostDevice {
  Alias?: { Name: string; UserDefined: boolean } | undefined;
}

export interface DomainChannel {
  Target?: { Name: string; State: string } | undefined;
}

export interface DomainSpec {
  Type: string;
  Name: string;
  UUID: string;
  CurrentMemory?: { Value: bigint; Unit: string } | undefined;
  OS: { Type: { Machine: string } };
  Features?: { ACPI?: object | undefined } | undefined;
  CPUTune?: { EmulatorPin?: { CPUSet: string } | undefined } | undefined;
  Devices: {
    Disks: DomainDisk[];
    Interfaces: DomainInterface[];
    HostDevices: DomainHostDevice[];
    Channels: DomainChannel[];
  };
  Metadata: { KubeVirt: KubeVirtMetadata };
}

export interface Domain {
  ObjectMeta: DomainMeta;
  Spec: DomainSpec;
  Status: DomainStatus;
}
