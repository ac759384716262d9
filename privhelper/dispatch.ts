/**
 * The dispatch tables: everything that this process can be asked to do. Each line is a method, the pure
 * check of its request, what the operation is about, which decides what is checked about a pod, and the
 * operation itself. What it may raise and how long it may take is declared with the method in proto/.
 */
import type {
  DescMessage,
  DescMethod,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  MessageInitShape,
  MessageShape,
} from '@bufbuild/protobuf';
import { DeviceService } from '../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HelperService } from '../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { HotplugService } from '../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { InspectService } from '../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { NetworkService } from '../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ResourceService } from '../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { SocketService } from '../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { methodName } from './declarations.js';
import type { Helper } from './helper.js';
import type { Invocation } from './invocation.js';
import * as device from './operations/device.js';
import { setPolicy } from './operations/device-policy.js';
import { explain } from './operations/explain.js';
import * as helper from './operations/helper.js';
import * as hotplug from './operations/hotplug.js';
import * as inspect from './operations/inspect.js';
import * as network from './operations/network.js';
import * as pod from './operations/pod.js';
import * as resource from './operations/resource.js';
import * as socket from './operations/socket.js';
import * as storage from './operations/storage.js';
import * as vmiDisks from './operations/vmi-disks.js';
import type { Check, Named } from './policy/check.js';
import * as deviceCheck from './policy/devices.js';
import * as hotplugCheck from './policy/hotplug.js';
import * as imageCheck from './policy/images.js';
import * as networkCheck from './policy/network.js';
import * as check from './policy/requests.js';
import * as resourceCheck from './policy/resources.js';
import * as socketCheck from './policy/sockets.js';
import * as vmiDiskCheck from './policy/vmi-disks.js';

/** What the agent may ask for. */
export const table = [
  // method                                     check of the request       about          operation
  unary(HelperService.method.health, check.empty, 'helper', helper.health),
  unary(HelperService.method.describe, check.empty, 'helper', helper.describe),

  stream(PodService.method.watch, check.empty, 'helper', pod.watch),
  unary(PodService.method.stat, check.podUid, 'helper', pod.stat),
  unary(PodService.method.identify, check.podOnly, 'launcher', pod.identify),
  unary(PodService.method.getSelinuxContext, check.podOnly, 'launcher', pod.getSelinuxContext),
  unary(PodService.method.markUnresponsive, check.podOnly, 'pod', pod.markUnresponsive),
  unary(PodService.method.release, check.podOnly, 'pod', pod.release),

  unary(SocketService.method.connect, socketCheck.connect, 'launcher', socket.connect),
  unary(
    SocketService.method.connectAttachment,
    socketCheck.connectAttachment,
    'launcher',
    socket.connectAttachment,
  ),
  unary(SocketService.method.listen, socketCheck.listener, 'launcher', socket.listen),
  unary(SocketService.method.claimVirtiofs, socketCheck.claimVirtiofs, 'launcher', socket.claimVirtiofs),
  unary(SocketService.method.closeListener, socketCheck.listener, 'pod', socket.closeListener),
  unary(SocketService.method.listenVsock, socketCheck.listenVsock, 'helper', socket.listenVsock),

  unary(NetworkService.method.observe, check.podOnly, 'launcher', network.observe),
  unary(NetworkService.method.repairPasst, networkCheck.repairPasst, 'launcher', network.repairPasst),
  unary(NetworkService.method.apply, networkCheck.apply, 'launcher', network.apply),

  unary(
    StorageService.method.statContainerDisks,
    imageCheck.statContainerDisks,
    'launcher',
    storage.statContainerDisks,
  ),
  unary(
    StorageService.method.mountContainerDisks,
    imageCheck.mountContainerDisks,
    'launcher',
    storage.mountContainerDisks,
  ),
  unary(
    StorageService.method.openContainerDisk,
    imageCheck.openContainerDisk,
    'launcher',
    storage.openContainerDisk,
  ),
  unary(
    StorageService.method.unmountContainerDisks,
    check.podOnly,
    'launcher or record',
    storage.unmountContainerDisks,
  ),
  unary(StorageService.method.statIso, imageCheck.statIso, 'launcher', storage.statIso),
  unary(
    StorageService.method.ensureHostDisk,
    vmiDiskCheck.ensureHostDisk,
    'launcher',
    vmiDisks.ensureHostDisk,
  ),
  unary(
    StorageService.method.claimVolumeDirectory,
    vmiDiskCheck.claimVolumeDirectory,
    'launcher',
    vmiDisks.claimVolumeDirectory,
  ),

  unary(
    HotplugService.method.plugFilesystem,
    hotplugCheck.plugFilesystem,
    'launcher',
    hotplug.plugFilesystem,
  ),
  unary(HotplugService.method.plugBlock, hotplugCheck.plugBlock, 'launcher', hotplug.plugBlock),
  unary(HotplugService.method.list, check.podOnly, 'launcher', hotplug.list),
  unary(HotplugService.method.unplug, hotplugCheck.unplug, 'launcher', hotplug.unplug),
  unary(HotplugService.method.unplugAll, check.podOnly, 'launcher or hotplug record', hotplug.unplugAll),

  unary(DeviceService.method.claim, deviceCheck.claim, 'launcher', device.claim),
  unary(DeviceService.method.setPolicy, deviceCheck.setPolicy, 'launcher', setPolicy),

  unary(ResourceService.method.setMemlock, resourceCheck.setMemlock, 'launcher', resource.setMemlock),
  unary(
    ResourceService.method.isolateEmulator,
    resourceCheck.isolateEmulator,
    'launcher',
    resource.isolateEmulator,
  ),
  unary(
    ResourceService.method.scheduleVcpus,
    resourceCheck.scheduleVcpus,
    'launcher',
    resource.scheduleVcpus,
  ),
  unary(ResourceService.method.affinePit, resourceCheck.affinePit, 'launcher', resource.affinePit),
] as const;

