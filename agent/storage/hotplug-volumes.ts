/** Which volumes of a VMI are hot-plugged, and how (KubeVirt pkg/virt-handler/hotplug-disk/mount.go). Pure. */
import type { Vmi } from '../api/vmi.js';
import { isHotpluggable } from '../devices/block-volumes.js';

export type VolumeKind = 'disk' | 'directory' | 'block';

export interface HotplugVolume {
  readonly volume: string;
  readonly attachmentPodUid: string;
  readonly kind: VolumeKind;
}

export interface HotplugPlan {
  readonly volumes: readonly HotplugVolume[];
  /** Utility volumes in block mode, which no guest can use. */
  readonly skipped: readonly string[];
}

/**
 * What the spec still wants of the volumes that the status says are attached. `attachmentPodUid`: where all of them come
 * from, on the target of a migration; each from its own without one.
 */
export function hotplugPlan(vmi: Vmi, host: string, attachmentPodUid?: string): HotplugPlan {
  const wanted = volumesOfSpec(vmi);
  const volumes: HotplugVolume[] = [];
  const skipped: string[] = [];
  for (const { name, hotplugVolume } of vmi.status.volumeStatus ?? []) {
    if (hotplugVolume == null || !wanted.has(name)) continue;
    const kind = volumeKind(vmi, name, host);
    if (kind === 'block' && isUtilityVolume(vmi, name)) {
      skipped.push(name);
      continue;
    }
    const source = attachmentPodUid || hotplugVolume.attachPodUID;
    if (source) volumes.push({ volume: name, attachmentPodUid: source, kind });
  }
  return { volumes, skipped };
}

/** How each hot-plugged volume of the spec appears in the pod; what appears otherwise is not wanted there any more. */
export function wantedVolumes(vmi: Vmi, host: string): ReadonlyMap<string, VolumeKind> {
  const wanted = new Map<string, VolumeKind>();
  for (const volume of vmi.spec.volumes ?? []) {
    if (isHotpluggable(volume)) wanted.set(volume.name, volumeKind(vmi, volume.name, host));
  }
  for (const { name } of utilityVolumes(vmi)) {
    const kind = volumeKind(vmi, name, host);
    if (kind !== 'block') wanted.set(name, kind);
  }
  return wanted;
}

export function volumeKind(vmi: Vmi, volume: string, host: string): VolumeKind {
  if (isBlockVolume(vmi, volume, host)) return 'block';
  return isDirectory(vmi, volume) ? 'directory' : 'disk';
}

/** While a volume moves to another claim, source and target of the migration each have the claim of their side. */
export function isBlockVolume(vmi: Vmi, volume: string, host: string): boolean {
  const { migratedVolumes, migrationState, volumeStatus } = vmi.status;
  const migrated = migratedVolumes?.find(({ volumeName }) => volumeName === volume);
  if (migrated !== undefined) {
    const isTarget = migrationState?.targetNode === host;
    const claim = isTarget ? migrated.destinationPVCInfo : migrated.sourcePVCInfo;
    if (claim != null) return claim.volumeMode === 'Block';
  }
  const status = volumeStatus?.find(({ name }) => name === volume);
  return status?.persistentVolumeClaimInfo?.volumeMode === 'Block';
}

/** Volumes that the launcher writes files into, rather than gives to the guest. */
export function isDirectory(vmi: Vmi, volume: string): boolean {
  if (isUtilityVolume(vmi, volume)) return true;
  return (vmi.spec.volumes ?? []).some(({ name, memoryDump }) => name === volume && memoryDump != null);
}

export function volumesOfSpec(vmi: Vmi): ReadonlySet<string> {
  return new Set([...(vmi.spec.volumes ?? []), ...utilityVolumes(vmi)].map(({ name }) => name));
}

function isUtilityVolume(vmi: Vmi, volume: string): boolean {
  return utilityVolumes(vmi).some(({ name }) => name === volume);
}

function utilityVolumes(vmi: Vmi) {
  return vmi.spec.utilityVolumes ?? [];
}

/** Those in block mode that have been in the launcher at the last status write. */
export function pluggedBlockVolumes(vmi: Vmi): string[] {
  return (vmi.status.volumeStatus ?? [])
    .filter(
      ({ hotplugVolume, persistentVolumeClaimInfo, phase }) =>
        hotplugVolume != null &&
        persistentVolumeClaimInfo?.volumeMode === 'Block' &&
        (phase === 'MountedToPod' || phase === 'Ready'),
    )
    .map(({ name }) => name);
}
