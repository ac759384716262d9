/** Records of hot-plugged volumes (KubeVirt pkg/virt-handler/hotplug-disk/mount.go). */
import { join, relative } from 'node:path';
import { exhausted } from '../failure.js';
import type { PodRef } from '../policy/check.js';
import { isDnsLabel, isUuid } from '../policy/fields.js';
import type { Policy } from '../policy/policy.js';
import { type NamedByRecord, namedBy, type RecordEntry, RecordFiles } from './record-files.js';

const volumeSuffix = 'volumes/kubernetes.io~empty-dir/hotplug-disks';

/**
 * What the records say, by the names of entries in a pod's hotplug-disks: `<volume>.img` for a disk, `<volume>` for a
 * directory or a device. A path that is not such an entry's is nobody's, and stays until its record goes.
 */
export class HotplugRecords {
  private readonly files: RecordFiles<RecordEntry>;

  /**
   * @param directory of the records; belongs to the helper
   * @param kubeletPodsDir as the host names it
   */
  constructor(
    directory: string,
    private readonly kubeletPodsDir: string,
    private readonly policy: Policy,
  ) {
    this.files = new RecordFiles(directory, (_entry): _entry is RecordEntry => true);
  }

  list(): NamedByRecord[] {
    return namedBy(this.files, this.kubeletPodsDir);
  }

  /** Entries of the pod, in the order in which they were plugged; undefined when the record cannot be parsed. */
  entries(pod: PodRef): string[] | undefined {
    const entries = this.files.read(pod.vmiUid);
    if (entries === undefined) return this.files.exists(pod.vmiUid) ? undefined : [];
    return entries.flatMap((entry) => this.nameIn(pod.podUid, entry) ?? []);
  }

  /** True when the VMI's record names the pod, or cannot be parsed. */
  names(pod: PodRef): boolean {
    const entries = this.entries(pod);
    return entries === undefined || entries.length > 0;
  }

  /** Makes sure, before it is plugged, that the record names the entry. False when it did already. */
  add(pod: PodRef, name: string): boolean {
    const entries = this.files.read(pod.vmiUid) ?? [];
    if (entries.some((entry) => this.nameIn(pod.podUid, entry) === name)) return false;
    if (entries.length >= this.policy.maxMountsPerVmi) {
      throw exhausted(
        'record volume',
        `VMI ${pod.vmiUid} has ${entries.length} hot-plugged volumes recorded`,
      );
    }
    this.files.write(pod.vmiUid, [...entries, this.entry(pod.podUid, name)]);
    return true;
  }

  /** Replaces a record that cannot be parsed by what is plugged. */
  rebuild(pod: PodRef, names: readonly string[]): void {
    this.files.write(
      pod.vmiUid,
      names.map((name) => this.entry(pod.podUid, name)),
    );
  }

  /** Takes the entry out; the record goes with its last one. False when there was none. */
  remove(pod: PodRef, name: string): boolean {
    const entries = this.files.read(pod.vmiUid) ?? [];
    const others = entries.filter((entry) => this.nameIn(pod.podUid, entry) !== name);
    if (others.length === entries.length) return false;
    this.files.writeOrRemove(pod.vmiUid, others);
    return true;
  }

  /** Takes the whole pod out; what is nobody's goes with the last one. False when there is no record. */
  removePod(pod: PodRef): boolean {
    if (!this.files.exists(pod.vmiUid)) return false;
    const others = (this.files.read(pod.vmiUid) ?? []).filter(
      (entry) => (this.parse(entry)?.podUid ?? pod.podUid) !== pod.podUid,
    );
    this.files.writeOrRemove(pod.vmiUid, others);
    return true;
  }

  private entry(podUid: string, name: string): RecordEntry {
    return { targetFile: join(this.kubeletPodsDir, podUid, volumeSuffix, name) };
  }

  private nameIn(podUid: string, entry: RecordEntry): string | undefined {
    const parsed = this.parse(entry);
    return parsed?.podUid === podUid ? parsed.name : undefined;
  }

  private parse({ targetFile }: RecordEntry): { podUid: string; name: string } | undefined {
    const [podUid = '', ...rest] = relative(this.kubeletPodsDir, targetFile).split('/');
    const name = rest.at(-1) ?? '';
    const valid = isUuid(podUid) && isPlugName(name) && targetFile === this.entry(podUid, name).targetFile;
    return valid ? { podUid, name } : undefined;
  }
}

/** `<volume>.img` or `<volume>`. */
function isPlugName(name: string): boolean {
  return isDnsLabel(name.endsWith('.img') ? name.slice(0, -4) : name);
}
