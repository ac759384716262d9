/** Typed calls to the API server: lossless JSON, a deadline and a size bound on each. */
import type { IncomingMessage } from 'node:http';
import type { KubeConfig } from '@kubernetes/client-node';
import { type JsonValue, parseJson, stringifyJson } from '../json/lossless.js';
import { ApiError, ApiUnavailable, apiErrorFrom } from './api-error.js';
import type { ClientRateLimiter } from './client-rate-limiter.js';
import { collectionPath, objectPath, type Resource } from './resources.js';
import { sleep, type Timers, withDeadline } from './timers.js';
import { Transport } from './transport.js';

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

export interface CallOptions {
  /** For everything, waiting for the rate limit and repetitions included. Default 30 s. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

export interface RestOptions {
  readonly kubeConfig: KubeConfig;
  readonly timers: Timers;
  readonly limiter: ClientRateLimiter;
  readonly userAgent: string;
}

interface Call extends CallOptions {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH';
  readonly path: string;
  readonly body?: JsonValue;
  readonly contentType?: string;
  readonly maxBytes: number;
}

export type PatchType = 'merge' | 'strategic' | 'json';
const patchContentTypes: Record<PatchType, string> = {
  merge: 'application/merge-patch+json',
  strategic: 'application/strategic-merge-patch+json',
  json: 'application/json-patch+json',
};

const defaultTimeoutMs = 30_000;
const objectBytes = 16 * 2 ** 20;
const pageBytes = 64 * 2 ** 20;
const errorBytes = 64 * 2 ** 10;
const maxAttempts = 10;

export class RestClient {
  private readonly transport: Transport;

  constructor(private readonly options: RestOptions) {
    this.transport = new Transport(options.kubeConfig, options.timers);
  }

  /** Any path, such as `/version`. */
  getPath(path: string, options: CallOptions = {}): Promise<JsonValue> {
    return this.call({ ...options, method: 'GET', path, maxBytes: objectBytes });
  }

  get(resource: Resource, namespace: string, name: string, options: CallOptions = {}): Promise<JsonValue> {
    return this.getPath(objectPath(resource, namespace, name), options);
  }

  /** One page of a list. */
  list(resource: Resource, namespace: string, query: Query, options: CallOptions = {}): Promise<JsonValue> {
    const path = withQuery(collectionPath(resource, namespace), query);
    return this.call({ ...options, method: 'GET', path, maxBytes: pageBytes });
  }

  create(
    resource: Resource,
    namespace: string,
    body: JsonValue,
    options: CallOptions = {},
  ): Promise<JsonValue> {
    const path = collectionPath(resource, namespace);
    return this.call({ ...options, method: 'POST', path, body, maxBytes: objectBytes });
  }

  /** PUT of the whole object. */
  update(
    resource: Resource,
    namespace: string,
    name: string,
    body: JsonValue,
    options: CallOptions = {},
  ): Promise<JsonValue> {
    const path = objectPath(resource, namespace, name);
    return this.call({ ...options, method: 'PUT', path, body, maxBytes: objectBytes });
  }

  patch(
    resource: Resource,
    namespace: string,
    name: string,
    type: PatchType,
    body: JsonValue,
    options: CallOptions = {},
  ): Promise<JsonValue> {
    const path = objectPath(resource, namespace, name);
    const contentType = patchContentTypes[type];
    return this.call({ ...options, method: 'PATCH', path, body, contentType, maxBytes: objectBytes });
  }

  /**
   * Opens a watch and returns its body. `timeoutMs` bounds the time until the server has answered; after
   * that `signal` alone ends it.
   */
  async watch(
    resource: Resource,
    namespace: string,
    query: Query,
    signal: AbortSignal,
    timeoutMs: number = defaultTimeoutMs,
  ): Promise<IncomingMessage> {
    const path = withQuery(collectionPath(resource, namespace), { ...query, watch: true });
    const deadline = withDeadline(this.options.timers, timeoutMs, signal, () =>
      timedOut('GET', path, timeoutMs),
    );
    try {
      await this.options.limiter.wait(deadline.signal);
      const answer = await this.send('GET', path, deadline.signal, {});
      deadline.disarm();
      answer.once('close', () => deadline.dispose());
      return answer;
    } catch (error) {
      deadline.dispose();
      throw error;
    }
  }

