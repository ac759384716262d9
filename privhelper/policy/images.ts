/** Checks of requests that look at disk images. */
import type {
  CloudInitIso,
  OpenContainerDiskRequest,
  StatIsoRequest,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { VolumeEntry } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { Check, PodRef } from './check.js';
import { dnsLabelField, dnsSubdomainField, imagePathField, integerField } from './fields.js';
import { parsePodRef, podRefWords } from './requests.js';
import { entryText } from './sockets.js';

export interface ImageRef extends PodRef {
  /** Null for the kernel-boot container. */
  readonly volumeIndex: number | null;
  readonly imagePath: string;
}

export const openContainerDisk: Check<OpenContainerDiskRequest, ImageRef> = {
  words: [
    ...podRefWords,
    'volume_index is at most 999, or the kernel-boot container is named, with an image_path',
    'image_path has at most 4096 bytes and no NUL; it is resolved inside the image only, to a regular file',
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const imagePath = imagePathField('image_path', request.imagePath, policy.maxImagePathBytes);
    const { container } = request;
    switch (container.case) {
      case 'volumeIndex': {
        const volumeIndex = integerField('volume_index', container.value, 0, policy.maxVolumeIndex);
        return { ...pod, volumeIndex, imagePath };
      }
      case 'kernelBoot':
        if (imagePath === '') throw malformed('image_path', 'missing');
        return { ...pod, volumeIndex: null, imagePath };
      default:
        throw malformed('container', 'missing');
    }
  },
  audited: ({ volumeIndex, imagePath }) => ({ container: volumeIndex ?? 'kernel-boot', imagePath }),
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
