import type { PodRef } from '../api/pod-ref.js';
import { HelperUnavailable } from '../helper/errors.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { LauncherPods } from '../helper/launcher-pods.js';
import { LauncherConnection } from './connection.js';

/** The right to use a pod's connection. The last one to release it closes the connection. */
export interface Lease {
  readonly connection: Pick<LauncherConnection, 'transport' | 'alive'>;
  release(): void;
}

interface Held {
  readonly connection: LauncherConnection;
  leases: number;
}

/** What trying to reach a launcher says about it. `unknown`: the helper could not be asked. */
export type Liveness = 'alive' | 'hung' | 'dead' | 'unknown';

/** errnos of a socket that nobody listens on any more or that is not there. */
const deadErrnos = new Set(['ECONNREFUSED', 'ENOENT', 'ENOTDIR']);

/**
 * At most one connection to each launcher. One that was made but not answered yet is kept and waited for
 * again by the next caller, so that looking at a stopped launcher does not fill its backlog.
 */
export class LauncherConnections {
  private readonly held = new Map<string, Held>();
  private readonly dialing = new Map<string, Promise<Held>>();

  constructor(
    private readonly helper: Pick<HelperClient, 'connectLauncher'>,
    private readonly pods: LauncherPods,
  ) {
    // A launcher that is gone needs no connection; calls under way fail at once.
    pods.on('change', (podUid, state) => {
      if (state === undefined || state.launcherExited) this.abandon(podUid);
    });
  }

  /** Connects if needed and agrees on a version. Throws a HelperError or an error with the text operators know. */
  async acquire(pod: PodRef): Promise<Lease> {
    const held = this.current(pod.podUid) ?? (await this.dial(pod));
    held.leases++;
    let released = false;
    const release = () => {
      if (released) return;
      released = true;
      held.leases--;
      // A connection without an answer yet stays for the next one who asks.
      if (held.leases === 0 && (held.connection.negotiated || held.connection.rejected))
        this.drop(pod.podUid, held);
    };
    try {
      await held.connection.negotiate();
    } catch (error) {
      release();
      throw error;
    }
    return { connection: held.connection, release };
  }

  /** Without a new connection if there is one already, answered or not. */
  async liveness(pod: PodRef): Promise<Liveness> {
    const { podUid } = pod;
    const state = this.pods.get(podUid);
    if (state === undefined) return this.pods.synced ? 'dead' : 'unknown';
    if (state.launcherExited || state.launcherSocket === 'absent') return 'dead';
    const held = this.current(podUid);
    if (held !== undefined) return held.connection.negotiated ? 'alive' : 'hung';
    return state.launcherSocket === 'present' ? this.ask(pod) : 'hung';
  }

  close(podUid: string): void {
    const held = this.held.get(podUid);
    if (held !== undefined) this.drop(podUid, held);
  }

  closeAll(): void {
    for (const podUid of [...this.held.keys()]) this.close(podUid);
  }

  private async ask(pod: PodRef): Promise<Liveness> {
    try {
      (await this.acquire(pod)).release();
      return 'alive';
    } catch (error) {
      return livenessOf(error);
    }
  }

  private current(podUid: string): Held | undefined {
    const held = this.held.get(podUid);
    if (held === undefined || held.connection.alive) return held;
    this.held.delete(podUid);
    return undefined;
  }

  private async dial(pod: PodRef): Promise<Held> {
    const { podUid } = pod;
    const running = this.dialing.get(podUid);
    if (running !== undefined) return running;
    const dialing = this.connect(pod).finally(() => this.dialing.delete(podUid));
    this.dialing.set(podUid, dialing);
    return dialing;
  }

  private async connect(pod: PodRef): Promise<Held> {
    const socket = await this.helper.connectLauncher(pod);
    const held = { connection: new LauncherConnection(socket), leases: 0 };
    this.held.set(pod.podUid, held);
    void held.connection.closed.then(() => this.remove(pod.podUid, held));
    return held;
  }

  private abandon(podUid: string): void {
    this.held.get(podUid)?.connection.abandon();
    this.held.delete(podUid);
  }

  private drop(podUid: string, held: Held): void {
    this.remove(podUid, held);
    held.connection.close();
  }

  private remove(podUid: string, held: Held): void {
    if (this.held.get(podUid) === held) this.held.delete(podUid);
  }
}

/** Only what proves that nobody listens is death; everything else may be a launcher that is slow or stopped. */
export function livenessOf(error: unknown): Liveness {
  if (error instanceof HelperUnavailable) return 'unknown';
  const errno = (error as { errnoName?: unknown }).errnoName;
  return typeof errno === 'string' && deadErrnos.has(errno) ? 'dead' : 'hung';
}
