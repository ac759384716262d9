import type {
  Domain,
  DomainDisk,
  DomainInterface,
  DomainLifecycle,
  DomainSpec,
  DomainStatus,
  GuestPanicInfo,
  KubeVirtMetadata,
} from '../api/domain.js';
import { Fields, JsonShapeError } from '../json/fields.js';
import { JsonTooLarge, type JsonValue, parseJson } from '../json/lossless.js';

/** Largest Domain document that is read; the launcher's own limit for a message. Bytes. */
const maxDomainBytes = 4 * 1024 * 1024;
const limits = {
  disks: 1024,
  interfaces: 1024,
  hostDevices: 1024,
  channels: 256,
  guestInterfaces: 1024,
  ips: 1024,
};

/** A document that is not a Domain. The message names the path at fault. */
export class DomainParseError extends Error {
  override readonly name = 'DomainParseError';
}

/**
 * Reads the JSON that a launcher sends (Go structs without tags: keys are Go field names, case-sensitive;
 * null is the zero value; unknown keys are ignored). The text `null` is the zero Domain. Throws
 * DomainParseError and nothing else.
 */
export function parseDomain(text: string): Domain {
  return guarded('Domain', () => readDomain(parseJson(text, maxDomainBytes)));
}

/** The same for a value that was parsed already, with numbers kept lossless. */
export function readDomain(value: JsonValue): Domain {
  const domain = Fields.of(value, 'Domain');
  const meta = domain.struct('ObjectMeta');
  return {
    ObjectMeta: {
      name: meta.string('name'),
      namespace: meta.string('namespace'),
      uid: meta.string('uid'),
      deletionTimestamp: meta.time('deletionTimestamp'),
    },
    Spec: readSpec(domain.struct('Spec')),
    Status: readStatus(domain.struct('Status')),
  };
}

/** Runs a parser of outside data; whatever it throws (shape, size, syntax, depth) becomes one DomainParseError. */
export function guarded<T>(what: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (error instanceof JsonShapeError) throw new DomainParseError(error.message);
    if (error instanceof JsonTooLarge || error instanceof SyntaxError) {
      throw new DomainParseError(`${what}: ${error.message}`);
    }
    // The parser is recursive: nesting beyond the stack.
    if (error instanceof RangeError) throw new DomainParseError(`${what}: nested too deeply`);
    throw error;
  }
}

function readSpec(spec: Fields): DomainSpec {
  const devices = spec.struct('Devices');
  return {
    Type: spec.string('Type'),
    Name: spec.string('Name'),
    UUID: spec.string('UUID'),
    CurrentMemory: spec.optional('CurrentMemory', (memory) => ({
      Value: memory.bigint('Value'),
      Unit: memory.string('Unit'),
    })),
    OS: { Type: { Machine: spec.struct('OS').struct('Type').string('Machine') } },
    Features: spec.optional('Features', (features) => ({ ACPI: features.optional('ACPI', () => ({})) })),
    CPUTune: spec.optional('CPUTune', (tune) => ({
      EmulatorPin: tune.optional('EmulatorPin', (pin) => ({ CPUSet: pin.string('CPUSet') })),
    })),
    Devices: {
      Disks: devices.list('Disks', limits.disks, readDisk),
      Interfaces: devices.list('Interfaces', limits.interfaces, readInterface),
      HostDevices: devices.list('HostDevices', limits.hostDevices, (device) => ({
        Alias: readAlias(device),
      })),
      Channels: devices.list('Channels', limits.channels, (channel) => ({
        Target: channel.optional('Target', (target) => ({
          Name: target.string('Name'),
          State: target.string('State'),
        })),
      })),
    },
    Metadata: { KubeVirt: readMetadata(spec.struct('Metadata').struct('KubeVirt')) },
  };
}

function readAlias(device: Fields): { Name: string; UserDefined: boolean } | undefined {
  return device.optional('Alias', (alias) => ({
    Name: alias.string('Name'),
    UserDefined: alias.boolean('UserDefined'),
  }));
}

