/** Records of container-disk mounts (KubeVirt pkg/virt-handler/container-disk/mount.go). */
import { join, normalize } from 'node:path';
import { exhausted } from '../failure.js';
import type { PodRef } from '../policy/check.js';
import type { Policy } from '../policy/policy.js';
import { type NamedByRecord, namedBy, type RecordEntry, RecordFiles } from './record-files.js';

interface DiskEntry extends RecordEntry {
  readonly socketFile: string;
}

/** virt-handler sees kubelet's pods directory here, whatever its path on the host. */
const socketBase = '/pods';
const volumeSuffix = 'volumes/kubernetes.io~empty-dir/container-disks';

export class MountRecords {
  private readonly files: RecordFiles<DiskEntry>;

  /**
   * @param directory of the records; belongs to the helper
   * @param kubeletPodsDir as the host names it
   */
  constructor(
    directory: string,
    private readonly kubeletPodsDir: string,
    private readonly policy: Policy,
  ) {
    this.files = new RecordFiles(directory, isDiskEntry);
  }

  list(): NamedByRecord[] {
    return namedBy(this.files, this.kubeletPodsDir);
  }

  /**
   * Makes sure, before the mounts, that the record names the disks, each once, and for null the directory in which
   * kernel and initrd are mounted. Written at once or not at all; outlives the helper when it returns.
   */
  add(pod: PodRef, volumeIndexes: readonly (number | null)[]): void {
    const entries = this.files.read(pod.vmiUid) ?? [];
    const recorded = new Set(entries.map(({ targetFile }) => targetFile));
    const added = volumeIndexes
      .map((volumeIndex) => this.entry(pod.podUid, volumeIndex))
      .filter(({ targetFile }) => !recorded.has(targetFile));
    if (added.length === 0) return;
    const count = entries.length + added.length;
    if (count > this.policy.maxMountsPerVmi) {
      throw exhausted('record mount', `VMI ${pod.vmiUid} would have ${count} container disks recorded`);
    }
    this.files.write(pod.vmiUid, [...entries, ...added]);
  }

  /**
   * True when the VMI's record names the pod. A record that cannot be parsed counts as naming it: that
   * there is one says that something was mounted, and the pod itself tells what.
   */
  names(pod: PodRef): boolean {
    if (!this.files.exists(pod.vmiUid)) return false;
    const entries = this.files.read(pod.vmiUid);
    return entries === undefined || entries.some((entry) => this.isIn(entry, pod.podUid));
  }

  /** Takes the pod out of the VMI's record; the record goes with its last entry. True when it changed. */
  remove(pod: PodRef): boolean {
    if (!this.names(pod)) return false;
    const others = (this.files.read(pod.vmiUid) ?? []).filter((entry) => !this.isIn(entry, pod.podUid));
    this.files.writeOrRemove(pod.vmiUid, others);
    return true;
  }

  private entry(podUid: string, volumeIndex: number | null): DiskEntry {
    const [target, socket] =
      volumeIndex === null
        ? ['kernel-boot', 'kernel-boot.sock']
        : [`disk_${volumeIndex}.img`, `disk_${volumeIndex}.sock`];
    return {
      targetFile: join(this.kubeletPodsDir, podUid, volumeSuffix, target),
      socketFile: join(socketBase, podUid, volumeSuffix, socket),
    };
  }

  private isIn(entry: DiskEntry, podUid: string): boolean {
    return normalize(entry.targetFile).startsWith(`${join(this.kubeletPodsDir, podUid)}/`);
  }
}

function isDiskEntry(value: RecordEntry): value is DiskEntry {
  return 'socketFile' in value && typeof value.socketFile === 'string';
}
