import type { JsonValue } from '../json/lossless.js';
import { isRecord } from '../json/lossless.js';
import type { Logger } from '../log/log.js';
import { ApiError, ApiUnavailable, apiErrorFrom, isExpired } from './api-error.js';
import { Backoff } from './backoff.js';
import { jsonLines } from './json-lines.js';
import type { Decode, KubeObject } from './objects.js';
import type { Resource } from './resources.js';
import type { RestClient } from './rest.js';
import { sleep, type Timers, withDeadline } from './timers.js';

export interface ReflectorOptions<T extends KubeObject> {
  readonly rest: Pick<RestClient, 'list' | 'watch'>;
  readonly timers: Timers;
  readonly logger: Logger;
  /** In [0, 1). */
  readonly random: () => number;
  readonly resource: Resource;
  /** Empty: all namespaces. */
  readonly namespace?: string;
  readonly labelSelector?: string;
  readonly fieldSelector?: string;
  readonly decode: Decode<T>;
}

/** Where a reflector puts what it sees. */
export interface ReflectorSink<T> {
  /** The whole content; what is not in it is gone. */
  replace(objects: readonly T[]): void;
  upsert(object: T): void;
  remove(object: T): void;
}

const pageLimit = 500;
const maxPages = 10_000;
const lineBytes = 16 * 2 ** 20;
const watchSeconds = 300;
/** How much longer than agreed a watch may last before it counts as hung. */
const watchGraceMs = 30_000;
/** A watch that ends sooner and brought nothing counts as a failure. */
const shortWatchMs = 1_000;
const gone = 410;

/**
 * Keeps a sink equal to the objects of one resource: lists in pages, then watches from the version of the
 * list. A watch that breaks is resumed where it stopped; only a version that is too old, a refusal, or a
 * stream that cannot be understood leads to a new list.
 */
export class Reflector<T extends KubeObject> {
  /** Version up to which everything has been seen; undefined before the first list and when it expired. */
  private version: string | undefined;
  private readonly backoff: Backoff;

  constructor(
    private readonly options: ReflectorOptions<T>,
    private readonly sink: ReflectorSink<T>,
  ) {
    this.backoff = new Backoff(options.timers, options.random);
  }

