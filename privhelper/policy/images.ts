/** Checks of requests about disk images. */
import type {
  CloudInitIso,
  MountContainerDiskRequest,
  MountKernelArtifactRequest,
  OpenContainerDiskRequest,
  StatContainerDiskRequest,
  StatIsoRequest,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { VolumeEntry } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { Check, PodRef } from './check.js';
import { dnsLabelField, dnsSubdomainField, imagePathField, integerField } from './fields.js';
import type { Policy } from './policy.js';
import { parsePodRef, podRefWords } from './requests.js';
import { entryText } from './sockets.js';

/** A container whose image is asked for. */
export interface ImageContainer extends PodRef {
  /** Null for the kernel-boot container. */
  readonly volumeIndex: number | null;
}

export interface ImageRef extends ImageContainer {
  readonly imagePath: string;
}

const containerWords = 'volume_index is at most 999, or the kernel-boot container is named';
const imagePathWords =
  'image_path has at most 4096 bytes and no NUL; it is resolved inside the image only, to a regular file';

function parseVolumeIndex(policy: Policy, value: number): number {
  return integerField('volume_index', value, 0, policy.maxVolumeIndex);
}

function parseImagePath(policy: Policy, value: string): string {
  return imagePathField('image_path', value, policy.maxImagePathBytes);
}

function parseContainer(
  policy: Policy,
  { pod, container }: Pick<StatContainerDiskRequest, 'pod' | 'container'>,
): ImageContainer {
  const ref = parsePodRef(pod);
  switch (container.case) {
    case 'volumeIndex':
      return { ...ref, volumeIndex: parseVolumeIndex(policy, container.value) };
    case 'kernelBoot':
      return { ...ref, volumeIndex: null };
    default:
      throw malformed('container', 'missing');
  }
}

const containerText = ({ volumeIndex }: ImageContainer) => volumeIndex ?? 'kernel-boot';

export const containerDisk: Check<StatContainerDiskRequest, ImageContainer> = {
  words: [...podRefWords, containerWords],
  parse: parseContainer,
  audited: (container) => ({ container: containerText(container) }),
};

export interface ContainerDiskMount extends PodRef {
  readonly volumeIndex: number;
  readonly imagePath: string;
}

export const mountContainerDisk: Check<MountContainerDiskRequest, ContainerDiskMount> = {
  words: [...podRefWords, 'volume_index is at most 999', imagePathWords],
  parse: (policy, request) => ({
    ...parsePodRef(request.pod),
    volumeIndex: parseVolumeIndex(policy, request.volumeIndex),
    imagePath: parseImagePath(policy, request.imagePath),
  }),
  audited: ({ volumeIndex, imagePath }) => ({ volumeIndex, imagePath }),
};

export interface KernelArtifact extends PodRef {
  readonly imagePath: string;
  /** Of the mount point. */
  readonly name: string;
}

export const mountKernelArtifact: Check<MountKernelArtifactRequest, KernelArtifact> = {
  words: [
    ...podRefWords,
    imagePathWords,
    'the last element of image_path, which names the mount point, is neither empty nor . or ..',
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const imagePath = parseImagePath(policy, request.imagePath);
    const name = imagePath.slice(imagePath.lastIndexOf('/') + 1);
    if (name === '' || name === '.' || name === '..') throw malformed('image_path', 'names no file');
    return { ...pod, imagePath, name };
  },
  audited: ({ imagePath }) => ({ imagePath }),
};

export const openContainerDisk: Check<OpenContainerDiskRequest, ImageRef> = {
  words: [...podRefWords, `${containerWords}, with an image_path`, imagePathWords],
  parse(policy, request) {
    const container = parseContainer(policy, request);
    const imagePath = parseImagePath(policy, request.imagePath);
    if (container.volumeIndex === null && imagePath === '') throw malformed('image_path', 'missing');
    return { ...container, imagePath };
  },
  audited: (image) => ({ container: containerText(image), imagePath: image.imagePath }),
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
  words: [
    ...podRefWords,
    'namespace and volume names are DNS labels, the name of the VMI is a DNS subdomain',
    'below the volume nothing is a link or a mount, and the image is a regular file',
  ],
  parse: (_policy, request) => ({ ...parsePodRef(request.pod), entry: isoEntry(request.iso) }),
  audited: ({ entry }) => ({ iso: entryText(entry) }),
};
