/**
 * The gRPC service that every guest of the node can reach, without authentication: plaintext, one method, public data
 * (KubeVirt pkg/virt-handler/vsock). Every guest is taken for hostile: whatever it does costs a bounded amount.
 */
import http2 from 'node:http2';
import type { Socket } from 'node:net';
import { Code, ConnectError } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { System } from '../../gen/kubevirt/vsock/system/v1/system_pb.js';

const maxMessageBytes = 1024;
const maxConcurrentStreams = 2;
/** Megabytes that HTTP/2 may keep for a connection. */
const maxSessionMemory = 1;
const maxHeaderListSize = 8 * 1024;

export interface SystemServerTimes {
  /** For the first call to begin, and for each call to end. */
  readonly callMs: number;
  /** Between calls. */
  readonly idleMs: number;
}

/** Serves sockets that are handed to it until it is stopped. */
export class SystemServer {
  private readonly server: http2.Http2Server;
  private readonly sessions = new Set<http2.ServerHttp2Session>();

  constructor(
    /** PEM text; what it throws is the guest's answer. */
    caBundle: () => Uint8Array,
    private readonly times: SystemServerTimes = { callMs: 10_000, idleMs: 60_000 },
  ) {
    const adapter = connectNodeAdapter({
      routes: (router) => router.service(System, { cABundle: () => ({ Raw: bundle(caBundle) }) }),
      connect: false,
      grpcWeb: false,
      grpc: true,
      acceptCompression: [],
      readMaxBytes: maxMessageBytes,
    });
    const settings = { maxConcurrentStreams, maxHeaderListSize, enablePush: false };
    this.server = http2.createServer({ settings, maxSessionMemory }, adapter);
    this.server.on('session', (session) => this.watch(session));
  }

  serve(socket: Socket): void {
    // A guest that goes away, with or without a session on its socket, is nothing to be told.
    socket.on('error', () => socket.destroy());
    this.server.emit('connection', socket);
  }

  /** Ends everything at once. */
  stop(): void {
    for (const session of this.sessions) session.destroy();
  }

  private watch(session: http2.ServerHttp2Session): void {
    this.sessions.add(session);
    let open = 0;
    let timer: NodeJS.Timeout;
    const within = (ms: number) => {
      clearTimeout(timer);
      timer = setTimeout(() => session.destroy(), ms);
    };
    within(this.times.callMs);
    session.on('stream', (stream) => {
      open++;
      within(this.times.callMs);
      stream.on('close', () => {
        open--;
        if (open === 0 && !session.destroyed) within(this.times.idleMs);
      });
    });
    session.on('error', () => session.destroy());
    session.on('close', () => {
      clearTimeout(timer);
      this.sessions.delete(session);
    });
  }
}

/** Guests get the reason as virt-handler's get it. */
function bundle(caBundle: () => Uint8Array): Uint8Array<ArrayBuffer> {
  try {
    return new Uint8Array(caBundle());
  } catch (error) {
    throw new ConnectError((error as Error).message, Code.Unknown, undefined, undefined, error);
  }
}
