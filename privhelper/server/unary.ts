/**
 * Unary calls of the Connect protocol (https://connectrpc.com/docs/protocol) in their plain form: POST, binary,
 * uncompressed. They are answered on the HTTP/2 stream itself, since each step of a VM's start waits for one;
 * whatever else arrives is the library's to serve or refuse.
 */
import type { IncomingHttpHeaders, ServerHttp2Stream } from 'node:http2';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { codeToHttpStatus, errorToJsonBytes, parseTimeout } from '@connectrpc/connect/protocol-connect';
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
      if (timeout.error !== undefined) throw timeout.error;
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
      const error =
        reason instanceof ConnectError ? reason : new ConnectError('internal error', Code.Internal);
      const body = errorToJsonBytes(error, undefined);
      return { status: codeToHttpStatus(error.code), contentType: 'application/json', body };
    }

    function parse(bytes: Uint8Array) {
      try {
        return fromBinary(input, bytes);
      } catch (error) {
        throw new ConnectError(`parse binary: ${(error as Error).message}`, Code.Internal);
      }
    }
  }
}

function timeoutOf(headers: IncomingHttpHeaders): string | null {
  const value = headers['connect-timeout-ms'];
  return typeof value === 'string' ? value : null;
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
      reject(new ConnectError(`message is larger than ${maxBytes} bytes`, Code.ResourceExhausted));
    });
    stream.on('end', () => resolve(Buffer.concat(chunks, Math.min(length, maxBytes))));
    const cutOff = () => reject(new ConnectError('the request was cut off', Code.Canceled));
    stream.on('error', cutOff);
    stream.on('close', cutOff);
  });
}
