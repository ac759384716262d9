import type { PodRef } from '../../../agent/api/pod-ref.js';
import type { ContainerDiskHelper } from '../../../agent/storage/container-disks.js';
import { ContainerDiskState } from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';

/** Listening volume indexes as given, null for the kernel-boot container; keeps what it was asked. */
export class FakeDiskHelper implements ContainerDiskHelper {
  readonly listening = new Set<number | null>();
  isListening = (_podUid: string, volumeIndex: number | null): boolean => this.listening.has(volumeIndex);
  readonly calls: string[] = [];
  statError: Error | undefined;
  mountError: Error | undefined;
  unmountError: Error | undefined;

  async statContainerDisk(pod: PodRef, volumeIndex: number | null): Promise<ContainerDiskState> {
    this.calls.push(`stat-disk ${pod.podUid} ${volumeIndex ?? 'kernel-boot'}`);
    if (this.statError !== undefined) throw this.statError;
    return this.isListening(pod.podUid, volumeIndex) ? ContainerDiskState.READY : ContainerDiskState.ABSENT;
  }

  async mountContainerDisk(pod: PodRef, volumeIndex: number, imagePath: string): Promise<boolean> {
    this.calls.push(`mount ${pod.podUid} ${volumeIndex} '${imagePath}'`);
    if (this.mountError !== undefined) throw this.mountError;
    return true;
  }

  async mountKernelArtifact(pod: PodRef, imagePath: string): Promise<boolean> {
    this.calls.push(`mount ${pod.podUid} kernel-boot '${imagePath}'`);
    if (this.mountError !== undefined) throw this.mountError;
    return true;
  }

  async unmountContainerDisks(pod: PodRef): Promise<boolean> {
    this.calls.push(`unmount ${pod.podUid} of ${pod.vmiUid}`);
    if (this.unmountError !== undefined) throw this.unmountError;
    return true;
  }
}
