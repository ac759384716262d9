/**
 * The areas that this version does not have. A VMI that needs one gets an error that names it; every other
 * VMI is served as if the area were there and idle.
 */
import { readFileSync } from 'node:fs';
import type { Vmi } from '../api/vmi.js';
import type {
  DownwardMetrics,
  Hypervisor,
  LauncherFacts,
  MigrationProxy,
  NodeHooks,
} from '../reconcile/ports.js';
import type { BackupTrackers } from '../reconcile/status/pass.js';

/** Thrown for a VMI that asks for what this version does not do. */
export class NotSupported extends Error {
  override readonly name = 'NotSupported';
  constructor(what: string) {
    super(`${what} is not supported by this version`);
  }
}

/** Locked memory, pinning and real-time scheduling. */
export class NoTuning implements Hypervisor {
  async adjustResources(vmi: Vmi): Promise<void> {
    const { devices, launchSecurity, cpu } = vmi.spec.domain;
    const vfio =
      (devices.hostDevices?.length ?? 0) > 0 ||
      (devices.gpus?.length ?? 0) > 0 ||
      (devices.interfaces ?? []).some((iface) => iface.sriov !== undefined);
    if (vfio || launchSecurity !== undefined || cpu?.realtime !== undefined) {
      throw new NotSupported('a VMI that needs locked memory');
    }
  }

  async handleHousekeeping(vmi: Vmi): Promise<void> {
    const { cpu } = vmi.spec.domain;
    if (cpu?.dedicatedCpuPlacement === true && cpu.isolateEmulatorThread === true) {
      throw new NotSupported('isolateEmulatorThread');
    }
  }
}

export class NoDownwardMetrics implements DownwardMetrics {
  async startServer(vmi: Vmi): Promise<void> {
    if (vmi.spec.domain.devices.downwardMetrics !== undefined)
      throw new NotSupported('a downwardMetrics device');
  }

  stopServer(): void {}
}

export class NoMigrationProxy implements MigrationProxy {
  stopTargetListener(): void {}
  stopSourceListener(): void {}
}

export class NoNodeHooks implements NodeHooks {
  readonly present = false;
  async call(): Promise<void> {}
}

export class NoBackupTrackers implements BackupTrackers {
  list(): readonly [] {
    return [];
  }

  async requireRedefinition(): Promise<void> {}
}

/** What can be known of a launcher's pod without the helper's eyes. */
export class HostFacts implements LauncherFacts {
  readonly #selinux: boolean;

  constructor() {
    this.#selinux = hasSelinuxLabel();
  }

  /** "none" where SELinux is not active; otherwise unknown, and the status field stays as it is. */
  async selinuxContext(): Promise<string | undefined> {
    return this.#selinux ? undefined : 'none';
  }

  async isoSize(): Promise<number | undefined> {
    return undefined;
  }
}

/** selinuxfs may be there on a kernel that labels nothing, so the own label decides. */
function hasSelinuxLabel(): boolean {
  try {
    readFileSync('/sys/fs/selinux/enforce');
    return readFileSync('/proc/self/attr/current', 'utf8').replace(/[\0\n]+$/, '') !== '';
  } catch {
    return false; // no selinuxfs, or EINVAL/EOPNOTSUPP for the label: not active
  }
}
