/** What a running agent tells to whoever may open its socket: metrics and timelines, read only. */
import { chmod, rm } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { Logger } from '../log/log.js';
import type { Registry } from '../metrics/registry.js';
import type { TimelineRecorder } from '../timeline/timeline.js';

const maxConnections = 8;
const requestTimeoutMs = 5_000;
const maxHeaderBytes = 8 * 1024;

export interface InspectOptions {
  /** Path of the socket; only the agent's own user may connect. */
  readonly path: string;
  readonly metrics: Pick<Registry, 'text'>;
  readonly timelines: Pick<TimelineRecorder, 'latest'>;
  readonly log: Logger;
}

export class InspectServer {
  readonly #server: http.Server;

  constructor(private readonly options: InspectOptions) {
    this.#server = http.createServer(
      { maxHeaderSize: maxHeaderBytes, requestTimeout: requestTimeoutMs, connectionsCheckingInterval: 1_000 },
      (request, response) => this.#answer(request, response),
    );
    this.#server.maxConnections = maxConnections;
  }

  /** A socket that an agent before left behind is replaced. Throws the error of listen(2). */
  async start(): Promise<void> {
    const { path, log } = this.options;
    await rm(path, { force: true });
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(path, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
    this.#server.on('error', (error) => log.warning(`the socket ${path} failed`, error));
    await chmod(path, 0o600);
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const send = (status: number, type: string, text: string) =>
      response.writeHead(status, { 'Content-Type': type, Connection: 'close' }).end(text);
    if (request.method !== 'GET') return void send(405, 'text/plain', 'only GET is served\n');
    if (request.url === '/metrics') {
      return void send(200, 'text/plain; version=0.0.4', this.options.metrics.text());
    }
    const key = timelineKey(request.url ?? '');
    const timeline = key === undefined ? undefined : this.options.timelines.latest(key);
    if (timeline !== undefined) return void send(200, 'application/json', JSON.stringify(timeline));
    send(404, 'text/plain', key === undefined ? 'not found\n' : `no timeline of ${key}\n`);
  }
}

/** `/timeline/<namespace>/<name>` -> `namespace/name`. */
function timelineKey(url: string): string | undefined {
  return /^\/timeline\/([a-z0-9.-]{1,253}\/[a-z0-9.-]{1,253})$/.exec(url)?.[1];
}
