/**
 * The areas that this version does not have. A VMI that needs one gets an error that names it; every other
 * VMI is served as if the area were there and idle.
 */
import type { Vmi } from '../api/vmi.js';
import type { DownwardMetrics, MigrationProxy, NodeHooks } from '../reconcile/ports.js';
import type { BackupTrackers } from '../reconcile/status/pass.js';

/** Thrown for a VMI that asks for what this version does not do. */
class NotSupported extends Error {
  override readonly name = 'NotSupported';
  constructor(what: string) {
    super(`${what} is not supported by this version`);
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
