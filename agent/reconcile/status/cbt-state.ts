/** Changed block tracking (KubeVirt pkg/virt-handler/cbt.go). */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';

/** True when tracking is being initialized and every disk that can be tracked has its data file. */
export function isTrackingInitialized(vmi: Vmi, domain: Domain | undefined): boolean {
  if (domain === undefined || vmi.status.changedBlockTracking?.state !== 'Initializing') return false;
  const tracked = new Set(
    (domain.Spec.Devices?.Disks ?? [])
      .filter((disk) => disk.Source?.DataStore != null)
      .map((disk) => disk.Alias?.Name),
  );
  return (vmi.spec.volumes ?? [])
    .filter((volume) => volume.persistentVolumeClaim || volume.dataVolume || volume.hostDisk)
    .every((volume) => tracked.has(volume.name));
}