/** What an operator may ask for besides, over ctl.sock. All of it looks and changes nothing. */
export const inspection = [
  unary(InspectService.method.getHelper, check.empty, 'helper', inspect.getHelper),
  unary(InspectService.method.listPods, check.everyLauncher, 'helper', inspect.listPods),
  unary(InspectService.method.getNetwork, check.podUid, 'observed launcher', inspect.getNetwork),
  unary(InspectService.method.listMounts, check.podUid, 'observed launcher', inspect.listMounts),
  unary(InspectService.method.listDevices, check.podUid, 'observed launcher', inspect.listDevices),
  unary(InspectService.method.getCgroup, check.podUid, 'observed launcher', inspect.getCgroup),
  unary(InspectService.method.explain, check.explain, 'helper', explain),
] as const;

/** A line of the table for the server, which knows requests and answers as messages only. */
export type Entry = UnaryEntry | StreamEntry;

/** What an operation is about. */
export type Subject =
  /** No pod: the helper's own knowledge, names in kubelet's directory, constants. */
  | 'helper'
  /** A pod in its turn, with or without a launcher. */
  | 'pod'
  | 'launcher'
  /** Without a launcher only for a pod that the record names: of container disks, or of hot-plugged volumes. */
  | 'launcher or record'
  | 'launcher or hotplug record'
  /** A launcher, to look at. */
  | 'observed launcher';

const boundWords = 'while its launcher lives the pod stays with the VMI that it was first named with';
const launcherWords =
  "the process that listens on launcher-sock lives, is in the pod's cgroup, and runs as root or the configured user";

const recordWords = (record: string) =>
  `${launcherWords}; or nobody listens and the VMI's ${record} names the pod`;

/** What is checked about the pod, after the request, in words. */
export const subjectWords: Readonly<Record<Subject, readonly string[]>> = {
  helper: [],
  pod: [boundWords],
  launcher: [boundWords, launcherWords],
  'launcher or record': [boundWords, recordWords('mount record')],
  'launcher or hotplug record': [boundWords, recordWords('record of hot-plugged volumes')],
  'observed launcher': [launcherWords],
};

interface Line {
  readonly subject: Subject;
  readonly words: Check<never, Named>['words'];
  readonly parse: Check<never, Named>['parse'];
  readonly audited: Check<never, never>['audited'];
}

export interface UnaryEntry extends Line {
  readonly kind: 'unary';
  readonly method: DescMethodUnary;
  readonly run: (
    helper: Helper,
    invocation: Invocation,
    checked: never,
  ) => Promise<MessageInitShape<DescMessage>>;
}

export interface StreamEntry extends Line {
  readonly kind: 'stream';
  readonly method: DescMethodServerStreaming;
  readonly run: (
    helper: Helper,
    invocation: Invocation,
    checked: never,
  ) => AsyncIterable<MessageInitShape<DescMessage>>;
}

function unary<I extends DescMessage, O extends DescMessage, C extends Named>(
  method: DescMethodUnary<I, O>,
  { words, parse, audited }: Check<MessageShape<I>, C>,
  subject: Subject,
  run: (helper: Helper, invocation: Invocation, checked: C) => Promise<MessageInitShape<O>>,
): UnaryEntry {
  return { kind: 'unary', method, subject, words, parse, audited, run };
}

function stream<I extends DescMessage, O extends DescMessage, C extends Named>(
  method: DescMethodServerStreaming<I, O>,
  { words, parse, audited }: Check<MessageShape<I>, C>,
  subject: Subject,
  run: (helper: Helper, invocation: Invocation, checked: C) => AsyncIterable<MessageInitShape<O>>,
): StreamEntry {
  return { kind: 'stream', method, subject, words, parse, audited, run };
}

/** Throws unless the table has every method of the services exactly once and nothing else. */
export function assertComplete(entries: readonly { method: DescMethod }[], services: readonly DescService[]) {
  const offered = services.flatMap((service) => service.methods).map(methodName);
  const dispatched = entries.map(({ method }) => methodName(method));
  for (const name of offered) {
    if (!dispatched.includes(name)) throw new Error(`${name} is not in the dispatch table`);
  }
  for (const [i, name] of dispatched.entries()) {
    if (!offered.includes(name)) throw new Error(`${name} is not a method of the services`);
    if (dispatched.indexOf(name) !== i) throw new Error(`${name} is in the dispatch table twice`);
  }
}
