/**
 * The dispatch table: everything that this process can be asked to do. Each line is a method, the pure
 * check of its request, and the operation that runs when the check has passed. What the operation may
 * raise and how long it may take is declared with the method in proto/.
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
import { NetworkService } from '../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { SocketService } from '../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { methodName } from './declarations.js';
import type { Helper } from './helper.js';
import type { Invocation } from './invocation.js';
import * as device from './operations/device.js';
import * as helper from './operations/helper.js';
import * as network from './operations/network.js';
import * as pod from './operations/pod.js';
import * as socket from './operations/socket.js';
import * as storage from './operations/storage.js';
import type { Check, Subject } from './policy/check.js';
import * as networkCheck from './policy/network.js';
import * as check from './policy/requests.js';

export const table = [
  // method                                     check of the request       operation
  unary(HelperService.method.health, check.empty, helper.health),
  unary(HelperService.method.describe, check.empty, helper.describe),

  stream(PodService.method.watch, check.empty, pod.watch),
  unary(PodService.method.stat, check.stat, pod.stat),
  unary(PodService.method.identify, check.podOnly, pod.identify),
  unary(PodService.method.markUnresponsive, check.podOnly, pod.markUnresponsive),
  unary(PodService.method.release, check.podOnly, pod.release),

  unary(SocketService.method.connect, check.connect, socket.connect),
  unary(SocketService.method.listenNotify, check.podOnly, socket.listenNotify),
  unary(SocketService.method.closeNotify, check.podOnly, socket.closeNotify),

  unary(NetworkService.method.observe, check.podOnly, network.observe),
  unary(NetworkService.method.apply, networkCheck.apply, network.apply),

  unary(StorageService.method.statContainerDisk, check.containerDisk, storage.statContainerDisk),
  unary(StorageService.method.mountContainerDisk, check.mountContainerDisk, storage.mountContainerDisk),
  unary(StorageService.method.unmountContainerDisks, check.podOnly, storage.unmountContainerDisks),

  unary(DeviceService.method.claim, check.claim, device.claim),
] as const;

/** A line of the table for the server, which knows requests and answers as messages only. */
export type Entry = UnaryEntry | StreamEntry;

interface Line {
  readonly words: readonly string[];
  readonly parse: Check<never, Subject>['parse'];
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

function unary<I extends DescMessage, O extends DescMessage, C extends Subject>(
  method: DescMethodUnary<I, O>,
  { words, parse, audited }: Check<MessageShape<I>, C>,
  run: (helper: Helper, invocation: Invocation, checked: C) => Promise<MessageInitShape<O>>,
): UnaryEntry {
  return { kind: 'unary', method, words, parse, audited, run };
}

function stream<I extends DescMessage, O extends DescMessage, C extends Subject>(
  method: DescMethodServerStreaming<I, O>,
  { words, parse, audited }: Check<MessageShape<I>, C>,
  run: (helper: Helper, invocation: Invocation, checked: C) => AsyncIterable<MessageInitShape<O>>,
): StreamEntry {
  return { kind: 'stream', method, words, parse, audited, run };
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