function readDisk(disk: Fields): DomainDisk {
  const source = disk.struct('Source');
  return {
    Alias: readAlias(disk),
    Source: {
      File: source.string('File'),
      Dev: source.string('Dev'),
      DataStore: source.optional('DataStore', () => ({})),
    },
    Target: { Device: disk.struct('Target').string('Device') },
  };
}

function readInterface(nic: Fields): DomainInterface {
  return {
    Alias: readAlias(nic),
    MAC: nic.optional('MAC', (mac) => ({ MAC: mac.string('MAC') })),
    LinkState: nic.optional('LinkState', (link) => ({ State: link.string('State') })),
    Driver: nic.optional('Driver', (driver) => ({
      Queues: driver.optionalInteger('Queues'),
    })),
  };
}

function readMetadata(metadata: Fields): KubeVirtMetadata {
  return {
    UID: metadata.string('UID'),
    GracePeriod: metadata.optional('GracePeriod', (grace) => ({
      DeletionGracePeriodSeconds: grace.integer('DeletionGracePeriodSeconds'),
      DeletionTimestamp: grace.time('DeletionTimestamp'),
      MarkedForGracefulShutdown: grace.optionalBoolean('MarkedForGracefulShutdown'),
    })),
    Migration: metadata.optional('Migration', (migration) => ({
      UID: migration.string('UID'),
      StartTimestamp: migration.time('StartTimestamp'),
      EndTimestamp: migration.time('EndTimestamp'),
      Failed: migration.boolean('Failed'),
      FailureReason: migration.string('FailureReason'),
      AbortStatus: migration.string('AbortStatus'),
      Mode: migration.string('Mode'),
    })),
    Backup: metadata.optional('Backup', (backup) => ({
      Name: backup.string('Name'),
      Mode: backup.string('Mode'),
      SkipQuiesce: backup.boolean('SkipQuiesce'),
      StartTimestamp: backup.time('StartTimestamp'),
      EndTimestamp: backup.time('EndTimestamp'),
      Completed: backup.boolean('Completed'),
      Failed: backup.boolean('Failed'),
      BackupMsg: backup.string('BackupMsg'),
      CheckpointName: backup.string('CheckpointName'),
      Volumes: backup.string('Volumes'),
      QuiesceStatus: backup.string('QuiesceStatus'),
    })),
    AccessCredential: metadata.optional('AccessCredential', (credential) => ({
      Succeeded: credential.boolean('Succeeded'),
      Message: credential.string('Message'),
    })),
    MemoryDump: metadata.optional('MemoryDump', (dump) => ({
      FileName: dump.string('FileName'),
      StartTimestamp: dump.time('StartTimestamp'),
      EndTimestamp: dump.time('EndTimestamp'),
      Completed: dump.boolean('Completed'),
      Failed: dump.boolean('Failed'),
      FailureReason: dump.string('FailureReason'),
    })),
  };
}

function readStatus(status: Fields): DomainStatus {
  const os = status.struct('OSInfo');
  return {
    Status: status.string('Status') as DomainLifecycle,
    Reason: status.string('Reason'),
    Interfaces: status.list('Interfaces', limits.guestInterfaces, (nic) => ({
      Mac: nic.string('Mac'),
      Ip: nic.string('Ip'),
      IPs: nic.strings('IPs', limits.ips),
      InterfaceName: nic.string('InterfaceName'),
    })),
    OSInfo: {
      Name: os.string('Name'),
      KernelRelease: os.string('KernelRelease'),
      Version: os.string('Version'),
      PrettyName: os.string('PrettyName'),
      VersionId: os.string('VersionId'),
      KernelVersion: os.string('KernelVersion'),
      Machine: os.string('Machine'),
      Id: os.string('Id'),
    },
    FSFreezeStatus: { Status: status.struct('FSFreezeStatus').string('Status') },
    GuestPanicInfo: status.optional('GuestPanicInfo', readPanic),
    PanicCount: status.integer('PanicCount'),
  };
}

function readPanic(panic: Fields): GuestPanicInfo {
  const arg = (key: string) => panic.bigint(key).toString();
  return {
    Type: panic.string('Type'),
    Arg1: arg('Arg1'),
    Arg2: arg('Arg2'),
    Arg3: arg('Arg3'),
    Arg4: arg('Arg4'),
    Arg5: arg('Arg5'),
  };
}
