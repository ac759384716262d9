import http2 from 'node:http2';
import type { ListenOptions } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { NotifyInfo } from '../../gen/kubevirt/notify/info/info_pb.js';
import {
  type DomainEventRequest,
  type K8sEventRequest,
  Notify,
  type Response,
  ResponseSchema,
} from '../../gen/kubevirt/notify/v1/notify_pb.js';
import { PodListener } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import type { Domain } from '../api/domain.js';
import { type VmiRef, vmiKey } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { Clock } from '../clock.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { Logger } from '../log/log.js';
import type { EventRecorder, VmiStore } from '../reconcile/ports.js';
import { domainMismatch, domainOfEvent, eventMismatch, parseLauncherEvent, statusOfEvent } from './events.js';
import { TokenBucket } from './rate-limit.js';

/** Versions of the notify protocol. */
const supportedNotifyVersions = [1];
const maxMessageBytes = 4 * 1024 * 1024;
const maxConnections = 8;
/** A launcher sends one event at a time, beside it perhaps one Kubernetes event. */
const maxConcurrentStreams = 2;
const streamIdleTimeoutMs = 10_000;
/** A request costs one unit and one more for each 64 KiB: 4 MiB/s or 64 events/s after a burst of four times that. */
const rate = { unitBytes: 64 * 1024, perSecond: 64, burst: 256 };
const refusalLogIntervalMs = 10_000;
/** A launcher tries to deliver an event for 20 s. */
const lingerMs = 30_000;

/** Whose launcher a listener belongs to. */
export interface NotifyIdentity {
  readonly podUid: string;
  readonly vmi: VmiRef;
}

export type DomainEventType = 'ADDED' | 'MODIFIED' | 'DELETED';

export interface NotifySink {
  /** The domain belongs to `vmi`; its UIDs may be empty. */
  domainEvent(type: DomainEventType, vmi: VmiRef, domain: Domain): void;
}

export interface NotifyMetrics {
  /** An event was refused: it named another VMI, or there were too many. */
  eventRefused(why: 'mismatch' | 'rate'): void;
}

export interface NotifyServerOptions {
  readonly helper: Pick<HelperClient, 'listen' | 'closeListener'>;
  readonly sink: NotifySink;
  readonly recorder: EventRecorder;
  readonly vmis: VmiStore;
  readonly metrics: NotifyMetrics;
  readonly clock: Clock;
  readonly log: Logger;
}

interface Listener {
  readonly identity: NotifyIdentity;
  readonly server: http2.Http2Server;
  /** Connections of the pod; they outlive the listener. */
  readonly sessions: Set<http2.Http2Session>;
}

/** Connections of a pod whose listener is closed. */
interface Lingering {
  readonly sessions: Set<http2.Http2Session>;
  readonly timer: NodeJS.Timeout;
}

/**
 * Receives what launchers tell (KubeVirt pkg/virt-handler/notify-server). Each pod has its own listener, so
 * the connection tells who speaks; namespace, name and UID in a message are compared with that and never
 * believed. Each listener has its own bounds, so that no launcher keeps another one waiting.
 */
export class NotifyServer {
  private readonly listeners = new Map<string, Listener>();
  private readonly starting = new Map<string, Promise<void>>();
  private readonly lingering = new Map<string, Lingering>();
  private stopped = false;

  constructor(private readonly options: NotifyServerOptions) {}

  /** The pods that have a listener now. */
  podUids(): string[] {
    return [...this.listeners.keys()];
  }

  /** Makes the pod's listener unless it exists. Single flight. Throws a HelperError or an error of listen(2). */
  async ensure(identity: NotifyIdentity): Promise<void> {
    const listener = this.listeners.get(identity.podUid);
    if (listener?.identity.vmi.uid === identity.vmi.uid) return;
    const starting = this.starting.get(identity.podUid) ?? this.start(identity);
    await starting;
  }

  /**
   * Ends the pod's listener and lets the helper remove the socket. Connections that exist may still deliver:
   * a launcher does not end before it has told that its domain is gone.
   */
  async close(podUid: string): Promise<void> {
    await this.starting.get(podUid)?.catch(() => undefined);
    const listener = this.listeners.get(podUid);
    if (listener === undefined) return;
    this.listeners.delete(podUid);
    listener.server.close();
    this.linger(podUid, listener.sessions);
    try {
      const pod = { podUid, vmiUid: listener.identity.vmi.uid };
      await this.options.helper.closeListener(pod, PodListener.NOTIFY);
    } catch (error) {
      // Without a listener the socket is of no use to anybody; it goes with the pod.
      this.options.log.warning(`notify socket of pod ${podUid} stays behind`, error);
    }
  }

