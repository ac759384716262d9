/**
 * A Kubernetes API server for tests: objects in memory behind the real protocol, so that client libraries
 * and kubectl can talk to it, with faults on demand.
 */
import { randomBytes } from 'node:crypto';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type JsonValue, parseJson, stringifyJson } from '../../../agent/json/lossless.js';
import { createAuthority } from './certificates.js';
import { discoveryDocument, openApiV2 } from './discovery.js';
import { Faults, matches, type RequestFilter, type RequestInfo, type RequestRecord } from './faults.js';
import { parseTarget, Requests, type Target, verbOf, watchRequest } from './requests.js';
import { badRequest, pathNotFound, StatusError } from './status.js';
import { ObjectStore, StoreAccess } from './store.js';
import { Watch } from './watch.js';

export interface ApiServerOptions {
  /** Plain HTTP instead of HTTPS. */
  readonly plain?: boolean;
  readonly host?: string;
  readonly port?: number;
  /** Changes remembered for watches; default 10000. */
  readonly maxHistory?: number;
  /** Bookmarks are sent this often; default 60 s. */
  readonly bookmarkIntervalMs?: number;
  readonly namespaces?: readonly string[];
}

export interface ApiServer {
  readonly url: string;
  readonly token: string;
  /** PEM; empty with plain HTTP. */
  readonly ca: string;
  readonly kubeConfigText: string;
  readonly store: StoreAccess;
  readonly faults: Faults;
  /** Requests answered so far, oldest first; a watch is recorded when it begins. */
  readonly requests: readonly RequestRecord[];
  count(filter: RequestFilter): number;
  /** Resolves when so many matching requests have been recorded. */
  untilCount(filter: RequestFilter, count: number, timeoutMs?: number): Promise<void>;
  readonly openWatches: number;
  /** Connections accepted since the start. */
  readonly connectionsAccepted: number;
  /** Breaks the connection of all watches, or of those of one resource. */
  dropWatches(plural?: string): void;
  /** Ends watches as their timeout does. */
  endWatches(plural?: string): void;
  /** Writes any bytes into the watches. */
  writeToWatches(text: string, plural?: string): void;
  sendBookmarks(): void;
  /** Watches from an older version and page tokens given out are answered with 410 from now on. */
  expireHistory(): void;
  stop(): Promise<void>;
}

const maxBody = 8 * 2 ** 20;
const maxRecords = 200_000;

export async function startApiServer(options: ApiServerOptions = {}): Promise<ApiServer> {
  const host = options.host ?? '127.0.0.1';
  const server = new RunningApiServer(options, host);
  await server.listen(options.port ?? 0);
  for (const name of ['default', 'kube-system', ...(options.namespaces ?? [])]) {
    server.store.put('namespaces', { metadata: { name }, status: { phase: 'Active' } });
  }
  return server;
}

class RunningApiServer implements ApiServer {
  readonly token = randomBytes(16).toString('hex');
  readonly ca: string;
  readonly store: StoreAccess;
  readonly faults = new Faults();
  readonly requests: RequestRecord[] = [];
  connectionsAccepted = 0;
  private readonly server: Server;
  private readonly objects: ObjectStore;
  private readonly handler: Requests;
  private readonly watches = new Set<Watch>();
  private readonly recordListeners = new Set<() => void>();
  private readonly bookmarkTimer: NodeJS.Timeout;

  constructor(
    private readonly options: ApiServerOptions,
    private readonly host: string,
  ) {
    this.objects = new ObjectStore(options.maxHistory ?? 10_000);
    this.store = new StoreAccess(this.objects);
    this.handler = new Requests(this.objects);
    const listener = (request: IncomingMessage, response: ServerResponse) => {
      this.serve(request, response).catch((error: unknown) => response.destroy(error as Error));
    };
    if (options.plain) {
      this.ca = '';
      this.server = createHttpServer(listener);
    } else {
      const authority = createAuthority('test-ca');
      this.ca = authority.cert;
      const own = authority.issue({
        commonName: 'kube-apiserver',
        dns: ['localhost'],
        ips: [host, '127.0.0.1'],
      });
      this.server = createHttpsServer({ cert: own.cert, key: own.key }, listener);
    }
    this.server.on('connection', () => {
      this.connectionsAccepted++;
    });
    this.bookmarkTimer = setInterval(() => this.sendBookmarks(), options.bookmarkIntervalMs ?? 60_000);
    this.bookmarkTimer.unref();
  }

  get url(): string {
    const { port } = this.server.address() as AddressInfo;
    return `${this.options.plain ? 'http' : 'https'}://${this.host}:${port}`;
  }

