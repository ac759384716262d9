/**
 * Domain documents as the launcher's Go encoder writes them: every key is present, absent values are null
 * or zero. Shapes were taken from documents of a launcher with libvirt 9.0.
 */
import type { MachineConfig, MachineDisk, MachineNic } from './machine.js';

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export interface GracePeriodDocument {
  readonly DeletionGracePeriodSeconds: number;
  readonly DeletionTimestamp: string | null;
  readonly MarkedForGracefulShutdown: boolean | null;
}

export interface MetadataDocument {
  readonly UID: string;
  readonly GracePeriod: GracePeriodDocument | null;
}

export interface PanicDocument {
  readonly Type: string;
  readonly Arg1: number;
  readonly Arg2: number;
  readonly Arg3: number;
  readonly Arg4: number;
  readonly Arg5: number;
}

export interface StatusDocument {
  readonly Status: string;
  readonly Reason: string;
  readonly GuestPanicInfo: PanicDocument | null;
  readonly PanicCount: number;
}

export interface DomainIdentity {
  readonly namespace: string;
  readonly name: string;
  /** Left out when empty, as Kubernetes metadata does. */
  readonly uid: string;
  /** RFC 3339 with seconds. */
  readonly deletionTimestamp?: string | undefined;
}

/** RFC 3339 in seconds, as Kubernetes writes times. */
export function timestamp(date: Date): string {
  return date.toISOString().replace(/\.\d+Z$/, 'Z');
}

export function domainDocument(
  identity: DomainIdentity,
  spec: JsonObject,
  status: StatusDocument,
): JsonObject {
  return {
    kind: 'Domain',
    apiVersion: '1.2.2',
    ObjectMeta: {
      ...(identity.name === '' ? {} : { name: identity.name }),
      ...(identity.namespace === '' ? {} : { namespace: identity.namespace }),
      ...(identity.uid === '' ? {} : { uid: identity.uid }),
      ...(identity.deletionTimestamp === undefined ? {} : { deletionTimestamp: identity.deletionTimestamp }),
    },
    Spec: spec,
    Status: {
      Status: status.Status,
      Reason: status.Reason,
      Interfaces: null,
      OSInfo: {
        Name: '',
        KernelRelease: '',
        Version: '',
        PrettyName: '',
        VersionId: '',
        KernelVersion: '',
        Machine: '',
        Id: '',
      },
      FSFreezeStatus: { Status: '' },
      GuestPanicInfo: status.GuestPanicInfo === null ? null : { ...status.GuestPanicInfo },
      PanicCount: status.PanicCount,
    },
  };
}

function metadata(document: MetadataDocument): JsonObject {
  return {
    KubeVirt: {
      UID: document.UID,
      GracePeriod: document.GracePeriod === null ? null : { ...document.GracePeriod },
      Migration: null,
      Backup: null,
      AccessCredential: null,
      MemoryDump: null,
    },
  };
}

/** The Spec of a domain that is gone. */
export function emptySpec(meta: MetadataDocument): JsonObject {
  return {
    XMLName: { Space: '', Local: '' },
    Type: '',
    XmlNS: '',
    Name: '',
    UUID: '',
    Memory: { Value: 0, Unit: '' },
    CurrentMemory: null,
    MaxMemory: null,
    MemoryBacking: null,
    OS: {
      Firmware: '',
      FirmwareInfo: null,
      Type: { OS: '', Arch: '', Machine: '' },
      ACPI: null,
      SMBios: null,
      BootOrder: null,
      BootMenu: null,
      BIOS: null,
      BootLoader: null,
      NVRam: null,
      Kernel: '',
      Initrd: '',
      KernelArgs: '',
    },
    SysInfo: null,
    Devices: {
      Emulator: '',
      Interfaces: null,
      Channels: null,
      HostDevices: null,
      PanicDevices: null,
      Controllers: null,
      Video: null,
      Graphics: null,
      Ballooning: null,
      Disks: null,
      Inputs: null,
      Serials: null,
      Consoles: null,
      Watchdogs: null,
      Rng: null,
      Filesystems: null,
      Redirs: null,
      SoundCards: null,
      TPMs: null,
      VSOCK: null,
      Memory: null,
      IOMMU: null,
    },
    Clock: null,
    Resource: null,
    QEMUCmd: null,
    Metadata: metadata(meta),
    Features: null,
    CPU: { Mode: '', Model: '', Features: null, Topology: null, NUMA: null },
    VCPU: null,
    VCPUs: null,
    CPUTune: null,
    NUMATune: null,
    IOThreads: null,
    LaunchSecurity: null,
    OnReboot: '',
    IOMMUFD: null,
  };
}

