/**
 * Records of mounts, one file for each VMI, in the form of KubeVirt's own (KubeVirt pkg/checkpoint): a node can be
 * switched from virt-handler and back with its VMs running.
 */
import { existsSync, readdirSync, unlinkSync } from 'node:fs';
import { join, relative } from 'node:path';
import { isUuid } from '../policy/fields.js';
import { readStateFile, replaceStateFile } from './state-file.js';

export interface RecordEntry {
  readonly targetFile: string;
}

const maxRecordBytes = 1 << 20;

export class RecordFiles<Entry extends RecordEntry> {
  /** @param directory of the records; belongs to the helper */
  constructor(
    private readonly directory: string,
    private readonly isEntry: (value: RecordEntry) => value is Entry,
  ) {}

  /** UIDs of the VMIs that have a record. */
  vmiUids(): string[] {
    return readdirSync(this.directory).filter(isUuid);
  }

  /** True also for a record that cannot be parsed. */
  exists(vmiUid: string): boolean {
    return existsSync(this.path(vmiUid));
  }

  /** Undefined when there is no record or when it cannot be parsed. Other errors are thrown. */
  read(vmiUid: string): Entry[] | undefined {
    const text = readStateFile(this.path(vmiUid), maxRecordBytes);
    return text === undefined ? undefined : this.parse(text);
  }

  write(vmiUid: string, entries: readonly Entry[]): void {
    const text = JSON.stringify({ mountTargetEntries: entries, usesSafePaths: true });
    replaceStateFile(this.directory, vmiUid, text);
  }

  /** A record without entries goes. */
  writeOrRemove(vmiUid: string, entries: readonly Entry[]): void {
    if (entries.length > 0) this.write(vmiUid, entries);
    else unlinkSync(this.path(vmiUid));
  }

  private path(vmiUid: string): string {
    return join(this.directory, vmiUid);
  }

  private parse(text: string): Entry[] | undefined {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      return undefined;
    }
    if (typeof value !== 'object' || value === null || !('mountTargetEntries' in value)) return undefined;
    const entries = value.mountTargetEntries ?? [];
    const valid = (each: unknown): each is Entry => isRecordEntry(each) && this.isEntry(each);
    return Array.isArray(entries) && entries.every(valid) ? entries : undefined;
  }
}

function isRecordEntry(value: unknown): value is RecordEntry {
  return (
    typeof value === 'object' &&
    value !== null &&
    'targetFile' in value &&
    typeof value.targetFile === 'string'
  );
}

/** Disks of one pod in one VMI's record; kernel boot counts as one. */
export interface NamedByRecord {
  readonly vmiUid: string;
  /** Empty for a record that names no pod. */
  readonly podUid: string;
  readonly disks: number;
}

/** What each record names; a record that cannot be parsed names no pod. */
export function namedBy(files: RecordFiles<RecordEntry>, kubeletPodsDir: string): NamedByRecord[] {
  return files.vmiUids().flatMap((vmiUid) => {
    const pods = new Map<string, number>();
    for (const { targetFile } of files.read(vmiUid) ?? []) {
      const [podUid = ''] = relative(kubeletPodsDir, targetFile).split('/', 1);
      const named = isUuid(podUid) ? podUid : '';
      pods.set(named, (pods.get(named) ?? 0) + 1);
    }
    if (pods.size === 0) pods.set('', 0);
    return [...pods].map(([podUid, disks]) => ({ vmiUid, podUid, disks }));
  });
}
