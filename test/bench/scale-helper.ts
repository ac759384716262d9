/** A helper without privileges, for agents whose pods are directories: it says yes and hands out paths. */
import http2 from 'node:http2';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { Code, ConnectError, type Interceptor } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HelperService, SelinuxMode } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { HotplugService } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import {
  PodService,
  type PodState,
  PodStateSchema,
  SocketState,
  type WatchResponse,
  WatchResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ResourceService } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';

export class ScaleHelper {
  readonly #pods = new Map<string, PodState>();
  readonly #watchers = new Set<(event: WatchResponse['event']) => void>();
  readonly #sessions = new Set<http2.Http2Session>();
  readonly #unknown = new Set<string>();
  #server: http2.Http2Server | undefined;

  /** `podsDirectory`: each pod's share directory is there, named by its UID. */
  constructor(private readonly podsDirectory: string) {}

  async start(socketPath: string): Promise<void> {
    const changed = () => ({ changed: true });
    const ticket = (podUid: string, name: string) => ({
      ticket: { value: Buffer.from(join(this.podsDirectory, podUid, name)), ttlMs: 1_000 },
    });
    const adapter = connectNodeAdapter({
      grpc: false,
      grpcWeb: false,
      interceptors: [this.#noteUnknown],
      routes: (router) => {
        router.service(HelperService, {
          health: () => ({ instanceId: 'scale', version: 'bench', selinux: SelinuxMode.DISABLED }),
        });
        router.service(PodService, {
          watch: (_, context) => this.#watch(context.signal),
          stat: ({ podUid }) => ({ pod: this.#pods.get(podUid) ?? { podUid } }),
          identify: () => ({ changed: true, uid: 107, gid: 107 }),
          markUnresponsive: changed,
          release: changed,
        });
        router.service(SocketService, {
          connect: ({ pod }) => ticket(pod?.podUid ?? '', 'sockets/launcher-sock'),
          listen: ({ pod }) => ticket(pod?.podUid ?? '', 'domain-notify-pipe.sock'),
          closeListener: changed,
        });
        router.service(StorageService, { unmountContainerDisks: changed });
        router.service(HotplugService, { list: () => ({}) });
        for (const service of [NetworkService, ResourceService]) router.service(service, {});
        router.service(DeviceService, {
          claim: ({ devices }) => ({
            results: devices.map((device) => ({ device, outcome: ClaimOutcome.CLAIMED })),
          }),
        });
      },
    });
    const server = http2.createServer(adapter);
    this.#server = server;
    server.on('session', (session) => {
      this.#sessions.add(session);
      session.on('close', () => this.#sessions.delete(session));
    });
    await new Promise<void>((resolve) => server.listen(socketPath, resolve));
  }

  /** Methods that were asked for and are not here: what an agent does without them is not worth measuring. */
  get unknown(): readonly string[] {
    return [...this.#unknown];
  }

  readonly #noteUnknown: Interceptor = (next) => async (request) => {
    try {
      return await next(request);
    } catch (error) {
      if (ConnectError.from(error).code === Code.Unimplemented) this.#unknown.add(request.method.name);
      throw error;
    }
  };

  addPod(podUid: string): void {
    const pod = create(PodStateSchema, { podUid, directory: true, launcherSocket: SocketState.PRESENT });
    this.#pods.set(podUid, pod);
    this.#tell({ case: 'pod', value: pod });
  }

  removePod(podUid: string): void {
    this.#pods.delete(podUid);
    this.#tell({ case: 'gonePodUid', value: podUid });
  }

  async stop(): Promise<void> {
    const server = this.#server;
    for (const session of this.#sessions) session.destroy();
    if (server !== undefined) await new Promise((resolve) => server.close(resolve));
  }

  #tell(event: WatchResponse['event']): void {
    for (const watcher of this.#watchers) watcher(event);
  }

  async *#watch(signal: AbortSignal): AsyncGenerator<WatchResponse> {
    const queue: WatchResponse['event'][] = [...this.#pods.values()].map((value) => ({ case: 'pod', value }));
    queue.push({ case: 'synced', value: {} as never });
    let wake = () => {};
    const watcher = (event: WatchResponse['event']) => {
      queue.push(event);
      wake();
    };
    this.#watchers.add(watcher);
    signal.addEventListener('abort', () => wake());
    while (!signal.aborted) {
      const event = queue.shift();
      if (event === undefined) await new Promise<void>((resolve) => (wake = resolve));
      else yield create(WatchResponseSchema, { event } as never);
    }
    this.#watchers.delete(watcher);
  }
}