  /**
   * Makes all listeners anew, because the helper that made them is gone. Connections that exist go on.
   * One that fails is gone until the next `ensure`.
   */
  async remake(): Promise<void> {
    const before = [...this.listeners.values()];
    await Promise.all(
      before.map(async (listener) => {
        const { identity } = listener;
        try {
          await this.start(identity, listener);
        } catch (error) {
          this.log(identity).warning(`notify socket of pod ${identity.podUid} was not made again`, error);
          if (this.listeners.get(identity.podUid) === listener) this.listeners.delete(identity.podUid);
          listener.server.close();
        }
      }),
    );
  }

  /** Ends everything at once. No event is delivered after that. The sockets stay for the next agent to replace. */
  stop(): void {
    this.stopped = true;
    for (const listener of this.listeners.values()) endListener(listener);
    this.listeners.clear();
    for (const podUid of [...this.lingering.keys()]) endSessions(this.takeLingering(podUid));
  }

  private linger(podUid: string, sessions: Set<http2.Http2Session>): void {
    const timer = setTimeout(() => endSessions(this.takeLingering(podUid)), lingerMs);
    timer.unref();
    this.lingering.set(podUid, { sessions, timer });
  }

  /** Connections that a former listener of the pod left; the caller looks after them from now on. */
  private takeLingering(podUid: string): Set<http2.Http2Session> {
    const lingering = this.lingering.get(podUid);
    this.lingering.delete(podUid);
    clearTimeout(lingering?.timer);
    return lingering?.sessions ?? new Set();
  }

  private start(identity: NotifyIdentity, predecessor?: Listener): Promise<void> {
    const starting = this.listen(identity, predecessor).finally(() => this.starting.delete(identity.podUid));
    this.starting.set(identity.podUid, starting);
    return starting;
  }

  private async listen(identity: NotifyIdentity, predecessor: Listener | undefined): Promise<void> {
    const pod = { podUid: identity.podUid, vmiUid: identity.vmi.uid };
    const socket = await this.options.helper.listen(pod, PodListener.NOTIFY);
    const listener = this.serve(identity, predecessor?.sessions ?? this.takeLingering(identity.podUid));
    try {
      await listenOn(listener.server, socket);
    } catch (error) {
      if (predecessor === undefined) this.linger(identity.podUid, listener.sessions);
      throw error;
    }
    if (this.stopped) {
      endListener(listener);
      return;
    }
    const replaced = this.listeners.get(identity.podUid);
    if (replaced === predecessor) predecessor?.server.close();
    else if (replaced !== undefined) endListener(replaced);
    this.listeners.set(identity.podUid, listener);
    listener.server.on('error', (error) => {
      // Accepting failed; the next `ensure` makes a listener again.
      this.log(identity).error(`notify listener of pod ${identity.podUid} failed`, error);
      if (this.listeners.get(identity.podUid) === listener) this.listeners.delete(identity.podUid);
      endListener(listener);
    });
  }

  private serve(identity: NotifyIdentity, sessions: Set<http2.Http2Session>): Listener {
    const adapter = connectNodeAdapter({
      routes: this.routes(identity),
      connect: false,
      grpcWeb: false,
      grpc: true,
      acceptCompression: [],
      readMaxBytes: maxMessageBytes,
    });
    const server = http2.createServer({ settings: { maxConcurrentStreams, enablePush: false } }, adapter);
    server.maxConnections = maxConnections;
    server.on('session', (session) => {
      if (sessions.size >= maxConnections) return session.destroy();
      sessions.add(session);
      session.on('close', () => sessions.delete(session));
      // A broken connection ends; the launcher makes another one.
      session.on('error', () => session.destroy());
    });
    server.on('stream', (stream) => stream.setTimeout(streamIdleTimeoutMs, () => stream.close()));
    return { identity, server, sessions };
  }

