/** Peers for tests: a helper that serves the protocol over Connect, and launchers that serve gRPC, on real unix sockets. */
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import http2 from 'node:http2';
import { connect, type ListenOptions, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import type { DescriptorChannel } from '../../../agent/helper/descriptors.js';
import { createLogger, type Logger } from '../../../agent/log/log.js';
import { FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { HelperService } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import {
  PodService,
  PodStateSchema,
  SocketState,
  type WatchResponse,
  type WatchResponseSchema,
} from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { SocketService } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';

export type PodInit = MessageInitShape<typeof PodStateSchema>;

export function quietLog(lines: string[] = []): Logger {
  return createLogger({
    component: 'virt-handler',
    level: 'debug',
    write: (line) => lines.push(line),
    now: () => new Date(),
  });
}

/** Waits for a condition and fails when it does not come true within the time. */
export async function eventually(
  condition: () => boolean | Promise<boolean>,
  what: string,
  timeoutMs = 10_000,
): Promise<void> {
  const end = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

const errnos: Record<string, number> = { ENOENT: 2, EPERM: 1, EACCES: 13, ECONNREFUSED: 111, EAGAIN: 11 };

export function failure(operation: string, errnoName: string, refused = false): ConnectError {
  const detail = { operation, errno: errnos[errnoName] ?? 5, errnoName, refused, unchanged: true };
  return new ConnectError(
    `${operation}: ${errnoName}`,
    refused ? Code.PermissionDenied : Code.FailedPrecondition,
    undefined,
    [{ desc: FailureSchema, value: detail }],
  );
}

/** A helper without privileges whose pods are directories of the test. */
export class FakeHelper implements DescriptorChannel {
  readonly directory = mkdtempSync(join(tmpdir(), 'helper-'));
  readonly socketPath = join(this.directory, 'helper.sock');
  readonly calls: string[] = [];
  /** Answers of a method are replaced by this error. */
  readonly fail = new Map<string, ConnectError>();
  /** Called inside MarkUnresponsive, before it answers. */
  onMark: (podUid: string) => void = () => undefined;
  private readonly pods = new Map<string, PodInit>();
  private readonly pipes = new Map<string, number>();
  private readonly tickets = new Map<string, string>();
  private readonly watchers = new Set<(event: WatchResponse['event']) => void>();
  private readonly sessions = new Set<http2.Http2Session>();
  private server: http2.Http2Server | undefined;
  private instance = 0;
  private nextTicket = 0;

  async start(): Promise<void> {
    this.instance++;
    const adapter = connectNodeAdapter({
      grpc: false,
      grpcWeb: false,
      routes: (router) => {
        router.service(HelperService, {
          health: () => ({ instanceId: `instance-${this.instance}`, version: 'test' }),
        });
        router.service(PodService, {
          watch: (_, context) => this.watch(context.signal),
          stat: ({ podUid }) => {
            this.note('stat', podUid);
            const pod = this.pods.get(podUid);
            return pod === undefined ? { pod: { podUid, launcherSocket: SocketState.ABSENT } } : { pod };
          },
          identify: ({ pod }) => {
            this.note('identify', pod?.podUid);
            return { changed: true, uid: 107, gid: 107 };
          },
          markUnresponsive: ({ pod }) => {
            this.note('markUnresponsive', pod?.podUid);
            this.onMark(pod?.podUid ?? '');
            this.setPod(pod?.podUid ?? '', { unresponsiveMarker: true });
            return { changed: true };
          },
          release: ({ pod }) => {
            this.note('release', pod?.podUid);
            return { changed: true };
          },
        });
        router.service(SocketService, {
          connect: async ({ pod }) => {
            this.note('connect', pod?.podUid);
            const path = this.launcherSocket(pod?.podUid ?? '');
            if (!existsSync(path)) throw failure('openat2 launcher-sock', 'ENOENT');
            return { ticket: { value: this.ticket(path), ttlMs: 1000 } };
          },
          listen: ({ pod }) => {
            this.note('listen', pod?.podUid);
            const podUid = pod?.podUid ?? '';
            this.pipes.set(podUid, (this.pipes.get(podUid) ?? 0) + 1);
            return { ticket: { value: this.ticket(this.pipe(podUid)), ttlMs: 1000 } };
          },
          closeListener: ({ pod }) => {
            this.note('closeListener', pod?.podUid);
            rmSync(this.pipe(pod?.podUid ?? ''), { force: true });
            return { changed: true };
          },
        });
      },
    });
    this.server = http2.createServer(adapter);
    this.server.on('session', (session) => {
      this.sessions.add(session);
      session.on('close', () => this.sessions.delete(session));
    });
    rmSync(this.socketPath, { force: true });
    await new Promise<void>((resolve) => this.server?.listen(this.socketPath, resolve));
  }

  /** Dies like a killed process: connections break, the socket file stays. */
  async kill(): Promise<void> {
    this.watchers.clear();
    for (const session of this.sessions) session.destroy();
    const { server } = this;
    if (server !== undefined) await new Promise((resolve) => server.close(resolve));
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.directory, { recursive: true, force: true });
  }

  podDirectory(podUid: string): string {
    const path = join(this.directory, podUid);
    mkdirSync(path, { recursive: true });
    return path;
  }

  launcherSocket(podUid: string): string {
    return join(this.podDirectory(podUid), 'launcher-sock');
  }

  /** Of the newest listener: Node unlinks a path that it listened on, so each one has its own. */
  pipe(podUid: string): string {
    return join(this.podDirectory(podUid), `domain-notify-pipe-${this.pipes.get(podUid) ?? 0}.sock`);
  }

  setPod(podUid: string, change: PodInit): PodInit {
    const pod = {
      podUid,
      directory: true,
      launcherSocket: SocketState.PRESENT,
      ...this.pods.get(podUid),
      ...change,
    };
    this.pods.set(podUid, pod);
    this.tell({ case: 'pod', value: create(PodStateSchema, pod) });
    return pod;
  }

  removePod(podUid: string): void {
    this.pods.delete(podUid);
    this.tell({ case: 'gonePodUid', value: podUid });
  }

  /** Changes what is true without telling, as if the event were lost. */
  forgetToTell(podUid: string, change: PodInit): void {
    this.pods.set(podUid, { ...this.pods.get(podUid), podUid, ...change });
  }

  count(call: string): number {
    return this.calls.filter((made) => made.startsWith(`${call} `)).length;
  }

  connected(ticket: Uint8Array): Promise<Socket> {
    const path = this.redeem(ticket);
    return new Promise((resolve, reject) => {
      const socket = connect(path);
      socket.once('connect', () => resolve(socket));
      socket.once('error', (error: NodeJS.ErrnoException) => {
        reject(failure('connect launcher-sock', error.code ?? 'EIO'));
      });
    });
  }

  async file(): Promise<number> {
    throw new Error('no files here');
  }

  async listening(ticket: Uint8Array): Promise<ListenOptions> {
    return { path: this.redeem(ticket) };
  }

  private note(call: string, podUid: string | undefined): void {
    this.calls.push(`${call} ${podUid ?? ''}`);
    const error = this.fail.get(call);
    if (error !== undefined) throw error;
  }

  private ticket(path: string): Uint8Array {
    const value = String(this.nextTicket++);
    this.tickets.set(value, path);
    return Buffer.from(value);
  }

  private redeem(ticket: Uint8Array): string {
    const value = Buffer.from(ticket).toString();
    const path = this.tickets.get(value);
    this.tickets.delete(value);
    if (path === undefined) throw failure('ticket', 'ENOENT', true);
    return path;
  }

  private tell(event: WatchResponse['event']): void {
    for (const watcher of this.watchers) watcher(event);
  }

  private async *watch(signal: AbortSignal): AsyncGenerator<MessageInitShape<typeof WatchResponseSchema>> {
    const queue: WatchResponse['event'][] = [];
    let wake: () => void = () => undefined;
    const watcher = (event: WatchResponse['event']) => {
      queue.push(event);
      wake();
    };
    this.watchers.add(watcher);
    signal.addEventListener('abort', () => wake());
    for (const pod of this.pods.values())
      yield { event: { case: 'pod', value: create(PodStateSchema, pod) } };
    yield { event: { case: 'synced', value: {} } } as MessageInitShape<typeof WatchResponseSchema>;
    while (!signal.aborted && this.watchers.has(watcher)) {
      const event = queue.shift();
      if (event !== undefined) yield { event } as MessageInitShape<typeof WatchResponseSchema>;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
  }
}

export interface CapturedCall {
  readonly path: string;
  readonly request: Buffer;
  readonly deadlineSeconds: number;
  readonly authority: string;
}

/** Answers one RPC: bytes of the response message, or a gRPC status. Undefined: never. */
export type Reply = (call: CapturedCall) => Buffer | { code: number; message: string } | undefined;

const raw = (path: string) => ({
  path,
  requestStream: false,
  responseStream: false,
  requestSerialize: (value: Buffer) => value,
  requestDeserialize: (value: Buffer) => value,
  responseSerialize: (value: Buffer) => value,
  responseDeserialize: (value: Buffer) => value,
});

/** A gRPC server of raw bytes, like the capturing server that recorded the vectors. */
export class FakeLauncher {
  readonly calls: CapturedCall[] = [];
  versions: Buffer = Buffer.from([0x0a, 0x01, 0x01]);
  private server = new Server();

  constructor(
    rpcs: readonly string[],
    private readonly reply: Reply,
  ) {
    const service: Record<string, ReturnType<typeof raw>> = { Info: raw('/kubevirt.cmd.info.CmdInfo/Info') };
    const handlers: Record<string, unknown> = {
      Info: (_: unknown, done: (error: null, value: Buffer) => void) => done(null, this.versions),
    };
    for (const rpc of rpcs) {
      const path = `/kubevirt.cmd.v1.Cmd/${rpc}`;
      service[rpc] = raw(path);
      handlers[rpc] = (call: never, done: never) => this.handle(path, call, done);
    }
    this.server.addService(service, handlers as never);
  }

  async listen(path: string): Promise<void> {
    await new Promise<void>((resolve, reject) =>
      this.server.bindAsync(`unix:${path}`, ServerCredentials.createInsecure(), (error) =>
        error === null ? resolve() : reject(error),
      ),
    );
  }

  stop(): void {
    this.server.forceShutdown();
  }

  private handle(
    path: string,
    call: {
      request: Buffer;
      getDeadline(): number | Date;
      getHost(): string;
    },
    done: (error: object | null, value?: Buffer) => void,
  ): void {
    const captured = {
      path,
      request: call.request,
      deadlineSeconds: Math.round((Number(call.getDeadline()) - Date.now()) / 1000),
      authority: call.getHost(),
    };
    this.calls.push(captured);
    const reply = this.reply(captured);
    if (reply === undefined) return;
    if (Buffer.isBuffer(reply)) done(null, reply);
    else done({ code: reply.code, details: reply.message });
  }
}
