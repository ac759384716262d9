/** Raw HTTP/2 to the helper: what a client library would never send can be sent, and all that comes back is seen. */
import { type ClientHttp2Session, connect, constants, type OutgoingHttpHeaders } from 'node:http2';
import type { Socket } from 'node:net';

export interface Answer {
  /** 0 when the stream ended without headers. */
  readonly status: number;
  readonly contentType: string;
  readonly body: Buffer;
}

export interface Request {
  readonly headers: OutgoingHttpHeaders;
  readonly body: Uint8Array;
  /** Bytes after which the stream is reset instead of ended. */
  readonly cutAt?: number;
  /** The answer is a stream without an end: it is reset when its first message has come. */
  readonly endless?: boolean;
}

const answerLimit = 8 << 20;

export class Connection {
  private session: ClientHttp2Session;
  /** Sessions that the other side ended. */
  ended = 0;

  /** `dial` gives a new socket to the server. */
  constructor(private readonly dial: () => Socket) {
    this.session = this.open();
  }

  /** Rejects when there is no answer in time. */
  request({ headers, body, cutAt, endless }: Request, timeoutMs: number): Promise<Answer> {
    if (this.session.closed || this.session.destroyed) {
      this.ended += 1;
      this.session = this.open();
    }
    const stream = this.session.request(headers, { endStream: false });
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let length = 0;
      let status = 0;
      let contentType = '';
      const late = setTimeout(() => {
        stream.close(constants.NGHTTP2_CANCEL);
        reject(new Error(`no answer within ${timeoutMs} ms`));
      }, timeoutMs);
      stream.on('response', (response) => {
        status = Number(response[':status']);
        contentType = String(response['content-type'] ?? '');
      });
      stream.on('data', (chunk: Buffer) => {
        length += chunk.length;
        if (length <= answerLimit) chunks.push(chunk);
        if (endless) stream.close(constants.NGHTTP2_CANCEL);
      });
      // A reset is an answer, too: one without status.
      stream.on('error', () => undefined);
      stream.on('close', () => {
        clearTimeout(late);
        if (length > answerLimit) reject(new Error(`an answer of ${length} bytes`));
        else resolve({ status, contentType, body: Buffer.concat(chunks) });
      });
      if (cutAt === undefined) {
        stream.end(body);
      } else {
        stream.write(body.subarray(0, cutAt), () => stream.close(constants.NGHTTP2_CANCEL));
      }
    });
  }

  close(): void {
    this.session.destroy();
  }

  private open(): ClientHttp2Session {
    const session = connect('http://helper', { createConnection: this.dial });
    session.on('error', () => undefined);
    return session;
  }
}

/** Sends bytes that need not be HTTP/2, then ends its side. Rejects when the other side does not end its own in time. */
export function sendRaw(socket: Socket, bytes: Uint8Array, timeoutMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => {
      socket.destroy();
      reject(new Error(`connection still open after ${timeoutMs} ms`));
    }, timeoutMs);
    socket.on('error', () => undefined);
    socket.on('close', () => {
      clearTimeout(late);
      resolve();
    });
    socket.resume();
    socket.end(bytes);
  });
}
