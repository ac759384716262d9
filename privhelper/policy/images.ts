/** Checks of requests about disk images. */
import type {
  CloudInitIso,
  MountContainerDisksRequest,
  OpenContainerDiskRequest,
  StatContainerDisksRequest,
  StatIsoRequest,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { ImageMount, VolumeEntry } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { Check, PodRef } from './check.js';
import {
  dnsLabelField,
  dnsSubdomainField,
  imagePathField,
  integerField,
  listField,
  Unique,
} from './fields.js';
import type { Policy } from './policy.js';
import { parsePodRef, podRefWords } from './requests.js';
import { entryText } from './sockets.js';

/** Kernel and initrd. */
const maxKernelArtifacts = 2;

const imagePathWords = ({ maxImagePathBytes }: Policy) =>
  `image_path has at most ${maxImagePathBytes} bytes and no NUL; it is resolved inside the image only, to a regular file`;

function parseVolumeIndex(field: string, policy: Policy, value: number): number {
  return integerField(field, value, 0, policy.maxVolumeIndex);
}

function parseImagePath(field: string, policy: Policy, value: string): string {
  return imagePathField(field, value, policy.maxImagePathBytes);
}

/** One of several things that are asked for, and the field of the request that names it. */
export interface InField {
  readonly field: string;
}

export interface ImageContainer extends InField {
  /** Null for the kernel-boot container. */
  readonly volumeIndex: number | null;
}

export interface ImageContainers extends PodRef {
  readonly containers: readonly ImageContainer[];
}

export const statContainerDisks: Check<StatContainerDisksRequest, ImageContainers> = {
  words: ({ maxVolumeIndex }) => [
    ...podRefWords,
    `at most ${maxVolumeIndex + 1} volume_indexes, each at most ${maxVolumeIndex}, none twice; at least one container is named`,
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const unique = new Unique();
    const indexes = listField('volume_indexes', request.volumeIndexes, policy.maxVolumeIndex + 1);
    const containers: ImageContainer[] = indexes.map((index, i) => {
      const field = `volume_indexes[${i}]`;
      unique.add(field, index);
      return { field, volumeIndex: parseVolumeIndex(field, policy, index) };
    });
    if (request.kernelBoot) containers.push({ field: 'kernel_boot', volumeIndex: null });
    if (containers.length === 0) throw malformed('volume_indexes', 'no container is named');
    return { ...pod, containers };
  },
  audited: ({ containers }) => ({
    containers: containers.map(({ volumeIndex }) => containerText(volumeIndex)),
  }),
};

export interface ImageMounts extends PodRef {
  readonly images: readonly (ImageMount & InField)[];
}

export const mountContainerDisks: Check<MountContainerDisksRequest, ImageMounts> = {
  words: (policy) => [
    ...podRefWords,
    `at most ${policy.maxMountsPerVmi} disks and ${maxKernelArtifacts} kernel_artifacts, at least one of them; volume_index is at most ${policy.maxVolumeIndex}, none twice`,
    imagePathWords(policy),
    'so is a kernel artifact; its last element, which names the mount point, is neither empty nor . or .., none twice',
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const indexes = new Unique();
    const disks = listField('disks', request.disks, policy.maxMountsPerVmi).map((disk, i) => {
      const field = `disks[${i}]`;
      const index = parseVolumeIndex(`${field}.volume_index`, policy, disk.volumeIndex);
      indexes.add(`${field}.volume_index`, index);
      return {
        field,
        index,
        imagePath: parseImagePath(`${field}.image_path`, policy, disk.imagePath),
        name: '',
      };
    });
    const names = new Unique();
    const artifacts = listField('kernel_artifacts', request.kernelArtifacts, maxKernelArtifacts).map(
      (path, i) => {
        const field = `kernel_artifacts[${i}]`;
        const imagePath = parseImagePath(field, policy, path);
        const name = imagePath.slice(imagePath.lastIndexOf('/') + 1);
        if (name === '' || name === '.' || name === '..') throw malformed(field, 'names no file');
        names.add(field, name);
        return { field, index: null, imagePath, name };
      },
    );
    const images = [...disks, ...artifacts];
    if (images.length === 0) throw malformed('disks', 'no image is named');
    return { ...pod, images };
  },
  audited: ({ images }) => ({
    images: images.map(({ index, imagePath }) => ({ container: containerText(index), imagePath })),
  }),
};

const containerText = (volumeIndex: number | null) => volumeIndex ?? 'kernel-boot';

export interface ImageRef extends PodRef {
  /** Null for the kernel-boot container. */
  readonly volumeIndex: number | null;
  readonly imagePath: string;
}

function parseContainer(policy: Policy, container: OpenContainerDiskRequest['container']): number | null {
  switch (container.case) {
    case 'volumeIndex':
      return parseVolumeIndex('volume_index', policy, container.value);
    case 'kernelBoot':
      return null;
    default:
      throw malformed('container', 'missing');
  }
}

export const openContainerDisk: Check<OpenContainerDiskRequest, ImageRef> = {
  words: (policy) => [
    ...podRefWords,
    `volume_index is at most ${policy.maxVolumeIndex}, or the kernel-boot container is named, with an image_path`,
    imagePathWords(policy),
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const volumeIndex = parseContainer(policy, request.container);
    const imagePath = parseImagePath('image_path', policy, request.imagePath);
    if (volumeIndex === null && imagePath === '') throw malformed('image_path', 'missing');
    return { ...pod, volumeIndex, imagePath };
  },
  audited: ({ volumeIndex, imagePath }) => ({ container: containerText(volumeIndex), imagePath }),
};

export interface IsoRef extends PodRef {
  readonly entry: VolumeEntry;
}

function cloudInitIso(field: string, { namespace, vmiName }: CloudInitIso, name: string): VolumeEntry {
  const directories = [
    dnsLabelField(`${field}.namespace`, namespace),
    dnsSubdomainField(`${field}.vmi_name`, vmiName),
  ];
  return { volume: 'ephemeral-disks', path: ['cloud-init-data', ...directories, name] };
}

function volumeIso(field: string, directory: string, volumeName: string): VolumeEntry {
  return { volume: 'private', path: [directory, `${dnsLabelField(field, volumeName)}.iso`] };
}

function isoEntry(iso: StatIsoRequest['iso']): VolumeEntry {
  switch (iso.case) {
    case 'cloudInitNoCloud':
      return cloudInitIso('cloud_init_no_cloud', iso.value, 'noCloud.iso');
    case 'cloudInitConfigDrive':
      return cloudInitIso('cloud_init_config_drive', iso.value, 'configdrive.iso');
    case 'configMapVolume':
      return volumeIso('config_map_volume', 'config-map-disks', iso.value);
    case 'downwardApiVolume':
      return volumeIso('downward_api_volume', 'downwardapi-disks', iso.value);
    case 'secretVolume':
      return volumeIso('secret_volume', 'secret-disks', iso.value);
    case 'sysprepVolume':
      return volumeIso('sysprep_volume', 'sysprep-disks', iso.value);
    case 'serviceAccount':
      return { volume: 'private', path: ['service-account-disk', 'service-account.iso'] };
    default:
      throw malformed('iso', 'missing');
  }
}

export const statIso: Check<StatIsoRequest, IsoRef> = {
  words: () => [
    ...podRefWords,
    'namespace and volume names are DNS labels, the name of the VMI is a DNS subdomain',
    'below the volume nothing is a link or a mount, and the image is a regular file',
  ],
  parse: (_policy, request) => ({ ...parsePodRef(request.pod), entry: isoEntry(request.iso) }),
  audited: ({ entry }) => ({ iso: entryText(entry) }),
};
