import type { BackupMetadata, Domain } from '../../api/domain.js';
import type { VmiStatus } from '../../api/vmi.js';
import { parseJson } from '../../json/lossless.js';
import { instant } from '../time.js';

type ChangedBlockTracking = NonNullable<VmiStatus['changedBlockTracking']>;
type BackupStatus = NonNullable<ChangedBlockTracking['backupStatus']> & { quiesceStatus?: string };
type BackupVolume = NonNullable<BackupStatus['volumes']>[number];

const maxVolumesBytes = 256 * 1024;

/** What the launcher tells about the backup that the status is about, and about no other. */
export function backupStatus(
  tracking: VmiStatus['changedBlockTracking'],
  domain: Domain | undefined,
): VmiStatus['changedBlockTracking'] {
  const metadata = domain?.Spec.Metadata?.KubeVirt?.Backup;
  const status: BackupStatus | undefined = tracking?.backupStatus;
  if (metadata === undefined || tracking === undefined || !status) return tracking;
  if (!isSameBackup(status, metadata)) return tracking;
  const volumes = parseVolumes(metadata.Volumes);
  const next: BackupStatus = {
    ...status,
    ...(metadata.StartTimestamp && { startTimestamp: metadata.StartTimestamp }),
    ...(metadata.EndTimestamp && { endTimestamp: metadata.EndTimestamp }),
    ...(metadata.BackupMsg && { backupMsg: metadata.BackupMsg }),
    ...(metadata.CheckpointName && { checkpointName: metadata.CheckpointName }),
    ...(metadata.QuiesceStatus && { quiesceStatus: metadata.QuiesceStatus }),
    ...(volumes.length > 0 && { volumes }),
  };
  setFlag(next, 'completed', metadata.Completed);
  setFlag(next, 'failed', metadata.Failed);
  return { ...tracking, backupStatus: next };
}

function isSameBackup(status: BackupStatus, metadata: BackupMetadata): boolean {
  return (
    (status.backupName ?? '') === metadata.Name &&
    instant(status.startTimestamp) === instant(metadata.StartTimestamp)
  );
}

function setFlag(status: BackupStatus, key: 'completed' | 'failed', value: boolean | undefined): void {
  if (value) status[key] = true;
  else delete status[key];
}

/** Empty for text that is not a list of volumes. */
function parseVolumes(text: string | undefined): BackupVolume[] {
  if (!text) return [];
  let list: unknown;
  try {
    list = parseJson(text, maxVolumesBytes);
  } catch {
    // The launcher's list is optional; a broken one says as much as none.
    return [];
  }
  return Array.isArray(list) && list.every(isVolume) ? list : [];
}

function isVolume(value: unknown): value is BackupVolume {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.values(value).every((field) => typeof field === 'string')
  );
}
