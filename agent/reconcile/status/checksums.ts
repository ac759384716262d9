/** Checksums of container disks and boot images, for node agents of KubeVirt 1.6 and older. */
import type { Vmi, VmiStatus } from '../../api/vmi.js';
import type { DiskChecksums } from '../ports.js';

/** A container disk is listed in the status without its checksum, or kernel or initrd lack theirs. */
export function lacksChecksums(vmi: Vmi): boolean {
  const container = vmi.spec.domain?.firmware?.kernelBoot?.container;
  const { kernelInfo, initrdInfo } = vmi.status.kernelBootStatus ?? {};
  const disks = new Set(
    (vmi.spec.volumes ?? []).flatMap(({ name, containerDisk }) => (containerDisk == null ? [] : name)),
  );
  return (
    (vmi.status.volumeStatus ?? []).some(
      ({ name, containerDiskVolume }) => disks.has(name) && !containerDiskVolume?.checksum,
    ) ||
    (!!container?.kernelPath && !kernelInfo?.checksum) ||
    (!!container?.initrdPath && !initrdInfo?.checksum)
  );
}

/** The status with those checksums; entries that it does not have are not added. */
export function withChecksums(status: VmiStatus, checksums: DiskChecksums): VmiStatus {
  const volumeStatus = status.volumeStatus?.map((entry) => {
    const checksum = checksums.containerDisks.get(entry.name);
    return checksum === undefined ? entry : { ...entry, containerDiskVolume: { checksum } };
  });
  const kernelBootStatus = {
    ...status.kernelBootStatus,
    ...(checksums.kernel !== undefined && { kernelInfo: { checksum: checksums.kernel } }),
    ...(checksums.initrd !== undefined && { initrdInfo: { checksum: checksums.initrd } }),
  };
  return {
    ...status,
    ...(volumeStatus && { volumeStatus }),
    ...(Object.keys(kernelBootStatus).length > 0 && { kernelBootStatus }),
  };
}
