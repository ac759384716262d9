/** Command line of the launcher and its monitor: the real one's flags that matter here, and the harness's. */
import { parseArgs } from 'node:util';
import { type Faults, noFaults } from './faults.js';

export interface LauncherFlags {
  readonly name: string;
  readonly namespace: string;
  readonly uid: string;
  readonly shareDirectory: string;
  readonly containerDiskDirectory: string;
  readonly qemuTimeoutMs: number;
  readonly gracePeriodMs: number;
  readonly simulateCrash: boolean;
  /** `qemu`, or `fake`: a machine without an emulator. */
  readonly machine: 'qemu' | 'fake';
  readonly obeyAcpi: boolean;
  readonly lateMetadata: boolean;
  readonly faults: Faults;
}

/** Milliseconds of a Go duration in seconds (`240s`). */
function milliseconds(text: string): number {
  const value = Number(text.replace(/s$/, ''));
  if (!Number.isFinite(value)) throw new Error(`not a duration: ${text}`);
  return value * 1000;
}

export function parseFlags(args: readonly string[]): LauncherFlags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      name: { type: 'string', default: '' },
      namespace: { type: 'string', default: '' },
      uid: { type: 'string', default: '' },
      'kubevirt-share-dir': { type: 'string', default: '/var/run/kubevirt' },
      'container-disk-dir': { type: 'string', default: '/var/run/kubevirt/container-disks' },
      'qemu-timeout': { type: 'string', default: '300s' },
      'grace-period-seconds': { type: 'string', default: '45' },
      'run-as-nonroot': { type: 'boolean', default: false },
      'allow-emulation': { type: 'boolean', default: false },
      'simulate-crash': { type: 'boolean', default: false },
      machine: { type: 'string', default: 'qemu' },
      'ignore-acpi': { type: 'boolean', default: false },
      'late-metadata': { type: 'boolean', default: false },
      'fault-hang': { type: 'boolean', default: false },
      'fault-slow-sync': { type: 'string', default: '0s' },
      'fault-hold-nics': { type: 'boolean', default: false },
      'fault-host-devices': { type: 'string', default: '0' },
      'fault-version': { type: 'string', default: '' },
    },
  });
  return {
    name: values.name,
    namespace: values.namespace,
    uid: values.uid,
    shareDirectory: values['kubevirt-share-dir'],
    containerDiskDirectory: values['container-disk-dir'],
    qemuTimeoutMs: milliseconds(values['qemu-timeout']),
    gracePeriodMs: milliseconds(values['grace-period-seconds']),
    simulateCrash: values['simulate-crash'],
    machine: values.machine === 'fake' ? 'fake' : 'qemu',
    obeyAcpi: !values['ignore-acpi'],
    lateMetadata: values['late-metadata'],
    faults: {
      ...noFaults,
      hang: values['fault-hang'],
      slowSyncMs: milliseconds(values['fault-slow-sync']),
      holdNics: values['fault-hold-nics'],
      hostDeviceFailures: Number(values['fault-host-devices']),
      cmdVersions:
        values['fault-version'] === ''
          ? noFaults.cmdVersions
          : values['fault-version'].split(',').map(Number),
    },
  };
}
