/** Where a launcher keeps the ISO images that it made (KubeVirt IsoGuestVolumePath). */
import type { VmiSpec } from '../../api/vmi.js';

type Volume = NonNullable<VmiSpec['volumes']>[number];

const ephemeral = '/var/run/kubevirt-ephemeral-disks';
const generated = '/var/run/kubevirt-private';

/** Path in the launcher; undefined for a volume that is no ISO of the launcher's making. */
export function isoPath(namespace: string, vmiName: string, volume: Volume): string | undefined {
  const cloudInit = `${ephemeral}/cloud-init-data/${namespace}/${vmiName}`;
  if (volume.cloudInitNoCloud) return `${cloudInit}/noCloud.iso`;
  if (volume.cloudInitConfigDrive) return `${cloudInit}/configdrive.iso`;
  if (volume.configMap) return `${generated}/config-map-disks/${volume.name}.iso`;
  if (volume.downwardAPI) return `${generated}/downwardapi-disks/${volume.name}.iso`;
  if (volume.secret) return `${generated}/secret-disks/${volume.name}.iso`;
  if (volume.serviceAccount) return `${generated}/service-account-disk/service-account.iso`;
  if (volume.sysprep) return `${generated}/sysprep-disks/${volume.name}.iso`;
  return undefined;
}
