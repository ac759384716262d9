/**
 * HTTP to the API server: address, TLS and credentials from the kubeconfig or the service account, one
 * pool of kept connections.
 */
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest, type RequestOptions } from 'node:https';
import type { KubeConfig } from '@kubernetes/client-node';
import type { Clock } from '../clock.js';
import { ApiUnavailable } from './api-error.js';

export interface HttpCall {
  readonly method: string;
  /** Path with query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  readonly signal: AbortSignal;
}

/** How long credentials are used before they are read again (the service account token rotates). */
const credentialsMaxAgeMs = 10_000;
const maxSockets = 64;
const maxFreeSockets = 8;
const tcpKeepAliveMs = 30_000;

export class Transport {
  private readonly server: URL;
  private readonly agent: HttpAgent | HttpsAgent;
  private readonly proxied: boolean;
  private credentials: { readonly readAt: number; readonly options: RequestOptions } | undefined;

  /** Throws when the configuration names no cluster. */
  constructor(
    private readonly kubeConfig: KubeConfig,
    private readonly clock: Clock,
  ) {
    const cluster = kubeConfig.getCurrentCluster();
    if (cluster === null) throw new Error('the kubeconfig has no current cluster');
    this.server = new URL(cluster.server);
    if (this.server.protocol !== 'https:' && this.server.protocol !== 'http:') {
      throw new Error(`the API server's address ${cluster.server} is neither http nor https`);
    }
    this.proxied = cluster.proxyUrl !== undefined;
    const pool = { keepAlive: true, keepAliveMsecs: tcpKeepAliveMs, maxSockets, maxFreeSockets };
    this.agent = this.server.protocol === 'https:' ? new HttpsAgent(pool) : new HttpAgent(pool);
  }

  /** Sends the call; resolves with the head of the answer. Rejects with ApiUnavailable, or the signal's reason. */
  async send(call: HttpCall): Promise<IncomingMessage> {
    call.signal.throwIfAborted();
    const options = await this.requestOptions(call);
    try {
      return await this.once(call, options, false);
    } catch (error) {
      // The server closed a kept connection while the request was on its way; nothing was answered.
      if (error !== staleConnection) throw error;
      return await this.once(call, options, true);
    }
  }

  /** The next call reads the credentials again. */
  forgetCredentials(): void {
    this.credentials = undefined;
  }

  /** Closes all connections. */
  close(): void {
    this.agent.destroy();
  }

  private once(call: HttpCall, options: RequestOptions, last: boolean): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const send = this.server.protocol === 'https:' ? httpsRequest : httpRequest;
      const request = send(options, resolve);
      request.on('error', (error: NodeJS.ErrnoException) => {
        if (call.signal.aborted) reject(call.signal.reason as Error);
        else if (!last && call.method !== 'POST' && request.reusedSocket && closedByPeer.has(error.code)) {
          reject(staleConnection);
        } else {
          const target = `${call.method} ${this.server.origin}${call.path}`;
          reject(new ApiUnavailable(`${target}: ${error.message || error.code}`, { cause: error }));
        }
      });
      // Half-open connections must not keep a quiet watch waiting.
      request.on('socket', (socket) => socket.setKeepAlive(true, tcpKeepAliveMs));
      request.end(call.body);
    });
  }

  private async requestOptions(call: HttpCall): Promise<RequestOptions> {
    const { options } = await this.readCredentials();
    const headers: Record<string, string> = {
      ...(options.headers as Record<string, string>),
      ...call.headers,
    };
    if (call.body !== undefined) headers['Content-Length'] = String(Buffer.byteLength(call.body));
    return {
      ...options,
      agent: this.proxied ? options.agent : this.agent,
      hostname: this.server.hostname.replace(/^\[|\]$/g, ''),
      port: this.server.port,
      path: `${this.server.pathname.replace(/\/$/, '')}${call.path}`,
      method: call.method,
      headers,
      signal: call.signal,
    };
  }

  private async readCredentials(): Promise<{ readonly options: RequestOptions }> {
    const now = this.clock.now();
    if (this.credentials !== undefined && now - this.credentials.readAt < credentialsMaxAgeMs) {
      return this.credentials;
    }
    const options: RequestOptions = { headers: {} };
    try {
      await this.kubeConfig.applyToHTTPSOptions(options);
    } catch (error) {
      throw new ApiUnavailable('reading the credentials for the API server failed', { cause: error });
    }
    const headers = options.headers as Record<string, string>;
    // A token file may end with a newline, which no header may contain.
    if (headers['Authorization'] !== undefined) headers['Authorization'] = headers['Authorization'].trim();
    this.credentials = { readAt: now, options };
    return this.credentials;
  }
}

const closedByPeer = new Set<string | undefined>(['ECONNRESET', 'EPIPE']);
const staleConnection = new Error('the kept connection was closed by the server');
