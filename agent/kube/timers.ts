/** Time as the Kubernetes layer sees it, injected so that tests decide what passes. */
import type { Clock } from '../clock.js';

export interface Timers extends Clock {
  /** Calls `run` once after `ms`. The returned function cancels it; calling it late is harmless. */
  after(ms: number, run: () => void): () => void;
}

/** setTimeout fires at once for a longer delay. */
const longestDelayMs = 2 ** 31 - 1;

export function systemTimers(): Timers {
  return {
    now: () => Date.now(),
    after(ms, run) {
      const timer = setTimeout(run, Math.min(Math.max(ms, 0), longestDelayMs));
      return () => clearTimeout(timer);
    },
  };
}

/** Resolves after `ms`, or rejects with the signal's reason as soon as it is aborted. */
export function sleep(timers: Timers, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason as Error);
      return;
    }
    const aborted = () => {
      cancel();
      reject(signal.reason as Error);
    };
    const cancel = timers.after(ms, () => {
      signal.removeEventListener('abort', aborted);
      resolve();
    });
    signal.addEventListener('abort', aborted, { once: true });
  });
}

/** What `promise` gives, or `late()` once the time is over. */
export async function within<T>(timers: Timers, ms: number, promise: Promise<T>, late: () => T): Promise<T> {
  let cancel = () => {};
  const tooLate = new Promise<T>((resolve) => {
    cancel = timers.after(ms, () => resolve(late()));
  });
  try {
    return await Promise.race([promise, tooLate]);
  } finally {
    cancel();
  }
}

export interface Deadline {
  readonly signal: AbortSignal;
  /** Stops the clock; the parent still aborts. */
  disarm(): void;
  /** Stops the clock and lets go of the parent. */
  dispose(): void;
}

/** A signal that is aborted with `parent`, or with the error of `timedOut` after `ms`. */
export function withDeadline(
  timers: Timers,
  ms: number,
  parent: AbortSignal | undefined,
  timedOut: () => Error,
): Deadline {
  const controller = new AbortController();
  const end = () => controller.abort(parent?.reason);
  if (parent?.aborted) end();
  else parent?.addEventListener('abort', end, { once: true });
  const disarm = timers.after(ms, () => controller.abort(timedOut()));
  return {
    signal: controller.signal,
    disarm,
    dispose() {
      disarm();
      parent?.removeEventListener('abort', end);
    },
  };
}