/** The Spec of a defined domain. `active`: libvirt knows run-time details only while it runs. */
export function machineSpec(
  config: MachineConfig,
  machineType: string,
  active: boolean,
  meta: MetadataDocument,
): JsonObject {
  const memory = { Value: config.memoryMiB * 1024, Unit: 'KiB' };
  const serialPath = `${config.consoleDirectory}/virt-serial0`;
  const serial = {
    Type: 'unix',
    Target: { Port: 0 },
    Source: { Mode: 'bind', Path: serialPath },
    Alias: active ? alias('serial0', false) : null,
  };
  const empty = emptySpec(meta);
  return {
    ...empty,
    XMLName: { Space: '', Local: 'domain' },
    Type: 'qemu',
    Name: config.name,
    UUID: config.uuid,
    Memory: memory,
    CurrentMemory: { ...memory },
    OS: {
      ...(empty['OS'] as JsonObject),
      Type: { OS: 'hvm', Arch: 'x86_64', Machine: machineType },
      SMBios: { Mode: 'sysinfo' },
    },
    SysInfo: {
      Type: 'smbios',
      System: [
        { Name: 'manufacturer', Value: 'KubeVirt' },
        { Name: 'product', Value: 'None' },
        { Name: 'uuid', Value: config.uuid },
        { Name: 'family', Value: 'KubeVirt' },
      ],
      BIOS: null,
      BaseBoard: null,
      Chassis: null,
    },
    Devices: {
      ...(empty['Devices'] as JsonObject),
      Emulator: '/usr/bin/qemu-system-x86_64',
      Interfaces: listOrNull(config.nics.map(interfaceDocument)),
      HostDevices: listOrNull((config.sriovNetworks ?? []).map(hostDeviceDocument)),
      Controllers: [
        controller('usb', 'none', active ? 'usb' : undefined),
        controller('sata', '', active ? 'ide' : undefined),
        controller('pci', 'pcie-root', active ? 'pcie.0' : undefined),
      ],
      Video: [{ Model: { Type: 'vga', Heads: 1, Ram: null, VRam: 16384, VGAMem: null } }],
      Graphics: [
        {
          AutoPort: '',
          DefaultMode: '',
          Listen: { Type: 'socket', Address: '', Network: '', Socket: `${config.consoleDirectory}/virt-vnc` },
          PasswdValidTo: '',
          Port: 0,
          TLSPort: 0,
          Type: 'vnc',
        },
      ],
      Disks: listOrNull(config.disks.map(diskDocument)),
      Serials: [{ ...serial, Log: { File: `${serialPath}-log`, Append: 'on' } }],
      Consoles: [{ ...serial, Target: { Type: 'serial', Port: 0 } }],
    },
    CPUTune:
      config.emulatorPin === undefined
        ? null
        : { VCPUPin: null, IOThreadPin: null, EmulatorPin: { CPUSet: config.emulatorPin } },
    Clock: {
      Offset: 'utc',
      Timezone: '',
      Adjustment: 'reset',
      Timer: [
        timer('rtc', 'catchup', 'yes', 'guest'),
        timer('pit', 'delay', 'yes', ''),
        timer('hpet', '', 'no', ''),
      ],
    },
    Resource: active ? { Partition: '/machine' } : null,
    Features: {
      ACPI: config.acpi ? {} : null,
      APIC: null,
      Hyperv: null,
      SMM: null,
      KVM: null,
      PVSpinlock: null,
      PMU: null,
      VMPort: null,
    },
    CPU: {
      Mode: 'custom',
      Model: 'qemu64',
      Features: null,
      Topology: { Sockets: 1, Cores: config.cpus, Threads: 1 },
      NUMA: null,
    },
    VCPU: { Placement: 'static', CPUs: config.cpus },
    IOThreads: { IOThreads: 1 },
    OnReboot: 'restart',
  };
}

