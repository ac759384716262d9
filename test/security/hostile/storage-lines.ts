/** The methods about disks of a VMI: container disks, hot-plugged volumes, host disks. */
import { create } from '@bufbuild/protobuf';
import { HotplugService, PlugKind } from '../../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import {
  ContainerDiskSchema,
  type EnsureHostDiskRequest,
  type MountContainerDisksRequest,
  StorageService,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { blockVolume, claimVolume } from '../../integration/privhelper-fixture.js';
import { type Line, launcher, line, pod, type Use } from './line.js';

export const diskSocket: Use = { entry: 'container-disks/disk_0.sock', how: 'look' };
const diskPeer: Use = { entry: 'container-disks/disk_0.sock', how: 'connect' };
const iso: Use = { entry: 'private/config-map-disks/config.iso', how: 'look' };
const bootPeer: Use = { entry: 'container-disks/kernel-boot.sock', how: 'connect' };
const bootDirectory: Use = { entry: 'container-disks/kernel-boot', how: 'make' };
const pluggedNode: Use = { entry: 'hotplug-disks/ram', how: 'make' };
const plugged: Use = { entry: 'hotplug-disks/srv.img', how: 'make' };
const diskImage: Use = { entry: 'container-disks/disk_0.img', how: 'make' };

function wrongDisks(field: string, indexes: readonly number[], imagePath = '') {
  const change = (request: MountContainerDisksRequest) => {
    request.disks = indexes.map((volumeIndex) => create(ContainerDiskSchema, { volumeIndex, imagePath }));
  };
  return [field, change] as const;
}

function wrongArtifacts(field: string, ...paths: string[]) {
  const change = (request: MountContainerDisksRequest) => {
    request.kernelArtifacts = paths;
  };
  return [field, change] as const;
}

function wrongVolumes(...names: string[]) {
  return names.map(
    (name) =>
      [
        'volume',
        (request: { volume: string }) => {
          request.volume = name;
        },
      ] as const,
  );
}

const noLabels = wrongVolumes('', '..', 'a/b', 'Data');
/** What every attachment container has beside its volumes. */
const directoriesOfAll = wrongVolumes('dev', 'path', 'proc', 'sys');

export const storageLines: readonly Line[] = [
  line(
    StorageService.method.statContainerDisks,
    (target) => ({ ...pod(target), volumeIndexes: [0], kernelBoot: true }),
    {
      uses: [launcher, diskSocket, { ...bootPeer, how: 'look' }],
      wrong: [
        [
          'volume_indexes',
          (request) => {
            request.volumeIndexes = [];
            request.kernelBoot = false;
          },
        ],
        [
          'volume_indexes[0]',
          (request) => {
            request.volumeIndexes = [1000];
          },
        ],
        [
          'volume_indexes[1]',
          (request) => {
            request.volumeIndexes = [0, 0];
          },
        ],
      ],
    },
  ),
  line(
    StorageService.method.mountContainerDisks,
    (target) => ({
      ...pod(target),
      disks: [{ volumeIndex: 0, imagePath: target.image }],
      kernelArtifacts: [target.image],
    }),
    {
      uses: [launcher, diskPeer, diskImage, bootPeer, bootDirectory],
      anyText: ['disks[0].image_path', 'kernel_artifacts[0]'],
      wrong: [
        [
          'disks',
          (request) => {
            request.disks = [];
            request.kernelArtifacts = [];
          },
        ],
        wrongDisks(
          'disks',
          Array.from({ length: 257 }, (_, i) => i),
        ),
        wrongDisks('disks[1].volume_index', [0, 0]),
        wrongDisks('disks[0].volume_index', [1000]),
        wrongDisks('disks[0].image_path', [0], 'a'.repeat(4097)),
        ...['', '/', '/boot/', '/boot/.', 'boot/..'].map((path) =>
          wrongArtifacts('kernel_artifacts[0]', path),
        ),
        wrongArtifacts('kernel_artifacts[1]', '/boot/vmlinuz', '/vmlinuz'),
        wrongArtifacts('kernel_artifacts', '/a', '/b', '/c'),
      ],
    },
  ),
  line(
    StorageService.method.openContainerDisk,
    (target) => ({
      ...pod(target),
      container: { case: 'volumeIndex' as const, value: 0 },
      imagePath: target.image,
    }),
    {
      uses: [launcher, diskPeer],
      anyText: ['image_path'],
      wrong: [
        [
          'container',
          (request) => {
            request.container = { case: undefined };
          },
        ],
        [
          'volume_index',
          (request) => {
            request.container = { case: 'volumeIndex', value: 1000 };
          },
        ],
      ],
    },
  ),
  line(
    StorageService.method.statIso,
    (target) => ({ ...pod(target), iso: { case: 'configMapVolume' as const, value: 'config' } }),
    {
      uses: [launcher, iso],
      wrong: [
        [
          'iso',
          (request) => {
            request.iso = { case: undefined };
          },
        ],
      ],
    },
  ),
  line(StorageService.method.unmountContainerDisks, pod, {
    uses: [launcher, { ...diskSocket, how: 'make' }, diskImage, bootDirectory],
  }),

  line(
    HotplugService.method.plugFilesystem,
    (target) => ({
      ...pod(target),
      attachmentPodUid: target.attachmentPodUid,
      volume: claimVolume,
      kind: PlugKind.DISK,
    }),
    {
      uses: [launcher, plugged],
      wrong: [
        [
          'attachment_pod_uid',
          (request) => {
            request.attachmentPodUid = request.pod?.podUid ?? '';
          },
        ],
        ...noLabels,
        ...directoriesOfAll,
        [
          'kind',
          (request) => {
            request.kind = PlugKind.BLOCK;
          },
        ],
      ],
    },
  ),
  line(
    HotplugService.method.plugBlock,
    (target) => ({ ...pod(target), attachmentPodUid: target.attachmentPodUid, volume: blockVolume }),
    {
      uses: [launcher, pluggedNode],
      wrong: [
        [
          'attachment_pod_uid',
          (request) => {
            request.attachmentPodUid = request.pod?.podUid ?? '';
          },
        ],
        ...noLabels,
      ],
    },
  ),
  line(HotplugService.method.list, pod, { uses: [launcher, { ...plugged, how: 'look' }] }),
  line(
    HotplugService.method.unplug,
    (target) => ({ ...pod(target), volume: claimVolume, kind: PlugKind.DISK }),
    { uses: [launcher, plugged], wrong: noLabels },
  ),
  line(HotplugService.method.unplugAll, pod, { uses: [launcher, plugged] }),

  line(
    StorageService.method.ensureHostDisk,
    (target) => ({
      ...pod(target),
      volume: 'data',
      fileName: 'disk.img',
      capacityBytes: 65_536n,
      tolerancePercent: 10,
      reserveBytes: 4096n,
    }),
    {
      uses: [launcher],
      anyText: ['file_name'],
      wrong: ['.', '..', '/', '../canary', 'a/b'].map(
        (name) =>
          [
            'file_name',
            (request: EnsureHostDiskRequest) => {
              request.fileName = name;
            },
          ] as const,
      ),
    },
  ),
  line(StorageService.method.claimVolumeDirectory, (target) => ({ ...pod(target), volume: 'data' }), {
    uses: [launcher],
  }),
];