  /** Runs until `signal` is aborted; never rejects. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (this.version === undefined) await this.list(signal);
        await this.watch(signal);
      } catch (error) {
        if (signal.aborted) return;
        await this.recover(error, signal);
      }
    }
  }

  private async recover(error: unknown, signal: AbortSignal): Promise<void> {
    const { logger, timers } = this.options;
    if (!resumable(error)) this.version = undefined;
    const next = this.version === undefined ? 'listing' : 'watching';
    let pauseMs = this.backoff.next();
    if (error instanceof ApiError && error.retryAfter !== undefined) {
      // Everybody was told the same; not everybody may come back at the same moment.
      pauseMs += error.retryAfter * 1000;
    }
    if (isExpired(error)) logger.info(`${this.what} expired, ${next} again in ${Math.round(pauseMs)} ms`);
    else logger.warning(`${this.what} failed, ${next} again in ${Math.round(pauseMs)} ms`, error);
    await sleep(timers, pauseMs, signal).catch(() => undefined); // Aborted: the loop ends.
  }

  private get what(): string {
    const { resource, labelSelector, fieldSelector } = this.options;
    return ['watch of', resource.plural, labelSelector, fieldSelector].filter(Boolean).join(' ');
  }

  private get selection() {
    const { labelSelector, fieldSelector } = this.options;
    return { labelSelector, fieldSelector };
  }

  private async list(signal: AbortSignal): Promise<void> {
    const { rest, resource, namespace = '', decode } = this.options;
    const objects: T[] = [];
    let token: string | undefined;
    for (let page = 0; page < maxPages; page++) {
      const query = { ...this.selection, limit: pageLimit, continue: token };
      const answer = readList(await rest.list(resource, namespace, query, { signal }), resource);
      for (const item of answer.items) objects.push(decode(item));
      token = answer.token;
      if (token === undefined) {
        this.sink.replace(objects);
        this.version = answer.version;
        return;
      }
    }
    throw new ApiUnavailable(`the list of ${resource.plural} has more than ${maxPages} pages`);
  }

  private async watch(signal: AbortSignal): Promise<void> {
    const { rest, resource, namespace = '', timers, random } = this.options;
    const timeoutSeconds = Math.floor(watchSeconds * (1 + random()));
    const hung = () => new ApiUnavailable(`${this.what} did not end after ${timeoutSeconds} s`);
    const deadline = withDeadline(timers, timeoutSeconds * 1000 + watchGraceMs, signal, hung);
    const startedAt = timers.now();
    let events = 0;
    try {
      const query = {
        ...this.selection,
        resourceVersion: this.version,
        allowWatchBookmarks: true,
        timeoutSeconds,
      };
      const stream = await rest.watch(resource, namespace, query, deadline.signal);
      try {
        for await (const event of jsonLines(stream, lineBytes)) {
          // What was already read when the reflector was stopped is not delivered.
          if (signal.aborted) return;
          this.deliver(event);
          events++;
        }
      } catch (error) {
        throw streamError(error, deadline.signal, this.what);
      } finally {
        stream.destroy();
      }
      if (events === 0 && timers.now() - startedAt < shortWatchMs) {
        throw new ApiUnavailable(`${this.what} was closed at once`);
      }
    } finally {
      deadline.dispose();
    }
  }

  private deliver(event: JsonValue): void {
    if (!isRecord(event)) throw new TypeError('watch event is not a JSON object');
    const object = event['object'];
    switch (event['type']) {
      case 'ADDED':
      case 'MODIFIED':
        this.sink.upsert(this.options.decode(object ?? null));
        break;
      case 'DELETED':
        this.sink.remove(this.options.decode(object ?? null));
        break;
      case 'BOOKMARK':
        break;
      case 'ERROR':
        // Whatever it is, the server cannot go on from here: asking for the same again could fail forever.
        this.version = undefined;
        throw statusError(object, this.what);
      default:
        throw new TypeError(`watch event has unknown type ${String(event['type']).slice(0, 40)}`);
    }
    this.version = versionOf(object);
  }
}

/** Whether a watch may go on from the same version after this error. */
function resumable(error: unknown): boolean {
  if (error instanceof ApiUnavailable) return true;
  return error instanceof ApiError && (error.status === 429 || error.status >= 500);
}

/** A broken connection is told apart from content that cannot be understood. */
function streamError(error: unknown, signal: AbortSignal, what: string): unknown {
  if (signal.aborted) return signal.reason;
  const broken = error instanceof Error && 'code' in error;
  return broken ? new ApiUnavailable(`${what}: the connection broke off`, { cause: error }) : error;
}

function statusError(object: JsonValue | undefined, what: string): ApiError {
  const code = isRecord(object) && typeof object['code'] === 'number' ? object['code'] : 0;
  return apiErrorFrom(code === 0 ? gone : code, object, 'error event', what, undefined);
}

function versionOf(object: JsonValue | undefined): string {
  const metadata = isRecord(object) ? object['metadata'] : undefined;
  const version = isRecord(metadata) ? metadata['resourceVersion'] : undefined;
  if (typeof version !== 'string' || version === '') {
    throw new TypeError('metadata.resourceVersion is missing');
  }
  return version;
}

interface Page {
  readonly items: readonly JsonValue[];
  readonly version: string;
  readonly token: string | undefined;
}

function readList(list: JsonValue, resource: Resource): Page {
  const items = isRecord(list) ? (list['items'] ?? []) : undefined;
  if (!isRecord(list) || !Array.isArray(items)) {
    throw new TypeError(`the list of ${resource.plural} has no items`);
  }
  const metadata = list['metadata'];
  const token = isRecord(metadata) ? metadata['continue'] : undefined;
  if (token !== undefined && typeof token !== 'string')
    throw new TypeError('metadata.continue is not a text');
  return { items, version: versionOf(list), token: token === '' ? undefined : token };
}
