/**
 * Events on VMIs and the node as client-go's recorder writes them: core/v1 Event, repeated ones counted by
 * a patch of the first.
 */
import type { Vmi, VmiRef } from '../api/vmi.js';
import type { JsonValue } from '../json/lossless.js';
import type { Logger } from '../log/log.js';
import type { EventRecorder, EventType } from '../reconcile/ports.js';
import { ApiError, isNotFound } from './api-error.js';
import { apiVersion, eventResource, vmiResource } from './resources.js';
import type { RestClient } from './rest.js';
import { sleep, type Timers } from './timers.js';

/** What an event is about. An event on an object without a namespace is kept in `default`. */
export interface InvolvedObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly resourceVersion?: string | undefined;
}

export interface RecorderOptions {
  readonly rest: Pick<RestClient, 'create' | 'patch'>;
  readonly timers: Timers;
  readonly logger: Logger;
  /** `source.component`, `virt-handler` for what operators know. */
  readonly component: string;
  /** `source.host`: the node. */
  readonly host: string;
}

/** Events that the rules yield in every pass for as long as the state lasts: repeated at most every 10 min. */
const stateReasons: ReadonlySet<string> = new Set([
  'Migrated',
  'HotplugFailed',
  'SyncFailed',
  'NicHotplug',
  'Created',
]);

const stateIntervalMs = 10 * 60_000;
const maxQueued = 256;
/** Events remembered to be counted on, as in client-go. */
const maxRemembered = 4096;
const maxAttempts = 3;
const retryMs = 1_000;
const maxMessage = 4096;

interface Occurrence {
  readonly object: InvolvedObject;
  readonly type: EventType;
  readonly reason: string;
  readonly message: string;
  readonly at: number;
}

interface Written {
  readonly name: string;
  readonly count: number;
}

export class KubeEventRecorder implements EventRecorder {
  private readonly queue: Occurrence[] = [];
  private readonly written = new Map<string, Written>();
  private readonly stateSentAt = new Map<string, number>();
  private readonly stopping = new AbortController();
  private sending: Promise<void> | undefined;
  private lost = 0;
  private lastSerial = 0n;

  constructor(private readonly options: RecorderOptions) {}

  event(vmi: Vmi | VmiRef, type: EventType, reason: string, message: string): void {
    this.record(vmiReference(vmi), type, reason, message);
  }

  /** Never blocks and never throws; when 256 events wait, further ones are lost and counted in the log. */
  record(object: InvolvedObject, type: EventType, reason: string, message: string): void {
    if (this.stopping.signal.aborted) return;
    const at = this.options.timers.now();
    const occurrence = { object, type, reason, message: message.slice(0, maxMessage), at };
    const key = identity(occurrence);
    const isState = stateReasons.has(reason);
    if (isState && at - (this.stateSentAt.get(key) ?? -Infinity) < stateIntervalMs) return;
    if (this.queue.length >= maxQueued) {
      this.lost++;
      return;
    }
    if (isState) remember(this.stateSentAt, key, at);
    this.queue.push(occurrence);
    this.sending ??= this.sendAll();
  }

  /** Resolves when everything recorded so far is written or given up. */
  async flush(): Promise<void> {
    await this.sending;
  }

  /** Drops what waits. */
  async stop(): Promise<void> {
    this.stopping.abort(new Error('the event recorder was stopped'));
    await this.sending;
  }

  private async sendAll(): Promise<void> {
    const { signal } = this.stopping;
    for (let next = this.queue.shift(); next !== undefined; next = this.queue.shift()) {
      if (signal.aborted) continue;
      await this.send(next, signal);
      if (this.lost > 0) {
        this.options.logger.warning(`${this.lost} events were lost: ${maxQueued} were waiting to be written`);
        this.lost = 0;
      }
    }
    this.sending = undefined;
  }

  private async send(occurrence: Occurrence, signal: AbortSignal): Promise<void> {
    const { logger, timers } = this.options;
    const { object, reason } = occurrence;
    for (let attempt = 1; !signal.aborted; attempt++) {
      try {
        await this.write(occurrence, signal);
        return;
      } catch (error) {
        const refused = error instanceof ApiError && error.status < 500 && error.status !== 429;
        if (refused || attempt === maxAttempts) {
          const what = `event ${reason} on ${object.kind} ${object.namespace}/${object.name}`;
          logger.warning(`${what} could not be written and is dropped`, error);
          return;
        }
        await sleep(timers, retryMs * attempt, signal).catch(() => undefined); // Stopped: the loop ends.
      }
    }
  }

  private async write(occurrence: Occurrence, signal: AbortSignal): Promise<void> {
    const { rest } = this.options;
    const key = identity(occurrence);
    const namespace = occurrence.object.namespace || 'default';
    const before = this.written.get(key);
    if (before !== undefined) {
      const count = before.count + 1;
      const lastTimestamp = timestamp(occurrence.at);
      try {
        const patch = { count, lastTimestamp };
        await rest.patch(eventResource, namespace, before.name, 'merge', patch, { signal });
        remember(this.written, key, { name: before.name, count });
        return;
      } catch (error) {
        // The API server forgets events after an hour.
        if (!isNotFound(error)) throw error;
        this.written.delete(key);
      }
    }
    const written = { name: this.eventName(occurrence), count: 1 };
    await rest.create(eventResource, namespace, this.body(occurrence, namespace, written.name), { signal });
    remember(this.written, key, written);
  }

  /** `<object>.<nanoseconds in hex>`, never the same twice. */
  private eventName(occurrence: Occurrence): string {
    const wanted = BigInt(Math.trunc(occurrence.at)) * 1_000_000n;
    this.lastSerial = wanted > this.lastSerial ? wanted : this.lastSerial + 1n;
    return `${occurrence.object.name}.${this.lastSerial.toString(16)}`;
  }

  private body(occurrence: Occurrence, namespace: string, name: string): JsonValue {
    const { component, host } = this.options;
    const { object, type, reason, message, at } = occurrence;
    const { resourceVersion, ...involvedObject } = object;
    return {
      apiVersion: apiVersion(eventResource),
      kind: eventResource.kind,
      metadata: { name, namespace },
      involvedObject: { ...involvedObject, ...(resourceVersion === undefined ? {} : { resourceVersion }) },
      type,
      reason,
      message,
      source: { component, host },
      firstTimestamp: timestamp(at),
      lastTimestamp: timestamp(at),
      count: 1,
      eventTime: null,
      reportingComponent: component,
      reportingInstance: host,
    };
  }
}

function vmiReference(vmi: Vmi | VmiRef): InvolvedObject {
  const { namespace, name, uid } = 'metadata' in vmi ? vmi.metadata : vmi;
  const resourceVersion = 'metadata' in vmi ? vmi.metadata.resourceVersion : undefined;
  return {
    apiVersion: apiVersion(vmiResource),
    kind: vmiResource.kind,
    namespace,
    name,
    uid,
    resourceVersion,
  };
}

function identity({ object, type, reason, message }: Occurrence): string {
  return JSON.stringify([object.kind, object.namespace, object.name, object.uid, type, reason, message]);
}

/** Adds to a map that forgets its oldest entry. */
function remember<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= maxRemembered) return;
  const [oldest] = map.keys();
  if (oldest !== undefined) map.delete(oldest);
}

/** RFC 3339 in whole seconds, as Kubernetes writes times. */
function timestamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}
