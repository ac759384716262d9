/** Checks of SocketService: what is named becomes a place in a volume, of constants and UUIDs. */
import {
  type ClaimVirtiofsRequest,
  type ConnectAttachmentRequest,
  type ConnectRequest,
  type ListenRequest,
  PodListener,
  PodSocket,
} from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import type { VolumeEntry } from '../../native/binding.js';
import { malformed } from '../failure.js';
import type { Check, Named, PodRef } from './check.js';
import { dnsLabelField, integerField, uuidField } from './fields.js';
import type { Policy } from './policy.js';
import { parsePodRef, podRefWords } from './requests.js';

/** QEMU's channels of a migration: memory, and disks that are copied. */
const memoryPort = 49152;
const blockPort = 49153;
const maxUsbSlot = 3;

/** As people read it: `public/domain-notify-pipe.sock`. */
export function entryText({ volume, path }: VolumeEntry): string {
  return [volume, ...path].join('/');
}

function migrationEntry(key: string): VolumeEntry {
  return { volume: 'public', path: ['migrationproxy', `${key}-source.sock`] };
}

export interface SocketRef extends PodRef {
  readonly entry: VolumeEntry;
  /** Who must listen: the pinned launcher, or any process of the pod. */
  readonly listener: 'launcher' | 'pod';
}

interface PlacedSocket {
  readonly entry: (names: { vmiUid: string; migrationKey: string; index: number }) => VolumeEntry;
  /** Highest index; without it the socket has none. */
  readonly maxIndex?: (policy: Policy) => number;
  /** The name bears a VMI UID that may be the migration source's. */
  readonly migrates?: true;
}

const ofVmi = (name: string): PlacedSocket => ({
  entry: ({ vmiUid }) => ({ volume: 'private', path: [vmiUid, name] }),
});
const ofMigration = (port: number): PlacedSocket => ({
  entry: ({ migrationKey }) => migrationEntry(`${migrationKey}-${port}`),
  migrates: true,
});

const launcherCommand: PlacedSocket = {
  entry: () => ({ volume: 'sockets', path: ['launcher-sock'] }),
};

const placedSockets: ReadonlyMap<PodSocket, PlacedSocket> = new Map<PodSocket, PlacedSocket>([
  [PodSocket.LAUNCHER_COMMAND, launcherCommand],
  [PodSocket.SERIAL_CONSOLE, ofVmi('virt-serial0')],
  [PodSocket.VNC, ofVmi('virt-vnc')],
  [
    PodSocket.USB_REDIRECTION,
    {
      entry: ({ vmiUid, index }) => ({ volume: 'private', path: [vmiUid, `virt-usbredir-${index}`] }),
      maxIndex: () => maxUsbSlot,
    },
  ],
  [PodSocket.VIRTQEMUD, { entry: () => ({ volume: 'libvirt-runtime', path: ['virtqemud-sock'] }) }],
  [PodSocket.MIGRATION_MEMORY, ofMigration(memoryPort)],
  [PodSocket.MIGRATION_BLOCK, ofMigration(blockPort)],
  [
    PodSocket.DOWNWARD_METRICS,
    { entry: () => ({ volume: 'private', path: ['downwardmetrics-channel', 'downwardmetrics.sock'] }) },
  ],
  [
    PodSocket.CONTAINER_DISK,
    {
      entry: ({ index }) => ({ volume: 'container-disks', path: [`disk_${index}.sock`] }),
      maxIndex: (policy) => policy.maxVolumeIndex,
    },
  ],
  [PodSocket.KERNEL_BOOT, { entry: () => ({ volume: 'container-disks', path: ['kernel-boot.sock'] }) }],
]);

