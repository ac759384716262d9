/** The helper's protocol at the level of requests as bytes, so that also wrong ones can be sent. */
import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from 'node:http2';
import { connect as connectSocket, type Socket } from 'node:net';
import { join } from 'node:path';
import { type DescMethod, fromBinary } from '@bufbuild/protobuf';
import { type Failure, FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { agentUser, asUser, type HelperProcess } from '../../integration/privhelper-fixture.js';
import type { HostileMethod } from './methods.js';

export interface Answer {
  /** HTTP status; 0 when the stream was reset without one. */
  readonly status: number;
  /** HTTP/2 error code of the reset, 0 for none. */
  readonly reset: number;
  /** Message of a call that succeeded. */
  readonly message: Uint8Array | undefined;
  /** Code of a call that failed, as Connect spells it: `invalid_argument`. Empty when it succeeded. */
  readonly code: string;
  readonly text: string;
  /** The helper's own detail. */
  readonly failure: Failure | undefined;
}

export function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** A connection to one of the helper's sockets, as the user who may make it. */
export function dial(helper: HelperProcess, socket: HostileMethod['socket']): Socket {
  const uid = socket === 'helper.sock' ? agentUser : 0;
  const connection = asUser(uid, () => connectSocket(join(helper.socketDir, socket)));
  return connection.on('error', () => undefined);
}

export class Wire {
  readonly session: ClientHttp2Session;

  constructor(helper: HelperProcess, socket: HostileMethod['socket']) {
    this.session = connect('http://helper', { createConnection: () => dial(helper, socket) });
    this.session.on('error', () => undefined).setMaxListeners(0);
  }

  open(method: DescMethod): ClientHttp2Stream {
    const stream = this.session.request({
      ':method': 'POST',
      ':path': pathOf(method),
      'content-type': method.methodKind === 'unary' ? 'application/proto' : 'application/connect+proto',
    });
    return stream.on('error', () => undefined);
  }

  /** Resolves to the answer, or to the first message of a stream, whatever it is. */
  call(method: DescMethod, bytes: Uint8Array): Promise<Answer> {
    const stream = this.open(method);
    const answer = answerOf(stream, method.methodKind !== 'unary');
    stream.end(method.methodKind === 'unary' ? bytes : envelope(bytes));
    return answer;
  }

  close(): Promise<void> {
    if (this.session.destroyed) return Promise.resolve();
    const closed = new Promise<void>((resolve) => this.session.once('close', () => resolve()));
    this.session.destroy();
    return closed;
  }
}

/** A message of a stream: flags, length, bytes. */
function envelope(bytes: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
}

const endOfStream = 2;

function answerOf(stream: ClientHttp2Stream, enveloped: boolean): Promise<Answer> {
  return new Promise((resolve) => {
    let status = 0;
    let body = Buffer.alloc(0);
    stream.on('response', (headers) => {
      status = Number(headers[':status']);
    });
    stream.on('data', (chunk: Buffer) => {
      body = Buffer.concat([body, chunk]);
      const whole = body.length >= 5 && body.length >= 5 + body.readUInt32BE(1);
      if (enveloped && status === 200 && whole) stream.close(constants.NGHTTP2_CANCEL);
    });
    stream.on('close', () => {
      const reset = enveloped && body.length >= 5 ? 0 : (stream.rstCode ?? 0);
      if (!enveloped || status !== 200) return resolve(read(status, reset, status === 200, body));
      if (body.length < 5) return resolve(read(status, reset, false, body));
      const ended = ((body[0] ?? 0) & endOfStream) !== 0;
      const message = body.subarray(5, 5 + body.readUInt32BE(1));
      return resolve(read(status, reset, !ended, message));
    });
  });
}

interface ErrorBody {
  code?: string;
  message?: string;
  details?: { type: string; value: string }[];
  error?: ErrorBody;
}

function read(status: number, reset: number, succeeded: boolean, body: Buffer): Answer {
  if (succeeded && reset === 0) {
    return { status, reset, message: body, code: '', text: '', failure: undefined };
  }
  let parsed: ErrorBody = {};
  try {
    parsed = JSON.parse(body.toString());
  } catch {
    // An answer of HTTP/2 itself has no body.
  }
  const { code = `http ${status} reset ${reset}`, message = '', details = [] } = parsed.error ?? parsed;
  const detail = details.find(({ type }) => type === FailureSchema.typeName);
  const failure = detail && fromBinary(FailureSchema, Buffer.from(detail.value, 'base64'));
  return { status, reset, message: undefined, code, text: message, failure };
}