  /** JSON is YAML. */
  get kubeConfigText(): string {
    const trust = this.options.plain
      ? { 'insecure-skip-tls-verify': true }
      : { 'certificate-authority-data': Buffer.from(this.ca).toString('base64') };
    return JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'test', cluster: { server: this.url, ...trust } }],
      users: [{ name: 'test', user: { token: this.token } }],
      contexts: [{ name: 'test', context: { cluster: 'test', user: 'test', namespace: 'default' } }],
      'current-context': 'test',
    });
  }

  get openWatches(): number {
    return this.watches.size;
  }

  listen(port: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.server.once('error', reject);
      this.server.listen(port, this.host, () => resolve());
    });
  }

  count(filter: RequestFilter): number {
    return this.requests.filter((request) => matches(filter, request)).length;
  }

  untilCount(filter: RequestFilter, count: number, timeoutMs = 10_000): Promise<void> {
    return new Promise((resolve, reject) => {
      const look = () => {
        if (this.count(filter) < count) return;
        this.recordListeners.delete(look);
        clearTimeout(timer);
        resolve();
      };
      const timer = setTimeout(() => {
        this.recordListeners.delete(look);
        const what = `${this.count(filter)} instead of ${count} requests ${JSON.stringify(filter)}`;
        reject(new Error(`${what} after ${timeoutMs} ms`));
      }, timeoutMs);
      this.recordListeners.add(look);
      look();
    });
  }

  dropWatches(plural?: string): void {
    for (const watch of this.watchesOf(plural)) watch.drop();
  }

  endWatches(plural?: string): void {
    for (const watch of this.watchesOf(plural)) watch.end();
  }

  writeToWatches(text: string, plural?: string): void {
    for (const watch of this.watchesOf(plural)) watch.raw(text);
  }

  sendBookmarks(): void {
    for (const watch of this.watches) watch.bookmark();
  }

  expireHistory(): void {
    this.objects.expireHistory();
    this.handler.expireTokens();
  }

  async stop(): Promise<void> {
    clearInterval(this.bookmarkTimer);
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections();
    await closed;
  }

  private watchesOf(plural: string | undefined): Watch[] {
    return [...this.watches].filter((watch) => plural === undefined || watch.request.kind.plural === plural);
  }

  private async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://server');
    const target = parseTarget(url.pathname);
    const info = describe(request.method ?? '', url, target);
    let status = 0;
    try {
      if (request.headers.authorization !== `Bearer ${this.token}`) {
        throw new StatusError(401, 'Unauthorized', 'Unauthorized');
      }
      const body = await readBody(request);
      await this.faults.wait(info);
      const failure = this.faults.takeFailure(info);
      if (failure !== undefined) {
        const {
          status: code,
          reason = '',
          message = 'a fault that the test asked for',
          retryAfterSeconds,
        } = failure;
        throw new StatusError(code, reason, message, {}, retryAfterSeconds);
      }
      if (target !== undefined && info.verb === 'watch') {
        const watch = watchRequest(target, url.searchParams, request.headers.accept);
        this.watches.add(new Watch(watch, this.objects, response, (ended) => this.watches.delete(ended)));
        status = 200;
      } else if (target !== undefined) {
        if (request.headers['content-type']?.includes('protobuf')) {
          const message = 'this server reads JSON only: create typed objects with kubectl create -f';
          throw new StatusError(415, 'UnsupportedMediaType', message);
        }
        const json = body === '' ? null : parseBody(body);
        const answer = this.handler.handle(info.verb, target, url.searchParams, request.headers, json);
        status = answer.code;
        sendJson(response, answer.code, answer.body);
      } else status = sendDocument(request, response, url.pathname);
    } catch (error) {
      const answer =
        error instanceof StatusError ? error : new StatusError(500, 'InternalError', `${String(error)}`);
      status = answer.code;
      if (answer.retryAfterSeconds !== undefined) response.setHeader('Retry-After', answer.retryAfterSeconds);
      sendJson(response, answer.code, answer.toStatus());
    } finally {
      this.record({ ...info, status, query: url.search, at: Date.now() });
    }
  }

  private record(record: RequestRecord): void {
    this.requests.push(record);
    if (this.requests.length > maxRecords) this.requests.shift();
    for (const listener of [...this.recordListeners]) listener();
  }
}

function describe(method: string, url: URL, target: Target | undefined): RequestInfo {
  if (target === undefined) {
    return { verb: method.toLowerCase(), plural: url.pathname, namespace: '', name: '', subresource: '' };
  }
  const { kind, namespace, name, subresource } = target;
  return {
    verb: verbOf(method, target, url.searchParams),
    plural: kind.plural,
    namespace,
    name,
    subresource,
  };
}

function sendDocument(request: IncomingMessage, response: ServerResponse, path: string): number {
  if (request.method !== 'GET') throw pathNotFound();
  if (/^\/(healthz|livez|readyz)$/.test(path)) {
    response.writeHead(200, { 'Content-Type': 'text/plain' }).end('ok');
    return 200;
  }
  if (path === '/openapi/v2') {
    const { contentType, body } = openApiV2();
    response.writeHead(200, { 'Content-Type': contentType }).end(body);
    return 200;
  }
  const document = discoveryDocument(path);
  if (document === undefined) throw pathNotFound();
  sendJson(response, 200, document);
  return 200;
}

function sendJson(response: ServerResponse, code: number, body: JsonValue): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  response.writeHead(code, { 'Content-Type': 'application/json' }).end(stringifyJson(body));
}

function parseBody(text: string): JsonValue {
  try {
    return parseJson(text, maxBody);
  } catch (error) {
    throw badRequest(`the body is not JSON: ${String(error)}`);
  }
}

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBody) throw new StatusError(413, 'RequestEntityTooLarge', 'the body is too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