export const connect: Check<ConnectRequest, SocketRef> = {
  words: ({ maxVolumeIndex }) => [
    ...podRefWords,
    'socket is a listed one; its volume, directory and name are derived by the helper',
    `index is a USB slot up to 3 or a volume index up to ${maxVolumeIndex}, and 0 for other sockets`,
    'source_vmi_uid is a canonical UUID for migration sockets, and empty for others',
    "below the volume nothing is a link or a mount; the listener, unless it has exited, is in the pod's cgroup",
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const socket = placedSockets.get(request.socket);
    if (socket === undefined) throw malformed('socket', 'not a known socket');
    const index = integerField('index', request.index, 0, socket.maxIndex?.(policy) ?? 0);
    let migrationKey = pod.vmiUid;
    if (request.sourceVmiUid !== '') {
      if (!socket.migrates) throw malformed('source_vmi_uid', 'not for this socket');
      migrationKey = uuidField('source_vmi_uid', request.sourceVmiUid);
    }
    return {
      ...pod,
      entry: socket.entry({ vmiUid: pod.vmiUid, migrationKey, index }),
      listener: socket === launcherCommand ? 'launcher' : 'pod',
    };
  },
  audited: ({ entry }) => ({ socket: entryText(entry) }),
};

export interface AttachmentRef extends PodRef {
  readonly attachmentPodUid: string;
}

export const attachmentWords = [
  'attachment_pod_uid is a canonical UUID of another pod',
  'while its launcher lives an attachment pod stays with the launcher pod that it was first named with',
  "it has no launcher's volume; its listener lives and is in its cgroup",
] as const;

export function attachmentPodUidField(pod: PodRef, value: string): string {
  const attachmentPodUid = uuidField('attachment_pod_uid', value);
  if (attachmentPodUid === pod.podUid) throw malformed('attachment_pod_uid', 'the launcher pod itself');
  return attachmentPodUid;
}

export const connectAttachment: Check<ConnectAttachmentRequest, AttachmentRef> = {
  words: () => [...podRefWords, ...attachmentWords],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    return { ...pod, attachmentPodUid: attachmentPodUidField(pod, request.attachmentPodUid) };
  },
  audited: ({ attachmentPodUid }) => ({ attachmentPodUid }),
};

export interface ListenerRef extends PodRef {
  readonly listener: PodListener;
  readonly entry: VolumeEntry;
  /** A launcher that runs as root still has QEMU run as its user. */
  readonly owner: 'launcher' | 'qemu';
}

const listenerEntries: ReadonlyMap<PodListener, (vmiUid: string) => VolumeEntry> = new Map([
  [PodListener.NOTIFY, () => ({ volume: 'public', path: ['domain-notify-pipe.sock'] }) as const],
  [PodListener.MIGRATION_CONTROL, migrationEntry],
  [PodListener.MIGRATION_MEMORY, (vmiUid: string) => migrationEntry(`${vmiUid}-${memoryPort}`)],
  [PodListener.MIGRATION_BLOCK, (vmiUid: string) => migrationEntry(`${vmiUid}-${blockPort}`)],
]);

/** Requests of Listen and CloseListener. */
export const listener: Check<Pick<ListenRequest, 'pod' | 'listener'>, ListenerRef> = {
  words: () => [...podRefWords, 'listener is a listed one; its directory and name are derived by the helper'],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const entry = listenerEntries.get(request.listener)?.(pod.vmiUid);
    if (entry === undefined) throw malformed('listener', 'not a known listener');
    const owner = request.listener === PodListener.NOTIFY ? 'launcher' : 'qemu';
    return { ...pod, listener: request.listener, entry, owner };
  },
  audited: ({ entry }) => ({ listener: entryText(entry) }),
};

/** A request without fields: everything is a constant. */
export const listenVsock: Check<unknown, Named> = {
  words: () => [
    'CID 2, port 1 and the device /dev/vhost-vsock, char 10:241, are constants; one socket at a time',
  ],
  parse: () => ({}),
  audited: () => ({ listener: 'vsock 2:1' }),
};

export interface VirtiofsRef extends PodRef {
  readonly entry: VolumeEntry;
}

export const claimVirtiofs: Check<ClaimVirtiofsRequest, VirtiofsRef> = {
  words: () => [
    ...podRefWords,
    'filesystem is a DNS label',
    'below the volume nothing is a link or a mount, and the entry is a socket',
  ],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const name = `${dnsLabelField('filesystem', request.filesystem)}.sock`;
    return { ...pod, entry: { volume: 'virtiofs-containers', path: [name] } };
  },
  audited: ({ entry }) => ({ socket: entryText(entry) }),
};
