/** The agent's ownership step on a helper that runs, and what it is about. */
import { lstatSync, readFileSync } from 'node:fs';
import { type DeviceOwnershipOptions, HelperDeviceOwnership } from '../../agent/devices/ownership.js';
import { DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { Pod } from '../harness/pods/pod.js';
import { silentLog } from '../unit/status/fakes.js';
import type { HelperProcess } from './privhelper-fixture.js';

export interface OwnershipRun {
  readonly ownership: HelperDeviceOwnership;
  readonly events: string[];
  readonly lines: string[];
}

export function ownershipOf(
  helper: HelperProcess,
  pod: Pod,
  config: Partial<ReturnType<DeviceOwnershipOptions['config']>> = {},
): OwnershipRun {
  const events: string[] = [];
  const lines: string[] = [];
  const ownership = new HelperDeviceOwnership({
    pods: { find: async () => ({ podUid: pod.uid, vmiUid: pod.vmiUid }) },
    config: () => ({
      useEmulation: true,
      hypervisor: 'kvm',
      pvcTolerateLessSpaceUpToPercent: 10,
      minimumReservePvcBytes: 131072,
      ...config,
    }),
    events: { event: (_vmi, type, reason, message) => events.push(`${type} ${reason} ${message}`) },
    clock: { now: () => 0 },
    log: silentLog(lines),
    helper: {
      claimDevices: (request) => helper.client(DeviceService).claim(request),
      ensureHostDisk: (request) => helper.client(StorageService).ensureHostDisk(request),
      claimVolumeDirectory: async (ref, volume) =>
        (await helper.client(StorageService).claimVolumeDirectory({ pod: ref, volume })).outcome,
      claimVirtiofs: async (ref, filesystem) =>
        (await helper.client(SocketService).claimVirtiofs({ pod: ref, filesystem })).outcome,
    },
  });
  return { ownership, events, lines };
}

/** What changing an owner or a mode, or writing, would show. */
export function facts(path: string) {
  const { uid, gid, mode, size, ino, ctimeNs } = lstatSync(path, { bigint: true });
  return { uid, gid, mode, size, ino, ctimeNs };
}

export function owner(path: string): string {
  const { uid, gid } = lstatSync(path);
  return `${uid}:${gid}`;
}

export function content(path: string): string {
  return readFileSync(path, 'utf8');
}
