import type { MessageInitShape } from '@bufbuild/protobuf';
import type { PodRef } from '../../../agent/api/pod-ref.js';
import type { ContainerDiskHelper } from '../../../agent/storage/container-disks.js';
import {
  ContainerDiskState,
  type MountContainerDisksRequestSchema,
  type StatContainerDisksRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';

/** Listening volume indexes as given, null for the kernel-boot container; keeps what it was asked. */
export class FakeDiskHelper implements ContainerDiskHelper {
  readonly listening = new Set<number | null>();
  isListening = (_podUid: string, volumeIndex: number | null): boolean => this.listening.has(volumeIndex);
  readonly calls: string[] = [];
  statError: Error | undefined;
  mountError: Error | undefined;
  unmountError: Error | undefined;

  async statContainerDisks({
    pod,
    volumeIndexes = [],
    kernelBoot = false,
  }: MessageInitShape<typeof StatContainerDisksRequestSchema>): Promise<ContainerDiskState[]> {
    const podUid = pod?.podUid ?? '';
    const indexes = [...volumeIndexes, ...(kernelBoot ? [null] : [])];
    this.calls.push(`stat-disks ${podUid} ${indexes.map((index) => index ?? 'kernel-boot').join(', ')}`);
    if (this.statError !== undefined) throw this.statError;
    const silent = indexes.findIndex((index) => !this.isListening(podUid, index));
    if (silent < 0) return indexes.map(() => ContainerDiskState.READY);
    return [...indexes.slice(0, silent).map(() => ContainerDiskState.READY), ContainerDiskState.ABSENT];
  }

  async mountContainerDisks({
    pod,
    disks = [],
    kernelArtifacts = [],
  }: MessageInitShape<typeof MountContainerDisksRequestSchema>): Promise<boolean> {
    const images = [
      ...disks.map(({ volumeIndex, imagePath }) => `${volumeIndex} '${imagePath}'`),
      ...kernelArtifacts.map((path) => `kernel-boot '${path}'`),
    ];
    this.calls.push(`mount ${pod?.podUid} ${images.join(', ')}`);
    if (this.mountError !== undefined) throw this.mountError;
    return true;
  }

  async unmountContainerDisks(pod: PodRef): Promise<boolean> {
    this.calls.push(`unmount ${pod.podUid} of ${pod.vmiUid}`);
    if (this.unmountError !== undefined) throw this.unmountError;
    return true;
  }
}
