/** Where a launcher has its host disks (KubeVirt pkg/host-disk). Pure. */

const disksDirectory = '/var/run/kubevirt-private/vmi-disks';

const mebibyte = 1024n * 1024n;

/** The directory of a volume in the launcher: a claim's root, or the node directory that holds a host disk. */
export function volumeDirectory(volume: string): string {
  return `${disksDirectory}/${volume}`;
}

/** Where the image of a claim is. */
export function claimImagePath(volume: string): string {
  return `${volumeDirectory(volume)}/disk.img`;
}

/** Name of the image in the volume's directory; empty when the path stands for that directory itself. */
export function imageName(hostDiskPath: string): string {
  const name = hostDiskPath.replace(/\/+$/, '').split('/').at(-1) ?? '';
  return name === '.' ? '' : name;
}

/** Whole MiB, rounded down. */
export function alignToMebibyte(bytes: bigint): bigint {
  return bytes - (bytes % mebibyte);
}
