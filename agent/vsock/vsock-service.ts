/** The VSOCK service of the node, there while the feature gate VSOCK is on. */
import { Socket } from 'node:net';
import type { Native, RelayedConnection, RelayLimits } from '../../native/binding.js';
import type { HelperClient } from '../helper/helper-client.js';
import { sleep, type Timers } from '../kube/timers.js';
import type { Logger } from '../log/log.js';
import { SystemServer } from './system-server.js';

const retryMs = 1_000;

/** A guest needs one connection, now and then. With each costing at most some 100 KiB all together stay small. */
const limits: RelayLimits = {
  connections: 128,
  perPeer: 2,
  burst: 10,
  perMinute: 60,
  maxReceivedBytes: 256 * 1024,
};

export interface VsockServiceOptions {
  readonly helper: Pick<HelperClient, 'listenVsock'>;
  readonly relay: Pick<Native, 'acceptRelayed' | 'close'>;
  /** PEM text; throws while there is none. */
  readonly caBundle: () => Uint8Array;
  readonly timers: Timers;
  readonly log: Logger;
}

export class VsockService {
  private wanted: AbortController | undefined;
  private ended: Promise<void> = Promise.resolve();

  constructor(private readonly options: VsockServiceOptions) {}

  /** Starts or stops; what is so already stays as it is. A stop cuts the connections of guests. */
  set(on: boolean): void {
    if (on === (this.wanted !== undefined)) return;
    this.options.log.info(`the VSOCK service is switched ${on ? 'on' : 'off'}`);
    this.wanted?.abort();
    this.wanted = undefined;
    if (!on) return;
    const wanted = new AbortController();
    this.wanted = wanted;
    // The port is free when the service before has let go of it.
    this.ended = this.ended.then(() => this.run(wanted.signal));
  }

  /** Resolves when nothing of it is left. */
  async stop(): Promise<void> {
    this.set(false);
    await this.ended;
  }

  private async run(signal: AbortSignal): Promise<void> {
    let told: string | undefined;
    while (!signal.aborted) {
      try {
        await this.serveOnce(signal, () => {
          told = undefined;
          this.options.log.info('guests can ask for the CA bundle on VSOCK port 1');
        });
      } catch (error) {
        const reason = (error as Error).message;
        if (reason !== told && !signal.aborted) {
          this.options.log.warning(`no VSOCK service, trying every ${retryMs} ms`, error);
        }
        told = reason;
      }
      await sleep(this.options.timers, retryMs, signal).catch(() => undefined); // Aborted: the loop ends.
    }
  }

  /** Serves until the signal aborts; throws why that is not possible any more. Nothing is left of it either way. */
  private async serveOnce(signal: AbortSignal, onListening: () => void): Promise<void> {
    const { helper, relay, caBundle } = this.options;
    const listener = await helper.listenVsock();
    if (signal.aborted) {
      relay.close(listener);
      return;
    }
    const server = new SystemServer(caBundle);
    let accepting: { stop(): void } | undefined;
    let onAbort: (() => void) | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        onAbort = resolve;
        signal.addEventListener('abort', onAbort);
        accepting = relay.acceptRelayed(listener, limits, (arrived) => {
          if (arrived instanceof Error) reject(arrived);
          else server.serve(socketOf(arrived));
        });
        onListening();
      });
    } finally {
      // The signal outlives listeners that break.
      if (onAbort !== undefined) signal.removeEventListener('abort', onAbort);
      accepting?.stop();
      server.stop();
    }
  }
}

function socketOf({ fd }: RelayedConnection): Socket {
  return new Socket({ fd, readable: true, writable: true });
}
