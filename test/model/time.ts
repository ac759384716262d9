import type { Timers } from '../../agent/kube/timers.js';

/** More timers than any history needs. */
const maxFired = 20_000;

/**
 * The time of one history. It passes from one timer to the next, and only when everything that happens by
 * itself has happened.
 */
export class ModelTime implements Timers {
  #now = Date.parse('2026-01-01T00:00:00Z');
  readonly #timers = new Map<number, { readonly dueAt: number; readonly run: () => void }>();
  #next = 0;
  #fired = 0;

  now(): number {
    return this.#now;
  }

  after(ms: number, run: () => void): () => void {
    const id = this.#next++;
    this.#timers.set(id, { dueAt: this.#now + Math.max(ms, 0), run });
    return () => this.#timers.delete(id);
  }

  get pending(): number {
    return this.#timers.size;
  }

  /** Lets `seconds` pass. */
  async pass(seconds: number): Promise<void> {
    const end = this.#now + seconds * 1000;
    await settle();
    for (let id = this.#earliest(end); id !== undefined; id = this.#earliest(end)) {
      const timer = this.#timers.get(id);
      this.#timers.delete(id);
      if (timer === undefined) continue;
      this.#now = timer.dueAt;
      if (++this.#fired > maxFired) throw new Error('hot loop: time does not get on');
      timer.run();
      await settle();
    }
    this.#now = end;
  }

  #earliest(end: number): number | undefined {
    let first: number | undefined;
    let dueAt = end;
    for (const [id, timer] of this.#timers) {
      // Of two that are due at once the one that was set first.
      if (timer.dueAt < dueAt || (timer.dueAt === dueAt && first === undefined)) {
        first = id;
        dueAt = timer.dueAt;
      }
    }
    return first;
  }
}

/** Promises, streams and immediate callbacks; nothing in a history waits for anything else. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 3; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
}
