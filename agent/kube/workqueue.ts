import { ItemRateLimiter } from './item-rate-limiter.js';
import type { Timers } from './timers.js';

interface Delayed {
  readonly dueAt: number;
  readonly cancel: () => void;
}

/** Told what happens in a queue. */
export interface QueueObserver {
  /** A key was added that neither waited nor was to be processed again. */
  added(key: string): void;
  /** A worker got the key. */
  started(key: string): void;
  done(key: string): void;
  /** A key was added for later. */
  retried(): void;
}

const noObserver: QueueObserver = { added() {}, started() {}, done() {}, retried() {} };

/**
 * Queue of keys with the semantics of client-go's rate limiting work queue: a key waits at most once, a
 * key added while it is processed is queued once more after `done`, and no key is handed to two workers
 * at a time. It is bounded by the number of different keys.
 */
export class WorkQueue {
  /** Keys to hand out, oldest first (a Set keeps insertion order). */
  private readonly waiting = new Set<string>();
  private readonly processing = new Set<string>();
  /** Keys added while they were processed. */
  private readonly again = new Set<string>();
  private readonly delayed = new Map<string, Delayed>();
  private readonly getters: ((key: string | undefined) => void)[] = [];
  private readonly limiter: ItemRateLimiter;
  private shuttingDown = false;
  private readonly idle: (() => void)[] = [];

  constructor(
    private readonly timers: Timers,
    private readonly observer: QueueObserver = noObserver,
  ) {
    this.limiter = new ItemRateLimiter(timers);
  }

  /** Keys that wait for a worker; those delayed or being processed are not counted. */
  get length(): number {
    return this.waiting.size;
  }

  add(key: string): void {
    if (this.shuttingDown) return;
    if (this.waiting.has(key) || this.again.has(key)) return;
    this.observer.added(key);
    if (this.processing.has(key)) this.again.add(key);
    else this.enqueue(key);
  }

  /**
   * Adds `key` in `ms`. While a key is pending only the earliest deadline counts; a direct `add` leaves it
   * in place.
   */
  addAfter(key: string, ms: number): void {
    if (this.shuttingDown) return;
    this.observer.retried();
    if (ms <= 0) {
      this.add(key);
      return;
    }
    const dueAt = this.timers.now() + ms;
    const pending = this.delayed.get(key);
    if (pending !== undefined && pending.dueAt <= dueAt) return;
    pending?.cancel();
    const cancel = this.timers.after(ms, () => {
      this.delayed.delete(key);
      this.add(key);
    });
    this.delayed.set(key, { dueAt, cancel });
  }

  /** Adds `key` after the delay that its failures have earned. */
  addRateLimited(key: string): void {
    if (this.shuttingDown) return;
    this.addAfter(key, this.limiter.when(key));
  }

  /** The key succeeded: its next failure starts at the shortest delay again. */
  forget(key: string): void {
    this.limiter.forget(key);
  }

  /**
   * The next key, oldest first; waits for one. Undefined once the queue is shut down. Every key got must be
   * given back with `done`.
   */
  get(): Promise<string | undefined> {
    const [key] = this.waiting;
    if (key !== undefined) {
      this.waiting.delete(key);
      this.start(key);
      return Promise.resolve(key);
    }
    if (this.shuttingDown) return Promise.resolve(undefined);
    return new Promise((resolve) => this.getters.push(resolve));
  }

  done(key: string): void {
    this.processing.delete(key);
    this.observer.done(key);
    if (this.again.delete(key)) this.enqueue(key);
    if (this.shuttingDown) this.checkIdle();
  }

  /**
   * Stops taking keys and drops those that wait or are delayed: the next agent lists all of them again. The
   * promise resolves when those being processed are done.
   */
  shutDown(): Promise<void> {
    this.shuttingDown = true;
    this.waiting.clear();
    this.again.clear();
    for (const { cancel } of this.delayed.values()) cancel();
    this.delayed.clear();
    for (const getter of this.getters.splice(0)) getter(undefined);
    return new Promise((resolve) => {
      this.idle.push(resolve);
      this.checkIdle();
    });
  }

  private enqueue(key: string): void {
    const getter = this.getters.shift();
    if (getter === undefined) {
      this.waiting.add(key);
      return;
    }
    this.start(key);
    getter(key);
  }

  private start(key: string): void {
    this.processing.add(key);
    this.observer.started(key);
  }

  private checkIdle(): void {
    if (this.processing.size > 0) return;
    for (const resolve of this.idle.splice(0)) resolve();
  }
}