function listOrNull(items: JsonObject[]): Json {
  return items.length === 0 ? null : items;
}

function alias(name: string, userDefined: boolean): JsonObject {
  return { Name: name, UserDefined: userDefined };
}

function timer(name: string, tickPolicy: string, present: string, track: string): JsonObject {
  return { Name: name, TickPolicy: tickPolicy, Present: present, Track: track, Frequency: '' };
}

function controller(type: string, model: string, aliasName: string | undefined): JsonObject {
  return {
    Type: type,
    Index: '0',
    Model: model,
    Driver: null,
    Alias: aliasName === undefined ? null : alias(aliasName, false),
    Address: null,
    PCIHole64: null,
    Target: null,
  };
}

function interfaceDocument(nic: MachineNic): JsonObject {
  return {
    XMLName: { Space: '', Local: 'interface' },
    Address: null,
    Type: 'ethernet',
    TrustGuestRxFilters: '',
    Source: { Network: '', Device: '', Bridge: '', Mode: '', Address: null },
    Target: { Device: nic.tap, Managed: 'no' },
    Model: { Type: nic.model === 'virtio' ? 'virtio-non-transitional' : nic.model },
    MAC: { MAC: nic.mac },
    MTU: { Size: String(nic.mtu) },
    BandWidth: null,
    BootOrder: nic.bootOrder === undefined ? null : { Order: nic.bootOrder },
    LinkState: null,
    FilterRef: null,
    Alias: alias(nic.network, true),
    Driver: null,
    Rom: { Enabled: nic.bootOrder === undefined ? 'no' : '' },
    ACPI: null,
    Backend: null,
    PortForward: null,
  };
}

function hostDeviceDocument(network: string): JsonObject {
  return {
    XMLName: { Space: '', Local: 'hostdev' },
    Source: { Address: null },
    Type: 'pci',
    BootOrder: null,
    Managed: 'no',
    Alias: alias(`sriov-${network}`, true),
  };
}

function diskDocument(disk: MachineDisk, index: number): JsonObject {
  const letter = String.fromCharCode('a'.charCodeAt(0) + index);
  return {
    Device: disk.device,
    Snapshot: '',
    Type: disk.plugged === 'block' ? 'block' : 'file',
    Source: {
      Dev: disk.plugged === 'block' ? disk.path : '',
      File: disk.plugged === 'block' ? '' : disk.path,
      StartupPolicy: '',
      Protocol: '',
      Name: '',
      Host: null,
      Reservations: null,
      Slices: null,
      DataStore: null,
    },
    Target: {
      Bus: disk.bus,
      Device: `${disk.bus === 'virtio' ? 'vd' : 'sd'}${letter}`,
      Tray: disk.device === 'cdrom' ? 'closed' : '',
    },
    Serial: '',
    Driver: {
      Cache: 'none',
      ErrorPolicy: 'stop',
      IO: '',
      Name: 'qemu',
      Type: 'raw',
      IOThread: null,
      IOThreads: null,
      Queues: null,
      Discard: 'unmap',
      IOMMU: '',
    },
    ReadOnly: disk.plugged === undefined ? {} : null,
    Auth: null,
    Alias: alias(disk.volume, true),
    BackingStore: null,
    BootOrder: disk.bootOrder === undefined ? null : { Order: disk.bootOrder },
    Address: null,
    Model: disk.bus === 'virtio' ? 'virtio-non-transitional' : '',
    BlockIO: null,
    FilesystemOverhead: null,
    Capacity: null,
    Shareable: null,
  };
}
