/** What the processes need besides calls about pods: sockets, descriptors, watches. */
import type { Call, NativeError, Peer } from './call.js';
import type { NamespaceId } from './network.js';

/** A kernel interface; `error` is empty when it is there, `EPERM` when the caller may not find out. */
export interface KernelFeature {
  readonly name: string;
  readonly error: string;
}

/** One inotify event. `overflow` stands alone and means: look everywhere again. */
export interface InotifyEvent {
  readonly wd: number;
  readonly mask: number;
  /** Name of the entry, empty for events on the watched directory itself. */
  readonly name: string;
}

/** Bounds of relayed connections. A peer is a guest; where the listener is of another family all are one. */
export interface RelayLimits {
  /** At a time, of all peers. */
  readonly connections: number;
  /** At a time. */
  readonly perPeer: number;
  /** How many a peer may make at once, and make again in a minute. */
  readonly burst: number;
  readonly perMinute: number;
  /** What one connection may bring. */
  readonly maxReceivedBytes: number;
}

export interface RelayedConnection {
  /** A stream socket that Node can use. Its bytes are relayed from and to the connection. */
  readonly fd: number;
}

/**
 * Why a connection to the descriptor channel is to be refused. EACCES: another user than `uid`, known when it came.
 * EAGAIN: it came beyond `maxConnections`. EMSGSIZE: its message was longer than `maxBytes`. ETIMEDOUT: it sent nothing.
 */
export type RefusedRequest = 'EACCES' | 'EAGAIN' | 'EMSGSIZE' | 'ETIMEDOUT';

/** None but the first two takes a privileged thread. */
export interface ProcessCalls {
  /** Sets or clears the append-only flag of a file that the helper owns. False: the file system has no such flag. */
  setAppendOnly(call: Call, fd: number, on: boolean): Promise<boolean>;
  /** Listens on the host's vsock address, CID 2, port 1 (vsock(7)), after the kernel was made to load /dev/vhost-vsock. */
  listenVsock(call: Call): Promise<number>;
  close(fd: number): void;
  /** Which of the kernel interfaces that operations use this kernel has. Nothing takes effect. */
  probeKernel(): KernelFeature[];
  /** dev:inode of what a descriptor or a path (at start only) denotes. */
  namespaceId(path: string): NamespaceId;
  /** Binds and listens on a unix socket; an old socket at the path is replaced. Mode and group as given. */
  listenUnix(options: {
    path: string;
    type: 'stream' | 'seqpacket';
    mode: number;
    gid: number;
    backlog: number;
  }): number;
  /** Accepts on a listening descriptor until stopped. Takes over the descriptor. */
  acceptConnections(fd: number, onConnection: (fd: number, peer: Peer) => void): { stop(): void };
  /**
   * Accepts on a listening stream socket of any family, which it takes over, and relays each connection to a socket
   * that Node can use. Those beyond the limits are closed at once. An error is the last that comes. `stop` closes
   * everything at once.
   */
  acceptRelayed(
    fd: number,
    limits: RelayLimits,
    onArrival: (arrived: RelayedConnection | NativeError) => void,
  ): { stop(): void };
  /**
   * Serves the descriptor channel: each accepted connection carries one request message of at most
   * `maxBytes`, within `timeoutMs`, then `onRequest`; `reply` sends one status byte and at most one
   * descriptor (which it closes) and ends the connection. It is to be called for what is to be refused, too.
   */
  serveDescriptors(
    fd: number,
    options: { maxBytes: number; timeoutMs: number; maxConnections: number; uid: number },
    onRequest: (
      request: Uint8Array | RefusedRequest,
      peer: Peer,
      reply: (status: number, fd: number | null) => void,
    ) => void,
  ): { stop(): void };
  /** Redeems a ticket on the descriptor channel. A status other than 0 gives an error of that errno. */
  claimDescriptor(path: string, ticket: Uint8Array, timeoutMs: number): Promise<number>;
  /** Makes an inotify instance whose events go to `onEvents` in batches. An overflow event has wd -1. */
  createInotify(onEvents: (events: InotifyEvent[]) => void): { readonly fd: number; close(): void };
  removeWatch(inotify: number, wd: number): void;
  /** Calls back once when the process of the pidfd has exited. The descriptor stays the caller's. */
  onProcessExit(pidfd: number, callback: () => void): { cancel(): void };
}