  close(): void {
    this.transport.close();
  }

  private async call(call: Call): Promise<JsonValue> {
    const { timers, limiter } = this.options;
    const timeoutMs = call.timeoutMs ?? defaultTimeoutMs;
    const endsAt = timers.now() + timeoutMs;
    const deadline = withDeadline(timers, timeoutMs, call.signal, () =>
      timedOut(call.method, call.path, timeoutMs),
    );
    try {
      for (let attempt = 1; ; attempt++) {
        await limiter.wait(deadline.signal);
        try {
          return await this.attempt(call, deadline.signal);
        } catch (error) {
          const pauseMs = repeatAfterMs(error);
          if (pauseMs === undefined || attempt === maxAttempts) throw error;
          if (timers.now() + pauseMs >= endsAt) throw error;
          await sleep(timers, pauseMs, deadline.signal);
        }
      }
    } finally {
      deadline.dispose();
    }
  }

  private async attempt(call: Call, signal: AbortSignal): Promise<JsonValue> {
    const headers = call.body === undefined ? {} : { 'Content-Type': call.contentType ?? 'application/json' };
    const body = call.body === undefined ? undefined : stringifyJson(call.body);
    const answer = await this.send(call.method, call.path, signal, headers, body);
    const request = `${call.method} ${call.path}`;
    const text = await readBody(answer, call.maxBytes, request, signal);
    try {
      return parseJson(text, call.maxBytes);
    } catch (error) {
      throw new ApiUnavailable(`the answer to ${request} is not JSON`, { cause: error });
    }
  }

  /** Resolves with a successful answer only; its body is still unread. */
  private async send(
    method: string,
    path: string,
    signal: AbortSignal,
    headers: Record<string, string>,
    body?: string,
  ): Promise<IncomingMessage> {
    const answer = await this.transport.send({
      method,
      path,
      signal,
      headers: { Accept: 'application/json', 'User-Agent': this.options.userAgent, ...headers },
      ...(body === undefined ? {} : { body }),
    });
    const status = answer.statusCode ?? 0;
    if (status >= 200 && status < 300) return answer;
    if (status === 401) this.transport.forgetCredentials();
    const request = `${method} ${path}`;
    const text = await readBody(answer, errorBytes, request, signal, 'cut');
    throw apiErrorFrom(status, tryParse(text), text, request, retryAfterSeconds(answer));
  }
}

function withQuery(path: string, query: Query): string {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') parameters.set(key, String(value));
  }
  const text = parameters.toString();
  return text === '' ? path : `${path}?${text}`;
}

function timedOut(method: string, path: string, timeoutMs: number): ApiUnavailable {
  return new ApiUnavailable(`${method} ${path} was not answered within ${timeoutMs} ms`);
}

/** The server refused the request and said when to come back; nothing was done yet. */
function repeatAfterMs(error: unknown): number | undefined {
  if (!(error instanceof ApiError) || error.retryAfter === undefined) return undefined;
  return error.status === 429 || error.status >= 500 ? error.retryAfter * 1000 : undefined;
}

function retryAfterSeconds(answer: IncomingMessage): number | undefined {
  const text = answer.headers['retry-after'];
  return text !== undefined && /^\d{1,6}$/.test(text) ? Number(text) : undefined;
}

function tryParse(text: string): JsonValue | undefined {
  try {
    return parseJson(text, errorBytes);
  } catch {
    return undefined; // Not every error comes from the API server itself; the text is used instead.
  }
}

async function readBody(
  answer: IncomingMessage,
  maxBytes: number,
  request: string,
  signal: AbortSignal,
  whenTooLong: 'fail' | 'cut' = 'fail',
): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      if (size + chunk.length > maxBytes) {
        if (whenTooLong === 'cut') break;
        throw new ApiUnavailable(`the answer to ${request} exceeds ${maxBytes} bytes`);
      }
      size += chunk.length;
      chunks.push(chunk);
    }
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    if (error instanceof ApiUnavailable) throw error;
    throw new ApiUnavailable(`the answer to ${request} broke off`, { cause: error });
  }
  return Buffer.concat(chunks, size).toString('utf8');
}
