/** StorageService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  ContainerDiskState,
  type MountContainerDiskResponseSchema,
  type MountKernelArtifactResponseSchema,
  type OpenContainerDiskResponseSchema,
  type StatContainerDiskResponseSchema,
  type StatIsoResponseSchema,
  type UnmountContainerDisksResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { ContainerDiskState as NativeState } from '../../native/binding.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type {
  ContainerDiskMount,
  ImageContainer,
  ImageRef,
  IsoRef,
  KernelArtifact,
} from '../policy/images.js';

const states: Readonly<Record<NativeState, ContainerDiskState>> = {
  absent: ContainerDiskState.ABSENT,
  'not-listening': ContainerDiskState.NOT_LISTENING,
  ready: ContainerDiskState.READY,
};

export function statContainerDisk(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  container: ImageContainer,
): Promise<MessageInitShape<typeof StatContainerDiskResponseSchema>> {
  return pods.withLauncher(invocation, container, async () => {
    const { podUid, volumeIndex } = container;
    return {
      state: states[await native.containerDiskState(invocation.call, podsDir, podUid, volumeIndex)],
    };
  });
}

/** The record is written before the mount, so that a helper that dies in between leaves what undoes it. */
export function mountContainerDisk(
  { native, podsDir, pods, records }: Helper,
  invocation: Invocation,
  mount: ContainerDiskMount,
): Promise<MessageInitShape<typeof MountContainerDiskResponseSchema>> {
  return pods.withLauncher(invocation, mount, async (launcher) => {
    const { podUid, volumeIndex, imagePath } = mount;
    records.add(mount, volumeIndex);
    return {
      changed: await native.mountContainerDisk(
        invocation.call,
        podsDir,
        podUid,
        launcher,
        volumeIndex,
        imagePath,
      ),
    };
  });
}

/** Recorded before the mount, as a container disk is. */
export function mountKernelArtifact(
  { native, podsDir, pods, records }: Helper,
  invocation: Invocation,
  artifact: KernelArtifact,
): Promise<MessageInitShape<typeof MountKernelArtifactResponseSchema>> {
  return pods.withLauncher(invocation, artifact, async (launcher) => {
    const { podUid, imagePath, name } = artifact;
    records.add(artifact, null);
    return {
      changed: await native.mountKernelArtifact(invocation.call, podsDir, podUid, launcher, imagePath, name),
    };
  });
}

export function openContainerDisk(
  { native, podsDir, pods, tickets }: Helper,
  invocation: Invocation,
  image: ImageRef,
): Promise<MessageInitShape<typeof OpenContainerDiskResponseSchema>> {
  return pods.withLauncher(invocation, image, async (launcher) => {
    const { podUid, volumeIndex, imagePath } = image;
    const { call } = invocation;
    const fd = await native.openContainerDisk(call, podsDir, podUid, launcher, volumeIndex, imagePath);
    return { ticket: tickets.issue(fd, invocation.ticketOwner(image)) };
  });
}

export function statIso(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, entry }: IsoRef,
): Promise<MessageInitShape<typeof StatIsoResponseSchema>> {
  return pods.withLauncher(invocation, { podUid, vmiUid }, async () => ({
    size: await native.volumeFileSize(invocation.call, podsDir, podUid, entry),
  }));
}

/**
 * Works without the launcher too: its mounts are gone with it, and the record proves that the pod was
 * one. A pod that neither has a launcher nor is named by the VMI's record is left alone.
 */
export function unmountContainerDisks(
  { native, podsDir, pods, records }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof UnmountContainerDisksResponseSchema>> {
  return pods.withLauncherIfAny(invocation, pod, async (launcher) => {
    if (launcher === null && !records.names(pod)) return { changed: false };
    const unmounted = await native.unmountContainerDisks(invocation.call, podsDir, pod.podUid, launcher);
    const forgotten = records.remove(pod);
    return { changed: unmounted || forgotten };
  });
}
