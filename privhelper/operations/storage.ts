/** StorageService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  ContainerDiskState,
  type MountContainerDisksResponseSchema,
  type OpenContainerDiskResponseSchema,
  type StatContainerDisksResponseSchema,
  type StatIsoResponseSchema,
  type UnmountContainerDisksResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { ContainerDiskState as NativeState } from '../../native/binding.js';
import { atItem } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type { ImageContainers, ImageMounts, ImageRef, InField, IsoRef } from '../policy/images.js';

const states: Readonly<Record<NativeState, ContainerDiskState>> = {
  absent: ContainerDiskState.ABSENT,
  'not-listening': ContainerDiskState.NOT_LISTENING,
  ready: ContainerDiskState.READY,
};

export function statContainerDisks(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, containers }: ImageContainers,
): Promise<MessageInitShape<typeof StatContainerDisksResponseSchema>> {
  return pods.callOnLauncher(invocation, { podUid, vmiUid }, async (_, call) => {
    const indexes = containers.map(({ volumeIndex }) => volumeIndex);
    const found = await named(containers, native.containerDiskStates(call(), podsDir, podUid, indexes));
    return { states: found.map((state) => states[state]) };
  });
}

/** The record is written before the mounts, so that a helper that dies in between leaves what undoes them. */
export function mountContainerDisks(
  { native, podsDir, pods, records }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, images }: ImageMounts,
): Promise<MessageInitShape<typeof MountContainerDisksResponseSchema>> {
  const pod = { podUid, vmiUid };
  return pods.callOnLauncher(invocation, pod, async (launcher, call) => {
    records.add(pod, [...new Set(images.map(({ index }) => index))]);
    const mounting = native.mountContainerDisks(call(), podsDir, podUid, launcher, images);
    return { changed: await named(images, mounting) };
  });
}

/** A failure names the field of the item that it is about. */
async function named<T>(items: readonly InField[], operation: Promise<T>): Promise<T> {
  try {
    return await operation;
  } catch (error) {
    throw atItem(error, items);
  }
}

export function openContainerDisk(
  { native, podsDir, pods, tickets }: Helper,
  invocation: Invocation,
  image: ImageRef,
): Promise<MessageInitShape<typeof OpenContainerDiskResponseSchema>> {
  return pods.callOnLauncher(invocation, image, async (launcher, call) => {
    const { podUid, volumeIndex, imagePath } = image;
    const fd = await native.openContainerDisk(call(), podsDir, podUid, launcher, volumeIndex, imagePath);
    return { ticket: tickets.issue(fd, invocation.ticketOwner(image)) };
  });
}

export function statIso(
  { native, podsDir, pods }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, entry }: IsoRef,
): Promise<MessageInitShape<typeof StatIsoResponseSchema>> {
  return pods.callOnLauncher(invocation, { podUid, vmiUid }, async (_, call) => ({
    size: await native.volumeFileSize(call(), podsDir, podUid, entry),
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
