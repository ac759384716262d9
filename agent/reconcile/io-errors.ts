/** Back-off for guests that pause on I/O errors (KubeVirt pkg/virt-handler/retry_manager.go). */
import type { Clock } from '../clock.js';

interface Retry {
  lastRun: number;
  nextRun: number;
  wait: number;
  failed: boolean;
}

const ioErrorLimits = { initialWaitMs: 10_000, maxWaitMs: 180_000, maxResponseMs: 30_000 } as const;

/**
 * Each update of a VM that is paused by an I/O error lets the launcher resume it. One that pauses again
 * within the response window has failed, and the next update waits twice as long.
 */
export class IoErrorBackoff {
  readonly #retries = new Map<string, Retry>();
  #collectedAt = Number.NEGATIVE_INFINITY;

  constructor(
    private readonly clock: Clock,
    private readonly limits: {
      readonly initialWaitMs: number;
      readonly maxWaitMs: number;
      readonly maxResponseMs: number;
    } = ioErrorLimits,
  ) {}

  /** Milliseconds that the update of this VMI has to wait; undefined: none. `failing`: it is paused. */
  delay(uid: string, failing: boolean): number | undefined {
    if (!failing) return undefined;
    const now = this.clock.now();
    const retry = this.#retries.get(uid);
    if (retry === undefined) return this.#start(uid, now);
    if (!retry.failed) {
      if (now >= retry.lastRun + this.limits.maxResponseMs) return this.#start(uid, now);
      retry.failed = true;
      return retry.nextRun > now ? retry.nextRun - now : undefined;
    }
    if (now <= retry.nextRun) return retry.nextRun - now;
    retry.wait = Math.min(2 * retry.wait, this.limits.maxWaitMs);
    retry.lastRun = now;
    retry.nextRun = now + retry.wait;
    retry.failed = false;
    return undefined;
  }

  /** Drops the VMs that have been well for longer than the response window; at most every `maxWaitMs`. */
  #collect(now: number): void {
    if (now < this.#collectedAt + this.limits.maxWaitMs) return;
    this.#collectedAt = now;
    for (const [uid, retry] of this.#retries) {
      if (!retry.failed && retry.lastRun + this.limits.maxResponseMs < now) this.#retries.delete(uid);
    }
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#retries.size;
  }

  forget(uid: string): void {
    this.#retries.delete(uid);
  }

  #start(uid: string, now: number): undefined {
    this.#collect(now);
    const wait = this.limits.initialWaitMs;
    this.#retries.set(uid, { lastRun: now, nextRun: now + wait, wait, failed: false });
    return undefined;
  }
}
