/** An RPC server: connections over a unix socket, each with an HTTP/2 session of its own. */
import {
  constants,
  createServer,
  type Http2ServerRequest,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import { Socket } from 'node:net';
import { Code, createContextValues } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import type { Native, Peer } from '../../native/binding.js';
import type { AuditLog } from '../audit/audit.js';
import { CallFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Calls } from './calls.js';
import type { Admission } from './connections.js';
import { endWhenSilent } from './liveness.js';
import {
  addRoutes,
  type DeclaredEntry,
  type DeclaredUnary,
  originKey,
  type RequestOrigin,
} from './routes.js';
import { UnaryServer } from './unary.js';

export interface ServerOptions {
  readonly native: Native;
  readonly helper: Helper;
  /** The methods that are served. */
  readonly entries: readonly DeclaredEntry[];
  readonly connections: Admission;
  /** Who calls, where the audit log is to say more than the peer. */
  readonly actor?: (peer: Peer) => string;
  readonly calls: Calls;
  readonly audit: AuditLog;
  readonly report: (message: string, error?: unknown) => void;
}

/** Streams of one connection at a time. */
const maxStreams = 64;
/** Time between the pings of a connection. */
const pingMs = 15_000;
/** What a timer takes; with more it fires at once. */
const maxTimerMs = 0x7fff_ffff;
/** The two content types of the Connect protocol with binary messages. */
const contentTypes = new Set(['application/proto', 'application/connect+proto']);

export class RpcServer {
  private readonly sessions = new Set<ServerHttp2Session>();
  private acceptor: { stop(): void } | undefined;
  private inProgress = 0;

  constructor(private readonly options: ServerOptions) {}

  /** Calls in progress. */
  get calls(): number {
    return this.inProgress;
  }

  /** Serves a listening descriptor, which it takes over. */
  listen(listener: number): void {
    this.acceptor = this.options.native.acceptConnections(listener, (fd, peer) => this.accept(fd, peer));
  }

  /** Accepts nothing more; sessions end when their calls have ended. */
  stop(): void {
    this.acceptor?.stop();
    for (const session of this.sessions) session.close();
  }

  /** Ends all sessions at once. */
  destroy(): void {
    for (const session of this.sessions) session.destroy();
  }

  private accept(fd: number, peer: Peer): void {
    const { native, audit, helper, report, connections, actor } = this.options;
    const refused = connections.admit(peer);
    if (refused !== undefined) {
      native.close(fd);
      audit.refused({ method: 'connect', peer, actor: actor?.(peer) }, refused);
      return;
    }
    const socket = new Socket({ fd, readable: true, writable: true });
    socket.on('error', (error) => report('connection failed', error));
    socket.on('close', () => {
      if (connections.leave()) helper.tickets.dropPeer(peer);
    });
    this.serve(socket, peer);
  }

  /** A server for one connection: no request can be taken for one of another peer. */
  private serve(socket: Socket, peer: Peer): void {
    const { helper, entries, calls, actor } = this.options;
    const origins = new WeakMap<object, RequestOrigin>();
    const ended = new AbortController();
    socket.on('close', () => ended.abort());
    const unary = new UnaryServer({
      entries: entries.filter((declared): declared is DeclaredUnary => declared.entry.kind === 'unary'),
      helper,
      calls,
      signal: ended.signal,
    });
    const handle = connectNodeAdapter({
      routes: (router) => addRoutes(router, entries, helper, calls),
      grpc: false,
      grpcWeb: false,
      acceptCompression: [],
      readMaxBytes: helper.policy.maxRequestBytes,
      contextValues: (request) =>
        createContextValues().set(originKey, origins.get((request as Http2ServerRequest).stream)),
    });
    // Never listens: it makes requests of the streams that it is given.
    const library = createServer(handle);
    const server = createServer({ settings: { maxConcurrentStreams: maxStreams } });
    server.on('stream', (stream, headers, flags) => {
      const origin: RequestOrigin = { peer, actor: actor?.(peer), dispatched: false };
      if (!this.admitRequest(stream, headers, origin)) return;
      const called = unary.find(headers);
      if (called !== undefined) {
        origin.answered = unary.answer(stream, headers, called, origin);
        return;
      }
      // Weeks, which are as good as no timeout.
      if (Number(headers['connect-timeout-ms']) > maxTimerMs) delete headers['connect-timeout-ms'];
      origins.set(stream, origin);
      library.emit('stream', stream, headers, flags, []);
    });
    server.on('session', (session) => {
      this.sessions.add(session);
      endWhenSilent(session, pingMs);
      session.on('close', () => this.sessions.delete(session));
    });
    server.emit('connection', socket);
  }

  /** Bounds number, type and time of requests. What never reaches its check is audited as refused. */
  private admitRequest(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    origin: RequestOrigin,
  ): boolean {
    const { audit, helper } = this.options;
    const method = (headers[':path'] ?? '').slice(1, 257);
    const late = setTimeout(() => {
      if (!stream.readableEnded) stream.close(constants.NGHTTP2_CANCEL);
    }, helper.policy.requestTimeoutMs);
    this.inProgress += 1;
    // A stream that breaks ends; `close` follows.
    stream.on('error', () => undefined);
    stream.once('close', () => {
      // A call whose stream was reset goes on, and counts until it has ended.
      void Promise.resolve(origin.answered).finally(() => {
        this.inProgress -= 1;
      });
      clearTimeout(late);
      if (origin.dispatched) return;
      const status = Number(stream.sentHeaders?.[':status'] ?? 0);
      const refusal = origin.refusal ?? undispatched(status);
      audit.refused({ method, peer: origin.peer, actor: origin.actor }, refusal);
    });
    if (this.inProgress > helper.policy.maxCalls) {
      stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
      return false;
    }
    if (!contentTypes.has(headers['content-type'] ?? '')) {
      stream.respond({ ':status': 415 }, { endStream: true });
      return false;
    }
    return true;
  }
}

function undispatched(status: number): CallFailure {
  return new CallFailure({
    code: Code.InvalidArgument,
    operation: 'read request',
    message: `request could not be read, answered with HTTP status ${status}`,
    refused: true,
  });
}