  private routes(identity: NotifyIdentity): (router: ConnectRouter) => void {
    const { clock } = this.options;
    const bucket = new TokenBucket(rate.burst, rate.perSecond, clock.now());
    const refusals = new RefusalLog(this.log(identity), clock);
    const admit = (bytes: number) => {
      if (this.stopped) throw new ConnectError('the notify server is stopping', Code.Unavailable);
      if (bucket.take(1 + Math.floor(bytes / rate.unitBytes), clock.now())) return;
      this.options.metrics.eventRefused('rate');
      refusals.note(`pod ${identity.podUid} sends too many events`);
      // The launcher closes the connection and tries again after a second.
      throw new ConnectError('too many events', Code.ResourceExhausted);
    };
    return (router) => {
      router.service(NotifyInfo, { info: () => ({ supportedNotifyVersions }) });
      router.service(Notify, {
        handleDomainEvent: (request) => {
          admit(request.domainJSON.length + request.statusJSON.length);
          return this.answer(() => this.domainEvent(identity, request, refusals));
        },
        handleK8sEvent: (request) => {
          admit(request.eventJSON.length);
          return this.answer(() => this.k8sEvent(identity, request, refusals));
        },
      });
    };
  }

  /** Failures go into the answer, as launchers of all releases expect. `handle` returns why it refused. */
  private answer(handle: () => string | undefined): Response {
    let message: string | undefined;
    try {
      message = handle();
    } catch (error) {
      message = asError(error).message;
    }
    return create(ResponseSchema, { success: message === undefined, message: message ?? '' });
  }

  private domainEvent(
    identity: NotifyIdentity,
    request: DomainEventRequest,
    refusals: RefusalLog,
  ): string | undefined {
    const domain = domainOfEvent(request.domainJSON);
    const status = statusOfEvent(request.statusJSON);
    const type = request.eventType;
    if (type === 'ERROR') {
      // Launchers before 1.9 send it when libvirt reconnects. It says nothing about any domain.
      this.log(identity).warning(`launcher reported an error, ignored: ${status}`);
      return undefined;
    }
    if (type !== 'ADDED' && type !== 'MODIFIED' && type !== 'DELETED') return undefined;
    const mismatch = domainMismatch(domain, identity.vmi);
    if (mismatch !== undefined) return this.refuse(identity, mismatch, refusals);
    this.options.sink.domainEvent(type, identity.vmi, domain);
    return undefined;
  }

  private k8sEvent(
    identity: NotifyIdentity,
    request: K8sEventRequest,
    refusals: RefusalLog,
  ): string | undefined {
    let event: ReturnType<typeof parseLauncherEvent>;
    try {
      event = parseLauncherEvent(request.eventJSON);
    } catch (error) {
      return `Error unmarshalling k8s event: ${(error as Error).message}`;
    }
    const mismatch = eventMismatch(event, identity.vmi);
    if (mismatch !== undefined) return `VMI not found: ${this.refuse(identity, mismatch, refusals)}`;
    const vmi = this.options.vmis.get(vmiKey(identity.vmi));
    if (vmi === undefined || vmi.metadata.uid !== identity.vmi.uid) return 'VMI not found';
    this.options.recorder.event(vmi, event.type, event.reason, event.message);
    return undefined;
  }

  private refuse({ podUid, vmi }: NotifyIdentity, mismatch: string, refusals: RefusalLog): string {
    this.options.metrics.eventRefused('mismatch');
    refusals.note(`pod ${podUid} of ${vmi.namespace}/${vmi.name} (${vmi.uid}) sent ${mismatch}: refused`);
    return `mismatch: ${mismatch} does not belong to this launcher`;
  }

  private log({ vmi }: NotifyIdentity): Logger {
    return this.options.log.object(vmi);
  }
}

/** At most one line of a kind of trouble in ten seconds, with the number of those left out. */
class RefusalLog {
  private loggedAt: number | undefined;
  private suppressed = 0;

  constructor(
    private readonly log: Logger,
    private readonly clock: Clock,
  ) {}

  note(message: string): void {
    const now = this.clock.now();
    if (this.loggedAt !== undefined && now - this.loggedAt < refusalLogIntervalMs) {
      this.suppressed++;
      return;
    }
    this.log.with({ audit: 'notify', suppressed: this.suppressed }).warning(message);
    this.loggedAt = now;
    this.suppressed = 0;
  }
}

function endListener(listener: Listener): void {
  listener.server.close();
  endSessions(listener.sessions);
}

function endSessions(sessions: ReadonlySet<http2.Http2Session>): void {
  for (const session of sessions) session.destroy();
}

function listenOn(server: http2.Http2Server, socket: ListenOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(socket, () => {
      server.off('error', reject);
      resolve();
    });
  });
}
