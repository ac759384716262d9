/** Whether a VMI's volumes let it migrate, and whether their blocks must move along. */
import type { Vmi, VmiSpec } from '../../api/vmi.js';

type Volume = NonNullable<VmiSpec['volumes']>[number];

export interface VolumeMigration {
  readonly blockMigration: boolean;
  /** The first volume that is in the way. */
  readonly obstacle?: string;
}

type Verdict = 'shared' | 'local' | { readonly obstacle: string };

export function volumeMigration(vmi: Vmi): VolumeMigration {
  const migrated = new Set((vmi.status.migratedVolumes ?? []).map((volume) => volume.volumeName));
  let blockMigration = migrated.size > 0;
  for (const volume of vmi.spec.volumes ?? []) {
    const verdict = judge(vmi, volume, migrated.has(volume.name));
    if (typeof verdict === 'object') return { blockMigration: true, obstacle: verdict.obstacle };
    if (verdict === 'local') blockMigration = true;
  }
  return { blockMigration };
}

function judge(vmi: Vmi, volume: Volume, isMigrated: boolean): Verdict {
  const claimInfo = (vmi.status.volumeStatus ?? []).find(
    (status) => status.name === volume.name,
  )?.persistentVolumeClaimInfo;
  const claim = volume.persistentVolumeClaim?.claimName ?? volume.dataVolume?.name;
  if (claim !== undefined) {
    if (!claimInfo)
      return { obstacle: `cannot migrate VMI: Unable to determine if PVC ${claim} is shared, ${rule}` };
    return sharedClaim(claim, claimInfo.accessModes, isMigrated);
  }
  if (volume.hostDisk) {
    if (claimInfo) return sharedClaim(claimInfo.claimName ?? '', claimInfo.accessModes, isMigrated);
    return volume.hostDisk.shared === true
      ? 'shared'
      : { obstacle: 'cannot migrate VMI with non-shared HostDisk' };
  }
  return isReadOnlyShare(vmi, volume.name) ? 'shared' : 'local';
}

const rule = 'live migration requires that all PVCs must be shared (using ReadWriteMany access mode)';

function sharedClaim(claim: string, modes: readonly string[] | undefined, isMigrated: boolean): Verdict {
  if (isMigrated || modes?.includes('ReadWriteMany')) return 'shared';
  return { obstacle: `cannot migrate VMI: PVC ${claim} is not shared, ${rule}` };
}

/** Filesystems and read-only CD-ROMs have the same content on every node. */
function isReadOnlyShare(vmi: Vmi, name: string): boolean {
  const devices = vmi.spec.domain?.devices;
  if (devices?.filesystems?.some((filesystem) => filesystem.name === name)) return true;
  return (devices?.disks ?? []).some(
    (disk) => disk.name === name && disk.cdrom != null && disk.cdrom.readonly !== false,
  );
}
