/** One Watch stream: what its reader has not yet taken, the latest state of each pod only. */
import type { PodState } from '../../native/binding.js';
import { exhausted } from '../failure.js';

export interface ObservedPod extends PodState {
  readonly podUid: string;
  /** The pinned launcher process has exited. */
  readonly launcherExited: boolean;
}

export type PodEvent =
  | { readonly kind: 'pod'; readonly pod: ObservedPod }
  | { readonly kind: 'gone'; readonly podUid: string }
  | { readonly kind: 'synced' };

export class Subscription {
  private readonly pending = new Map<string, PodEvent>();
  private failure: Error | undefined;
  private wake: (() => void) | undefined;

  constructor(private readonly maxPending: number) {}

  push(podUid: string, event: PodEvent): void {
    // Deleted first, so that the event goes to the end of the line.
    this.pending.delete(podUid);
    this.pending.set(podUid, event);
    if (this.pending.size > this.maxPending) {
      this.end(exhausted('watch pods', `reader is more than ${this.maxPending} changes behind`));
    }
    this.wake?.();
  }

  /** The reader gets the failure at its next step. */
  end(failure: Error): void {
    this.failure ??= failure;
    this.pending.clear();
    this.wake?.();
  }

  /** Changes in order until the signal or {@link end}. */
  async *changes(signal: AbortSignal): AsyncGenerator<PodEvent> {
    const onAbort = () => this.wake?.();
    signal.addEventListener('abort', onAbort);
    try {
      while (!signal.aborted) {
        if (this.failure !== undefined) throw this.failure;
        const next = this.pending.entries().next();
        if (next.done) {
          await new Promise<void>((resolve) => {
            this.wake = resolve;
          });
          this.wake = undefined;
          continue;
        }
        const [podUid, event] = next.value;
        this.pending.delete(podUid);
        yield event;
      }
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }
}
