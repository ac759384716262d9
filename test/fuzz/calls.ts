/** What a fuzz run sends: call number n of a seed is always the same one, but for the UIDs of the pods. */
import type { DescMethod } from '@bufbuild/protobuf';
import { HelperService } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { inspection, table } from '../../privhelper/dispatch.js';
import type { Request } from './connection.js';
import { Random, Weighted } from './random.js';
import { Requests } from './requests.js';
import { hostileText, type Targets } from './values.js';

/** A call of a method, with a message that may be anything. */
export interface RpcCall {
  readonly kind: 'rpc';
  readonly socket: 'agent' | 'operator';
  readonly method: DescMethod;
  readonly message: Uint8Array;
  readonly request: Request;
}

/** A request that is not one of the protocol. */
export interface StrayRequest {
  readonly kind: 'stray';
  /** Whose message the body may be. */
  readonly method: DescMethod;
  readonly request: Request;
}

/** Bytes on a connection of their own. */
export interface RawBytes {
  readonly kind: 'raw';
  readonly bytes: Uint8Array;
}

/** A claim on the descriptor channel: of a ticket that was given out, or of what is none. */
export interface Claim {
  readonly kind: 'claim';
  readonly ticket: 'newest' | 'used' | Uint8Array;
}

export type Call = RpcCall | StrayRequest | RawBytes | Claim;

const methods: readonly DescMethod[] = table.map(({ method }) => method);
const operatorMethods: readonly DescMethod[] = inspection.map(({ method }) => method);
export const everyMethod: readonly DescMethod[] = [...methods, ...operatorMethods];

/** What costs the helper much, or ends what other calls need, is rare. */
const weights = new Map<DescMethod, number>([
  [HelperService.method.describe, 20],
  [PodService.method.watch, 30],
  [PodService.method.release, 20],
  [StorageService.method.unmountContainerDisks, 2],
  [InspectService.method.listPods, 20],
  [InspectService.method.getHelper, 20],
  [InspectService.method.explain, 400],
]);
const weighted = (list: readonly DescMethod[]) =>
  new Weighted(list.map((method) => [method, weights.get(method) ?? 100] as const));

const kinds = new Weighted<Call['kind'] | 'operator'>([
  ['rpc', 900],
  ['operator', 60],
  ['claim', 30],
  ['stray', 9],
  ['raw', 1],
]);

const unaryType = 'application/proto';
const streamType = 'application/connect+proto';
const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');

export class Calls {
  private readonly requests: Requests;
  private readonly agentMethods = weighted(methods);
  private readonly inspectionMethods = weighted(operatorMethods);

  constructor(
    private readonly seed: number,
    targets: Targets,
  ) {
    this.requests = new Requests(targets, everyMethod);
  }

  make(number: number): Call {
    const random = new Random('call', this.seed, number);
    const kind = kinds.pick(random);
    switch (kind) {
      case 'rpc':
        return this.rpc('agent', this.agentMethods.pick(random), random);
      case 'operator': {
        const choice = random.chance(0.8) ? this.inspectionMethods : this.agentMethods;
        return this.rpc('operator', choice.pick(random), random);
      }
      case 'claim':
        return { kind, ticket: ticket(random) };
      case 'stray': {
        const method = random.pick(everyMethod);
        return { kind, method, request: this.stray(method, random) };
      }
      case 'raw':
        return { kind, bytes: rawBytes(random) };
    }
  }

  private rpc(socket: RpcCall['socket'], method: DescMethod, random: Random): RpcCall {
    const message = this.requests.make(method.input, random);
    const streams = method.methodKind !== 'unary';
    const body = streams ? enveloped(message, 0) : message;
    const headers = {
      ':method': 'POST',
      ':path': pathOf(method),
      'content-type': streams ? streamType : unaryType,
      ...(random.chance(0.02)
        ? { 'connect-timeout-ms': random.pick(['1', '20', '5000', '9999999999']) }
        : {}),
    };
    const cut = random.chance(0.002) ? { cutAt: random.below(body.length + 1) } : {};
    return { kind: 'rpc', socket, method, message, request: { headers, body, endless: streams, ...cut } };
  }

  private stray(method: DescMethod, random: Random): Request {
    const body = this.requests.make(method.input, random);
    const path = random.pick([
      pathOf(method),
      '/',
      '/x/y',
      `${pathOf(method)}/`,
      `/${encodeURI(hostileText(random))}`,
    ]);
    const headers = { ':method': 'POST', ':path': path, 'content-type': unaryType };
    switch (random.below(7)) {
      case 0:
        return {
          headers: { ...headers, 'content-type': random.pick(['application/json', 'application/grpc', '']) },
          body,
        };
      case 1:
        return { headers: { ...headers, ':method': random.pick(['GET', 'PUT', 'OPTIONS', 'X']) }, body };
      case 2:
        return {
          headers: { ...headers, 'connect-timeout-ms': random.pick(['-1', '1e3', 'x', '1'.repeat(40)]) },
          body,
        };
      case 3:
        return { headers: { ...headers, 'content-encoding': random.pick(['gzip', 'br', 'x']) }, body };
      case 4: {
        const envelope = random.chance(0.5) ? enveloped(body, random.below(256)) : body;
        return { headers: { ...headers, 'content-type': streamType }, body: envelope, endless: true };
      }
      case 5:
        return { headers: { ...headers, 'connect-protocol-version': random.pick(['0', '2', 'x']) }, body };
      default:
        return { headers, body: random.chance(0.1) ? new Uint8Array((1 << 20) + 1) : body };
    }
  }
}

function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** A message of the streaming protocol: flags, length, bytes. */
function enveloped(message: Uint8Array, flags: number): Uint8Array {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

function ticket(random: Random): Claim['ticket'] {
  if (random.chance(0.6)) return 'newest';
  if (random.chance(0.5)) return 'used';
  return random.bytes(random.chance(0.5) ? 32 : 1 + random.below(4096));
}

/** HTTP/2 frames that do not fit together, or no HTTP/2 at all. */
function rawBytes(random: Random): Uint8Array {
  if (random.chance(0.2)) return random.bytes(random.below(512));
  if (random.chance(0.1)) return Buffer.from('GET / HTTP/1.1\r\nhost: helper\r\n\r\n');
  const frames = Array.from({ length: random.below(12) }, () => {
    const payload = random.bytes(random.below(random.chance(0.1) ? 20_000 : 64));
    const head = Buffer.alloc(9);
    head.writeUIntBE(random.chance(0.1) ? random.below(2 ** 24) : payload.length, 0, 3);
    head.writeUInt8(random.below(random.chance(0.2) ? 256 : 11), 3);
    head.writeUInt8(random.below(256), 4);
    head.writeUInt32BE(random.chance(0.5) ? 0 : random.below(8), 5);
    return Buffer.concat([head, payload]);
  });
  const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
  return Buffer.concat([preface, ...(random.chance(0.8) ? [settings] : []), ...frames]);
}
