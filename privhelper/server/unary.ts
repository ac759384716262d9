/**
 * Unary calls of the Connect protocol (https://connectrpc.com/docs/protocol) in their plain form: POST, binary,
 * uncompressed. They are answered on the HTTP/2 stream itself, since each step of a VM's start waits for one;
 * whatever else arrives is the library's to serve or refuse.
 */
import type { IncomingHttpHeaders, ServerHttp2Stream } from 'node:http2';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { codeToHttpStatus, errorToJsonBytes, parseTimeout } from '@connectrpc/connect/protocol-connect';
import { CallFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Calls } from './calls.js';
import { check, type DeclaredUnary, type RequestOrigin } from './routes.js';

export interface UnaryServerOptions {
  readonly entries: readonly DeclaredUnary[];
  readonly helper: Helper;
  readonly calls: Calls;
  /** Aborts when the connection ends. */
  readonly signal: AbortSignal;
}

interface Answer {
  readonly status: number;
  readonly contentType: 'application/proto' | 'application/json';
  readonly body: Uint8Array;
}

export class UnaryServer {
  private readonly entries: ReadonlyMap<string, DeclaredUnary>;

  constructor(private readonly options: UnaryServerOptions) {
    this.entries = new Map(
      options.entries.map((declared) => [
        `/${declared.entry.method.parent.typeName}/${declared.entry.method.name}`,
        declared,
      ]),
    );
  }

  /** The method that a plain request calls; undefined for any other request. */
  find(headers: IncomingHttpHeaders): DeclaredUnary | undefined {
    const plain =
      headers[':method'] === 'POST' &&
      headers['content-type'] === 'application/proto' &&
      headers['content-encoding'] === undefined;
    return plain ? this.entries.get(headers[':path'] ?? '') : undefined;
  }

  /** Resolves when the call has ended. Never rejects. */
  async answer(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    called: DeclaredUnary,
    origin: RequestOrigin,
  ): Promise<void> {
    const { status, contentType, body } = await this.call(stream, headers, called, origin);
    if (stream.destroyed || stream.closed) return;
    stream.respond({ ':status': status, 'content-type': contentType, 'content-length': body.length });
    stream.end(body);
  }

  private async call(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    { entry, declared }: DeclaredUnary,
    origin: RequestOrigin,
  ): Promise<Answer> {
    const { helper, calls, signal } = this.options;
    const { input, output } = entry.method;
    try {
      const timeout = parseTimeout(timeoutOf(headers), Number.POSITIVE_INFINITY);
      if (timeout.error !== undefined) throw unreadable(Code.InvalidArgument, timeout.error.rawMessage);
      const request = parse(await readBody(stream, helper.policy.maxRequestBytes));
      origin.dispatched = true;
      const { peer, actor } = origin;
      const result = await calls.unary(
        declared,
        { peer, actor, signal, timeoutMs: timeout.timeoutMs },
        () => check(entry, helper, request),
        (invocation, checked) => entry.run(helper, invocation, checked),
      );
      const body = toBinary(output, create(output, result));
      return { status: 200, contentType: 'application/proto', body };
    } catch (reason) {
      if (reason instanceof CallFailure) origin.refusal = reason;
      const error =
        reason instanceof CallFailure
          ? reason.toConnectError()
          : reason instanceof ConnectError
            ? reason
            : new ConnectError('internal error', Code.Internal);
      const body = errorToJsonBytes(error, undefined);
      return { status: codeToHttpStatus(error.code), contentType: 'application/json', body };
    }

    function parse(bytes: Uint8Array) {
      try {
        // Fields that nobody knows are skipped: kept, they would take many times the room of the message.
        return fromBinary(input, bytes, { readUnknownFields: false });
      } catch (error) {
        throw unreadable(Code.InvalidArgument, `not a ${input.name}: ${(error as Error).message}`);
      }
    }
  }
}

function timeoutOf(headers: IncomingHttpHeaders): string | null {
  const value = headers['connect-timeout-ms'];
  return typeof value === 'string' ? value : null;
}

/** A request that never comes to its check. */
function unreadable(code: Code, message: string): CallFailure {
  return new CallFailure({ code, operation: 'read request', message, refused: true });
}

/** Rejects with RESOURCE_EXHAUSTED when there are more than `maxBytes`, and when the stream ends before its end. */
function readBody(stream: ServerHttp2Stream, maxBytes: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    stream.on('data', (chunk: Buffer) => {
      length += chunk.length;
      if (length <= maxBytes) {
        chunks.push(chunk);
        return;
      }
      chunks.length = 0;
      reject(unreadable(Code.ResourceExhausted, `message is larger than ${maxBytes} bytes`));
    });
    const cutOff = () => reject(unreadable(Code.Canceled, 'the request was cut off'));
    stream.on('end', () => {
      // A stream that is reset ends, too, and what has come of a message may be a message.
      if (stream.aborted) cutOff();
      else resolve(Buffer.concat(chunks, Math.min(length, maxBytes)));
    });
    stream.on('error', cutOff);
    stream.on('close', cutOff);
  });
}
