/** Checks of HotplugService. */
import {
  PlugKind as Kind,
  type PlugBlockRequest,
  type PlugFilesystemRequest,
  type UnplugRequest,
} from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import type { PlugKind } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { Check, PodRef } from './check.js';
import { dnsLabelField } from './fields.js';
import { parsePodRef, podRefWords } from './requests.js';
import { type AttachmentRef, attachmentPodUidField, attachmentWords } from './sockets.js';

/** What an attachment container has at its root besides volumes: not to be taken for one. */
const notVolumes: ReadonlySet<string> = new Set(['dev', 'path', 'proc', 'sys']);

export interface FilesystemPlug extends AttachmentRef {
  readonly volume: string;
  readonly kind: PlugKind;
}

const filesystemKinds: ReadonlyMap<Kind, PlugKind> = new Map([
  [Kind.DISK, 'disk'],
  [Kind.DIRECTORY, 'directory'],
]);

const volumeWords = 'volume is a DNS label';

export const plugFilesystem: Check<PlugFilesystemRequest, FilesystemPlug> = {
  words: () => [
    ...podRefWords,
    ...attachmentWords,
    `${volumeWords} and none of dev, path, proc, sys`,
    'kind is a disk or a directory; /<volume> is a mount of its own in the attachment container, of no kernel file system',
    'disk.img is a regular file on that mount, reached without a link',
  ],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const attachmentPodUid = attachmentPodUidField(pod, request.attachmentPodUid);
    const volume = dnsLabelField('volume', request.volume);
    if (notVolumes.has(volume))
      throw malformed('volume', 'the name of a directory of every attachment container');
    const kind = filesystemKinds.get(request.kind);
    if (kind === undefined) throw malformed('kind', 'not a disk or a directory');
    return { ...pod, attachmentPodUid, volume, kind };
  },
  audited: ({ attachmentPodUid, volume, kind }) => ({ attachmentPodUid, volume, kind }),
};

export interface BlockPlug extends AttachmentRef {
  readonly volume: string;
}

export const plugBlock: Check<PlugBlockRequest, BlockPlug> = {
  words: () => [
    ...podRefWords,
    ...attachmentWords,
    volumeWords,
    'the attachment pod has exactly one entry for the volume, a block device reached without a link',
    "the attachment process's device cgroup does not deny it that device for reading and writing",
    'the host neither has mounted it, or what is made of it, outside of pods, nor swaps to it',
    'a node that is there already has the numbers with which the helper plugged it, or those of the attachment pod',
  ],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const attachmentPodUid = attachmentPodUidField(pod, request.attachmentPodUid);
    return { ...pod, attachmentPodUid, volume: dnsLabelField('volume', request.volume) };
  },
  audited: ({ attachmentPodUid, volume }) => ({ attachmentPodUid, volume }),
};

export interface UnplugRef extends PodRef {
  readonly volume: string;
  readonly kind: PlugKind | 'block';
}

const kinds: ReadonlyMap<Kind, UnplugRef['kind']> = new Map<Kind, UnplugRef['kind']>([
  ...filesystemKinds,
  [Kind.BLOCK, 'block'],
]);

export const unplug: Check<UnplugRequest, UnplugRef> = {
  words: () => [...podRefWords, volumeWords, 'kind is a known one'],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const volume = dnsLabelField('volume', request.volume);
    const kind = kinds.get(request.kind);
    if (kind === undefined) throw malformed('kind', 'not a known kind');
    return { ...pod, volume, kind };
  },
  audited: ({ volume, kind }) => ({ volume, kind }),
};
