/** Checks of requests about volumes that hold disk images. */
import type {
  ClaimVolumeDirectoryRequest,
  EnsureHostDiskRequest,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { Check, PodRef } from './check.js';
import { bigintField, dnsLabelField, fileNameField, integerField } from './fields.js';
import { parsePodRef, podRefWords } from './requests.js';

/** Bytes. */
const maxDiskBytes = 1n << 60n;

export interface HostDisk extends PodRef {
  readonly volume: string;
  /** Empty: the volume's directory itself. */
  readonly fileName: string;
  /** Bytes. */
  readonly capacity: bigint;
  /** Percent. */
  readonly tolerance: number;
  /** Bytes. */
  readonly reserve: bigint;
}

export const ensureHostDisk: Check<EnsureHostDiskRequest, HostDisk> = {
  words: () => [
    ...podRefWords,
    'volume is a DNS label; file_name is one path element or empty',
    'capacity_bytes and reserve_bytes are at most 2^60, tolerance_percent at most 100',
    'the volume is a mount of its own below vmi-disks; what stands at file_name is a regular file of it, no link',
  ],
  parse: (_policy, request) => ({
    ...parsePodRef(request.pod),
    volume: dnsLabelField('volume', request.volume),
    fileName: request.fileName === '' ? '' : fileNameField('file_name', request.fileName),
    capacity: bigintField('capacity_bytes', request.capacityBytes, 0n, maxDiskBytes),
    tolerance: integerField('tolerance_percent', request.tolerancePercent, 0, 100),
    reserve: bigintField('reserve_bytes', request.reserveBytes, 0n, maxDiskBytes),
  }),
  audited: ({ volume, fileName, capacity }) => ({ volume, fileName, capacity: String(capacity) }),
};

export interface Volume extends PodRef {
  readonly volume: string;
}

export const claimVolumeDirectory: Check<ClaimVolumeDirectoryRequest, Volume> = {
  words: () => [
    ...podRefWords,
    'volume is a DNS label',
    "the directory is a mount of its own below vmi-disks and the root of a mount in kubelet's directory of the pod",
  ],
  parse: (_policy, request) => ({
    ...parsePodRef(request.pod),
    volume: dnsLabelField('volume', request.volume),
  }),
  audited: ({ volume }) => ({ volume }),
};
