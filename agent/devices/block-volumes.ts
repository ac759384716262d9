/** Which volumes of a VMI the launcher has as block devices. */
import type { Vmi } from '../api/vmi.js';

type Volume = NonNullable<Vmi['spec']['volumes']>[number];

/**
 * Names of the volumes whose device, if there is one, is `/dev/<name>` in the launcher (KubeVirt
 * pkg/virt-handler/cgroup generateDeviceRulesForVMI): claims that are not hotplugged, ephemeral ones, and on the node that
 * a VM leaves volumes that have been block devices there.
 */
export function blockVolumes(vmi: Vmi, host: string): string[] {
  const state = vmi.status.migrationState;
  const isSource = state === undefined || state === null || state.sourceNode === host;
  const movedBlocks = new Set(
    (isSource ? (vmi.status.migratedVolumes ?? []) : [])
      .filter(({ sourcePVCInfo }) => sourcePVCInfo?.volumeMode === 'Block')
      .map(({ volumeName }) => volumeName),
  );
  return (vmi.spec.volumes ?? [])
    .filter((volume) => !isHotpluggable(volume) && (isClaim(volume) || movedBlocks.has(volume.name)))
    .map(({ name }) => name);
}

function isClaim({ persistentVolumeClaim, dataVolume, ephemeral }: Volume): boolean {
  return [persistentVolumeClaim, dataVolume, ephemeral].some(
    (source) => source !== undefined && source !== null,
  );
}

/** The spec's own word; a volume that the status calls hot-plugged may not have it. */
export function isHotpluggable({ persistentVolumeClaim, dataVolume, memoryDump }: Volume): boolean {
  return [persistentVolumeClaim, dataVolume, memoryDump].some((source) => source?.hotpluggable === true);
}
