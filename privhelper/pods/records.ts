/**
 * Records of container-disk mounts, one file for each VMI, in the form of KubeVirt's own (KubeVirt
 * pkg/virt-handler/container-disk/mount.go, pkg/checkpoint): a node can be switched from virt-handler
 * and back with its VMs running.
 */
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, normalize, relative } from 'node:path';
import { errnoOf, exhausted } from '../failure.js';
import type { PodRef } from '../policy/check.js';
import { isUuid } from '../policy/fields.js';
import type { Policy } from '../policy/policy.js';

interface RecordEntry {
  readonly targetFile: string;
  readonly socketFile: string;
}

/** Disks of one pod in one VMI's record. */
export interface NamedByRecord {
  readonly vmiUid: string;
  /** Empty for a record that names no pod. */
  readonly podUid: string;
  readonly disks: number;
}

/** virt-handler sees kubelet's pods directory here, whatever its path on the host. */
const socketBase = '/pods';
const volumeSuffix = 'volumes/kubernetes.io~empty-dir/container-disks';
const maxRecordBytes = 1 << 20;

export class MountRecords {
  /**
   * @param directory of the records; belongs to the helper
   * @param kubeletPodsDir as the host names it
   */
  constructor(
    private readonly directory: string,
    private readonly kubeletPodsDir: string,
    private readonly policy: Policy,
  ) {}

  /** What each record names; a record that cannot be parsed names no pod. */
  list(): NamedByRecord[] {
    return readdirSync(this.directory)
      .filter(isUuid)
      .flatMap((vmiUid) => {
        const disks = new Map<string, number>();
        for (const { targetFile } of this.read(vmiUid) ?? []) {
          const [podUid = ''] = relative(this.kubeletPodsDir, targetFile).split('/', 1);
          const named = isUuid(podUid) ? podUid : '';
          disks.set(named, (disks.get(named) ?? 0) + 1);
        }
        if (disks.size === 0) disks.set('', 0);
        return [...disks].map(([podUid, count]) => ({ vmiUid, podUid, disks: count }));
      });
  }

  /** Makes sure, before the mount, that the record names the disk. Outlives the helper when it returns. */
  add(pod: PodRef, volumeIndex: number): void {
    const entries = this.read(pod.vmiUid) ?? [];
    const entry = this.entry(pod.podUid, volumeIndex);
    if (entries.some(({ targetFile }) => targetFile === entry.targetFile)) return;
    if (entries.length >= this.policy.maxMountsPerVmi) {
      throw exhausted('record mount', `VMI ${pod.vmiUid} has ${entries.length} container disks recorded`);
    }
    this.write(pod.vmiUid, [...entries, entry]);
  }

  /**
   * True when the VMI's record names the pod. A record that cannot be parsed counts as naming it: that
   * there is one says that something was mounted, and the pod itself tells what.
   */
  names(pod: PodRef): boolean {
    if (!existsSync(this.path(pod.vmiUid))) return false;
    const entries = this.read(pod.vmiUid);
    return entries === undefined || entries.some((entry) => this.isIn(entry, pod.podUid));
  }

  /** Takes the pod out of the VMI's record; the record goes with its last entry. True when it changed. */
  remove(pod: PodRef): boolean {
    if (!this.names(pod)) return false;
    const others = (this.read(pod.vmiUid) ?? []).filter((entry) => !this.isIn(entry, pod.podUid));
    if (others.length > 0) this.write(pod.vmiUid, others);
    else unlinkSync(this.path(pod.vmiUid));
    return true;
  }

  private entry(podUid: string, volumeIndex: number): RecordEntry {
    return {
      targetFile: join(this.kubeletPodsDir, podUid, volumeSuffix, `disk_${volumeIndex}.img`),
      socketFile: join(socketBase, podUid, volumeSuffix, `disk_${volumeIndex}.sock`),
    };
  }

  private isIn(entry: RecordEntry, podUid: string): boolean {
    return normalize(entry.targetFile).startsWith(`${join(this.kubeletPodsDir, podUid)}/`);
  }

  private path(vmiUid: string): string {
    return join(this.directory, vmiUid);
  }

  /** Undefined when there is no record or when it cannot be parsed. Other errors are thrown. */
  private read(vmiUid: string): RecordEntry[] | undefined {
    let fd: number;
    try {
      fd = openSync(this.path(vmiUid), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
    try {
      const { size } = fstatSync(fd);
      return size > maxRecordBytes ? undefined : parseRecord(readFileSync(fd, 'utf8'));
    } finally {
      closeSync(fd);
    }
  }

  /** Not synced to the disk: what ends the host ends its mounts, and a torn record blocks nothing. */
  private write(vmiUid: string, entries: readonly RecordEntry[]): void {
    const temporary = join(this.directory, `.${vmiUid}.tmp`);
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW;
    const fd = openSync(temporary, flags, 0o600);
    try {
      writeFileSync(fd, JSON.stringify({ mountTargetEntries: entries, usesSafePaths: true }));
    } finally {
      closeSync(fd);
    }
    renameSync(temporary, this.path(vmiUid));
  }
}

function parseRecord(text: string): RecordEntry[] | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null || !('mountTargetEntries' in value)) return undefined;
  const entries = value.mountTargetEntries ?? [];
  return Array.isArray(entries) && entries.every(isEntry) ? entries : undefined;
}

function isEntry(value: unknown): value is RecordEntry {
  return (
    typeof value === 'object' &&
    value !== null &&
    'targetFile' in value &&
    typeof value.targetFile === 'string' &&
    'socketFile' in value &&
    typeof value.socketFile === 'string'
  );
}
