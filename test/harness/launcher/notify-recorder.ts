/** The node agent's end of a notify pipe, for tests: keeps what a launcher sends. */
import { chownSync, rmSync } from 'node:fs';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { NotifyInfo } from '../../../gen/kubevirt/notify/info/info_pb.js';
import { Notify } from '../../../gen/kubevirt/notify/v1/notify_pb.js';
import { qemuUser } from '../pods/pod.js';
import { waitFor } from '../pods/run.js';
import { addService } from './grpc.js';

export interface RecordedDomain {
  readonly kind: string;
  readonly ObjectMeta: { readonly name?: string; readonly uid?: string; readonly deletionTimestamp?: string };
  readonly Spec: {
    readonly Name: string;
    readonly Metadata: {
      readonly KubeVirt: {
        readonly UID: string;
        readonly GracePeriod: {
          readonly DeletionTimestamp: string | null;
          readonly MarkedForGracefulShutdown: boolean | null;
        } | null;
      };
    };
  };
  readonly Status: { readonly Status: string; readonly Reason: string };
}

export interface RecordedEvent {
  readonly type: string;
  readonly domain: RecordedDomain;
  /** `Status/Reason` */
  readonly state: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
}

export class NotifyRecorder {
  readonly events: RecordedEvent[] = [];
  #server: Server | undefined;

  /** `path` must be short enough for bind(2). */
  constructor(private readonly path: string) {}

  async listen(): Promise<void> {
    rmSync(this.path, { force: true });
    const server = new Server();
    addService(server, NotifyInfo, { info: async () => ({ supportedNotifyVersions: [1] }) });
    addService(server, Notify, {
      handleDomainEvent: async ({ domainJSON, eventType }) => {
        const domain = JSON.parse(Buffer.from(domainJSON).toString('utf8')) as RecordedDomain;
        const state = `${domain.Status.Status}/${domain.Status.Reason}`;
        this.events.push({ type: eventType, domain, state, at: Date.now() });
        return { success: true, message: '' };
      },
      handleK8sEvent: async () => ({ success: true, message: '' }),
    });
    await new Promise<void>((resolve, reject) =>
      server.bindAsync(`unix:${this.path}`, ServerCredentials.createInsecure(), (error) =>
        error === null ? resolve() : reject(error),
      ),
    );
    chownSync(this.path, qemuUser, qemuUser);
    this.#server = server;
  }

  /** Ends the connections and removes the socket. */
  close(): void {
    this.#server?.forceShutdown();
    this.#server = undefined;
    rmSync(this.path, { force: true });
  }

  /** Waits for the first event for which `matches` holds. */
  event(
    what: string,
    matches: (event: RecordedEvent) => boolean,
    timeoutMs = 20_000,
  ): Promise<RecordedEvent> {
    return waitFor(what, timeoutMs, () => this.events.find(matches));
  }

  state(state: string, timeoutMs?: number): Promise<RecordedEvent> {
    return this.event(`event ${state}`, (event) => event.state === state, timeoutMs);
  }
}
