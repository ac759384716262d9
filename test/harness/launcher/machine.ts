/** A machine as libvirt would show one domain: what the launcher drives, real or not. */
import type { DomainState, LifecycleEvent } from './libvirt.js';
import type { DiskError } from './notifications.js';

export interface MachineDisk {
  readonly volume: string;
  readonly path: string;
  readonly device: 'disk' | 'cdrom';
  /** `virtio`, `sata` or `scsi`; whatever else is treated as virtio. */
  readonly bus: string;
  /** Of a claim or host disk; images of container disks are read-only. */
  readonly writable?: boolean;
  readonly bootOrder?: number | undefined;
  /** Plugged while the machine ran: a file or a block device that the guest may write to. */
  readonly plugged?: 'file' | 'block';
}

export interface MachineNic {
  readonly network: string;
  readonly tap: string;
  readonly mac: string;
  readonly mtu: number;
  readonly model: string;
  readonly bootOrder?: number | undefined;
}

export interface MachineConfig {
  /** `<namespace>_<name>`. */
  readonly name: string;
  readonly uuid: string;
  readonly memoryMiB: number;
  readonly cpus: number;
  /** CPUs of the emulator's threads; undefined: not pinned. */
  readonly emulatorPin?: string;
  readonly acpi: boolean;
  readonly disks: readonly MachineDisk[];
  readonly nics: readonly MachineNic[];
  /** Networks whose SR-IOV device it has; there is no device behind. */
  readonly sriovNetworks?: readonly string[];
  /** Directory of the pid file; the machine's own sockets go there too. */
  readonly runDirectory: string;
  /** Directory of `virt-serial0`, `virt-serial0-log` and `virt-vnc`. */
  readonly consoleDirectory: string;
}

/** Answer of a QMP-like query that the launcher passes on. */
export interface MachineStats {
  readonly vcpuTimeNs: readonly bigint[];
}

/**
 * Commands resolve when the machine has accepted them and reject with a LibvirtError. Events come in
 * libvirt's order, after the state that they tell of.
 */
export interface Machine {
  /** Name of the machine type as QEMU resolved it, e.g. `pc-q35-7.2`. */
  readonly machineType: string;
  state(): DomainState;
  /** Disks whose errors paused it. */
  diskErrors(): readonly DiskError[];
  /** Process of the emulator, in the launcher's PID namespace; undefined when none runs. */
  readonly pid: number | undefined;
  start(config: MachineConfig, paused: boolean): Promise<void>;
  suspend(): Promise<void>;
  resume(): Promise<void>;
  /** Gives it a `plugged` disk while it runs. */
  plugDisk(disk: MachineDisk): Promise<void>;
  /** Resolves when the machine has closed it. */
  unplugDisk(disk: MachineDisk): Promise<void>;
  /** What it has from now on, plugged and unplugged while it runs. */
  setNics(nics: readonly MachineNic[]): Promise<void>;
  /** Presses the power button. */
  shutdown(): Promise<void>;
  /** Ends the machine; `graceful`: SIGTERM only. */
  destroy(): Promise<void>;
  reset(): Promise<void>;
  reboot(): Promise<void>;
  stats(): Promise<MachineStats>;
}

/** `undefined`: something other than the life cycle may have changed (the guest agent's channel). */
export type MachineListener = (event: LifecycleEvent | undefined) => void;
