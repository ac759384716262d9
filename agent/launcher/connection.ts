import http2 from 'node:http2';
import type { Socket } from 'node:net';
import { Code, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { CmdInfo } from '../../gen/kubevirt/cmd/info/info_pb.js';
import { statusText } from './errors.js';
import { highestCompatibleVersion, supportedCmdVersions } from './versions.js';

const dialTimeoutMs = 2_000;
const infoTimeoutMs = 5_000;
/** grpc-go's default limit for received messages, kept on both sides. */
const maxMessageBytes = 4 * 1024 * 1024;
/** Nothing is resolved: the socket is connected already. */
const authority = 'http://localhost';

type SessionManager = NonNullable<Parameters<typeof createGrpcTransport>[0]['sessionManager']>;

/**
 * One HTTP/2 connection with prior knowledge over a socket that is connected already. It is never made anew:
 * when it is gone, whoever holds it asks for another. No PINGs are sent (grpc-go cuts a client that pings
 * more often than every 5 minutes).
 */
export class LauncherConnection {
  readonly transport: Transport;
  /** Settles when the connection is gone, however that happened. */
  readonly closed: Promise<void>;
  private readonly session: http2.ClientHttp2Session;
  private readonly settings: Promise<void>;
  private negotiation: Promise<void> | undefined;
  private closedHere = false;
  private gone = false;
  private agreed = false;
  private refused = false;

  constructor(socket: Socket) {
    this.session = http2.connect(authority, {
      createConnection: () => socket,
      settings: { enablePush: false },
    });
    this.settings = new Promise((resolve, reject) => {
      this.session.once('remoteSettings', () => resolve());
      this.session.once('close', () => reject(connectionLost()));
    });
    // Whoever waits for the settings sees the failure; nobody else needs to.
    this.settings.catch(() => undefined);
    this.closed = new Promise((resolve) => {
      this.session.once('close', () => {
        this.gone = true;
        resolve();
      });
    });
    // Told by `close` as well, and by every call under way.
    this.session.on('error', () => undefined);
    this.session.on('goaway', () => this.session.close());
    const transport = createGrpcTransport({
      baseUrl: authority,
      sessionManager: this.sessionManager(),
      acceptCompression: [],
      useBinaryFormat: true,
      readMaxBytes: maxMessageBytes,
    });
    this.transport = {
      unary: async (...call) => {
        try {
          return await transport.unary(...call);
        } catch (error) {
          throw this.explain(ConnectError.from(error));
        }
      },
      stream: transport.stream,
    };
  }

  /** The launcher has answered and speaks a version that the agent knows. */
  get negotiated(): boolean {
    return this.agreed;
  }

  /** The launcher has answered, but not in a way that the agent can work with. */
  get rejected(): boolean {
    return this.refused;
  }

  get alive(): boolean {
    return !this.gone && !this.closedHere && !this.session.closed && !this.session.destroyed;
  }

  /**
   * Waits for the launcher's HTTP/2 settings (2 s) and agrees on a protocol version (5 s). May be called
   * again after a failure of the first kind: a launcher that is only slow answers later on the same
   * connection, so that its backlog does not fill up.
   */
  async negotiate(): Promise<void> {
    // Asked at once: HTTP/2 lets a client speak before it has seen the settings.
    this.negotiation ??= this.askVersion().catch((error: unknown) => {
      this.negotiation = undefined;
      throw error;
    });
    const { negotiation } = this;
    // Without settings nobody waits for the version.
    negotiation.catch(() => undefined);
    await withDeadline(this.settings, dialTimeoutMs, this.dialFailure.bind(this));
    await negotiation;
    this.agreed = true;
  }

  /** Ends the connection; calls under way and later ones are Canceled. */
  close(): void {
    if (!this.gone) this.closedHere = true;
    this.session.destroy(connectionClosing(), http2.constants.NGHTTP2_NO_ERROR);
  }

  /** Ends the connection to a launcher that is known to be gone; calls under way are Unavailable. */
  abandon(): void {
    this.session.destroy(connectionLost(), http2.constants.NGHTTP2_NO_ERROR);
  }

  /**
   * Node ends the streams of a lost connection as if they were cancelled. Only a connection that was closed
   * on this side is Canceled; a launcher that went away is Unavailable.
   */
  private explain(error: ConnectError): ConnectError {
    if (error.metadata.has('grpc-status')) return error;
    if (this.closedHere) return connectionClosing();
    if (error.code === Code.DeadlineExceeded)
      return new ConnectError('context deadline exceeded', error.code);
    return this.alive && error.code !== Code.Canceled ? error : connectionLost();
  }

  private dialFailure(cause?: unknown): Error {
    return new Error('context deadline exceeded', { cause });
  }

  private async askVersion(): Promise<void> {
    let versions: number[];
    try {
      const info = createClient(CmdInfo, this.transport);
      versions = (await info.info({}, { timeoutMs: infoTimeoutMs })).supportedCmdVersions;
    } catch (reason) {
      const error = ConnectError.from(reason);
      this.refused = error.code !== Code.DeadlineExceeded;
      throw new Error(`could not check cmd server version: ${statusText(error)}`, { cause: error });
    }
    try {
      highestCompatibleVersion(versions, supportedCmdVersions);
    } catch (error) {
      this.refused = true;
      throw error;
    }
  }

  private sessionManager(): SessionManager {
    return {
      authority,
      request: async (method, path, headers, options) => {
        if (this.closedHere) throw connectionClosing();
        if (!this.alive) throw connectionLost();
        // The content type that grpc-go sends; launchers of all releases know it.
        const all = {
          ...headers,
          'content-type': 'application/grpc',
          ':authority': 'localhost',
          ':method': method,
          ':path': path,
        };
        return this.session.request(all, options);
      },
      notifyResponseByteRead: () => undefined,
    };
  }
}

function connectionClosing(): ConnectError {
  return new ConnectError('grpc: the client connection is closing', Code.Canceled);
}

function connectionLost(): ConnectError {
  return new ConnectError('error reading from server: EOF', Code.Unavailable);
}

async function withDeadline(
  promise: Promise<void>,
  ms: number,
  failure: (cause?: unknown) => Error,
): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const deadline = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(failure()), ms);
  });
  try {
    await Promise.race([promise.catch((error: unknown) => Promise.reject(failure(error))), deadline]);
  } finally {
    clearTimeout(timer);
  }
}
