/**
 * The Connect protocol (https://connectrpc.com/docs/protocol) to the helper: HTTP/2 on a unix socket. Every
 * step of a VM's start is a call, so unary calls are made on the stream itself, without the layers that
 * serve other protocols, runtimes and encodings; streams go through the library.
 */
import http2, { type ClientHttp2Stream } from 'node:http2';
import { connect } from 'node:net';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Code, ConnectError, type Transport } from '@connectrpc/connect';
import { codeFromHttpStatus, errorFromJsonBytes } from '@connectrpc/connect/protocol-connect';
import { createConnectTransport } from '@connectrpc/connect-node';

/** Answers of the helper are small; a larger one is not from the helper. */
const maxMessageBytes = 4 * 1024 * 1024;
/** Nothing is resolved: the URL only fills the :authority header. */
const baseUrl = 'http://localhost';

/** Transport to the helper's socket. A lost connection is made anew by the next call. */
export function createHelperTransport(socketPath: string): Transport {
  const connection = new Connection(socketPath);
  const library = createConnectTransport({
    baseUrl,
    httpVersion: '2',
    sessionManager: {
      authority: baseUrl,
      request: async (method, path, headers, options) =>
        connection.request({ ...headers, ':method': method, ':path': path }, options),
      notifyResponseByteRead: () => undefined,
    },
    acceptCompression: [],
    readMaxBytes: maxMessageBytes,
    useBinaryFormat: true,
  });
  return {
    stream: library.stream,
    unary: async (method, signal, timeoutMs, _header, input) => {
      const body = await callUnary(connection, {
        path: `/${method.parent.typeName}/${method.name}`,
        body: toBinary(method.input, create(method.input, input)),
        timeoutMs,
        signal,
      });
      const { parent: service } = method;
      const metadata = { header: new Headers(), trailer: new Headers() };
      return { stream: false, service, method, message: fromBinary(method.output, body), ...metadata };
    },
  };
}

/** One session at a time. */
class Connection {
  private session: http2.ClientHttp2Session | undefined;

  constructor(private readonly socketPath: string) {}

  request(
    headers: http2.OutgoingHttpHeaders,
    options?: http2.ClientSessionRequestOptions,
  ): ClientHttp2Stream {
    const { session } = this;
    const usable = session !== undefined && !session.closed && !session.destroyed;
    return (usable ? session : this.connect()).request(headers, options);
  }

  private connect(): http2.ClientHttp2Session {
    const session = http2.connect(baseUrl, {
      createConnection: () => connect(this.socketPath),
      settings: { enablePush: false },
    });
    // Told to every call under way.
    session.on('error', () => undefined);
    session.on('goaway', () => session.close());
    // An agent that stops does not wait for it; a call has its own deadline to wait for.
    session.unref();
    this.session = session;
    return session;
  }
}

interface UnaryCall {
  readonly path: string;
  readonly body: Uint8Array;
  readonly timeoutMs: number | undefined;
  readonly signal: AbortSignal | undefined;
}

/** Resolves to the message's bytes. Throws a ConnectError. */
function callUnary(connection: Connection, { path, body, timeoutMs, signal }: UnaryCall): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const stream = connection.request({
      ':method': 'POST',
      ':path': path,
      'content-type': 'application/proto',
      'connect-protocol-version': '1',
      ...(timeoutMs !== undefined && { 'connect-timeout-ms': String(Math.ceil(timeoutMs)) }),
    });
    const answer = new Answer();
    let failure: ConnectError | undefined;
    const cancel = (reason: ConnectError) => {
      failure ??= reason;
      stream.close(http2.constants.NGHTTP2_CANCEL);
    };
    const onAbort = () => cancel(new ConnectError('the call was cancelled', Code.Canceled));
    const onTimeout = () => cancel(new ConnectError('the operation timed out', Code.DeadlineExceeded));
    const timer = timeoutMs === undefined ? undefined : setTimeout(onTimeout, timeoutMs);
    signal?.addEventListener('abort', onAbort);
    if (signal?.aborted) onAbort();

    stream.on('response', (headers) => answer.start(headers));
    stream.on('data', (chunk: Buffer) => {
      if (!answer.add(chunk))
        cancel(new ConnectError(`answer of more than ${maxMessageBytes} bytes`, Code.ResourceExhausted));
    });
    stream.on('error', (error) => {
      failure ??= lost(error);
    });
    const finish = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      if (failure !== undefined) reject(failure);
      else if (answer.complete || (answer.unannounced && stream.rstCode === 0))
        answer.settle(resolve, reject);
      else reject(cutOff());
    };
    // What is complete need not wait for the stream to be taken down.
    stream.on('end', () => {
      if (answer.complete) finish();
    });
    stream.on('close', finish);
    stream.end(body);
  });
}

class Answer {
  private readonly chunks: Buffer[] = [];
  private length = 0;
  private headers: http2.IncomingHttpHeaders | undefined;

  start(headers: http2.IncomingHttpHeaders): void {
    this.headers = headers;
  }

  /** False when it is too large. */
  add(chunk: Buffer): boolean {
    this.length += chunk.length;
    if (this.length > maxMessageBytes) return false;
    this.chunks.push(chunk);
    return true;
  }

  /** All that was announced is there. */
  get complete(): boolean {
    return this.headers?.['content-length'] === String(this.length);
  }

  /** It did not say how long it is, as only answers outside the protocol do. */
  get unannounced(): boolean {
    return this.headers !== undefined && this.headers['content-length'] === undefined;
  }

  settle(resolve: (body: Buffer) => void, reject: (error: ConnectError) => void): void {
    const body = Buffer.concat(this.chunks, this.length);
    const status = Number(this.headers?.[':status']);
    const type = this.headers?.['content-type'];
    if (status === 200 && type === 'application/proto') {
      resolve(body);
      return;
    }
    const unexpected = new ConnectError(`HTTP ${status}, content type ${type}`, codeFromHttpStatus(status));
    reject(type === 'application/json' ? answeredError(body, unexpected) : unexpected);
  }
}

function answeredError(body: Uint8Array, otherwise: ConnectError): ConnectError {
  try {
    return errorFromJsonBytes(body, undefined, otherwise);
  } catch {
    return otherwise;
  }
}

function cutOff(): ConnectError {
  return new ConnectError('the helper ended the call without an answer', Code.Unavailable);
}

function lost(error: Error): ConnectError {
  return new ConnectError(error.message, Code.Unavailable, undefined, undefined, error);
}
