/**
 * Which block devices the helper has plugged into launcher pods: one file a pod, so that a helper that starts again
 * still allows them. What is not recorded here was made by somebody else, and no device policy allows it.
 */
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { CallFailure, exhausted } from '../failure.js';
import { isDnsLabel, isUuid } from '../policy/fields.js';
import { readStateFile, replaceStateFile } from './state-file.js';

/** Numbers of a device, as the kernel has them. */
export interface DeviceNumbers {
  readonly major: number;
  readonly minor: number;
}

export interface PluggedDevice extends DeviceNumbers {
  /** Name of the volume. */
  readonly volume: string;
}

interface RecordedDevice extends PluggedDevice {
  /** Unplugged: no policy allows it any more, the one in force may. */
  readonly leaving?: boolean;
}

/** Bits of a major and a minor number (linux/kdev_t.h). */
const majorBits = 12;
const minorBits = 20;
const maxRecordBytes = 1 << 18;

export class PluggedDevices {
  /**
   * @param directory of the records; belongs to the helper
   * @param maxDevices of one pod
   */
  constructor(
    private readonly directory: string,
    private readonly maxDevices: number,
  ) {}

  /**
   * Records the device before its node can be seen in the pod, and again when a plugged one is found: a record that
   * was lost is complete again once every volume was named. Throws RESOURCE_EXHAUSTED for one device too many.
   */
  remember(podUid: string, volume: string, { major, minor }: DeviceNumbers): void {
    const devices = this.read(podUid) ?? [];
    const known = devices.find((device) => device.volume === volume);
    if (known?.major === major && known.minor === minor && !known.leaving) return;
    const others = devices.filter((device) => device.volume !== volume);
    if (others.length >= this.maxDevices) {
      throw exhausted('record device', `pod ${podUid} has ${others.length} block devices plugged`);
    }
    this.write(podUid, [...others, { volume, major, minor }]);
  }

  /** Forgets the volume's device, which never was plugged. */
  forget(podUid: string, volume: string): void {
    this.keep(podUid, (device) => device.volume !== volume);
  }

  /** Notes that the volume's device is no longer plugged. It stays recorded until it is denied. False: it was not. */
  leave(podUid: string, volume: string): boolean {
    const devices = this.read(podUid) ?? [];
    if (!devices.some((device) => device.volume === volume && !device.leaving)) return false;
    this.write(
      podUid,
      devices.map((device) => (device.volume === volume ? { ...device, leaving: true } : device)),
    );
    return true;
  }

  /** Forgets what is no longer plugged: the policy in force denies it. */
  denied(podUid: string): void {
    this.keep(podUid, ({ leaving }) => !leaving);
  }

  /** The volume's device while it is plugged; undefined also where the record cannot be read. */
  find(podUid: string, volume: string): DeviceNumbers | undefined {
    return this.read(podUid)?.find((device) => device.volume === volume && !device.leaving);
  }

  /** Names of the volumes whose devices are plugged, or may be open to the launcher still. */
  volumes(podUid: string): ReadonlySet<string> {
    return new Set((this.read(podUid) ?? []).map(({ volume }) => volume));
  }

  /** True also for a record that cannot be read. */
  has(podUid: string): boolean {
    return existsSync(this.path(podUid));
  }

  /**
   * What is plugged. Throws when the record cannot be read: a policy that is made without it would take devices away.
   */
  list(podUid: string): readonly PluggedDevice[] {
    const devices = this.read(podUid);
    if (devices !== undefined) return devices.filter(({ leaving }) => !leaving);
    throw new CallFailure({
      code: Code.DataLoss,
      operation: 'read plugged devices',
      message: `the record of pod ${podUid} cannot be read; it is written anew when its volumes are plugged again`,
    });
  }

  /** Drops the record of a pod that is gone. */
  drop(podUid: string): void {
    rmSync(this.path(podUid), { force: true });
  }

  /** Drops the records of all pods but those that are there. */
  keepOnly(podUids: ReadonlySet<string>): void {
    for (const name of readdirSync(this.directory)) {
      if (isUuid(name) && !podUids.has(name)) this.drop(name);
    }
  }

  private path(podUid: string): string {
    return join(this.directory, podUid);
  }

  /** None where there is no record; undefined when it cannot be parsed. Other errors are thrown. */
  private read(podUid: string): RecordedDevice[] | undefined {
    const text = readStateFile(this.path(podUid), maxRecordBytes);
    return text === undefined ? [] : parseRecord(text);
  }

  private keep(podUid: string, isKept: (device: RecordedDevice) => boolean): void {
    const devices = this.read(podUid) ?? [];
    const kept = devices.filter(isKept);
    if (kept.length === devices.length) return;
    if (kept.length > 0) this.write(podUid, kept);
    else this.drop(podUid);
  }

  private write(podUid: string, devices: readonly RecordedDevice[]): void {
    replaceStateFile(this.directory, podUid, JSON.stringify({ devices }));
  }
}

function parseRecord(text: string): RecordedDevice[] | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null || !('devices' in value)) return undefined;
  const { devices } = value;
  return Array.isArray(devices) && devices.every(isDevice) ? devices : undefined;
}

function isDevice(value: unknown): value is RecordedDevice {
  return (
    typeof value === 'object' &&
    value !== null &&
    'volume' in value &&
    typeof value.volume === 'string' &&
    isDnsLabel(value.volume) &&
    'major' in value &&
    isNumber(value.major, majorBits) &&
    'minor' in value &&
    isNumber(value.minor, minorBits) &&
    (!('leaving' in value) || typeof value.leaving === 'boolean')
  );
}

function isNumber(value: unknown, bits: number): boolean {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) < 2 ** bits;
}
