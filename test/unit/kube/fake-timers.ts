import type { Timers } from '../../../agent/kube/timers.js';

/** Time that passes only when told to. Timers due at the same moment fire in the order they were set. */
export class FakeTimers implements Timers {
  private time = 1_700_000_000_000;
  private pending: { readonly dueAt: number; readonly run: () => void }[] = [];

  now(): number {
    return this.time;
  }

  after(ms: number, run: () => void): () => void {
    const timer = { dueAt: this.time + Math.max(ms, 0), run };
    this.pending.push(timer);
    return () => {
      this.pending = this.pending.filter((other) => other !== timer);
    };
  }

  get pendingCount(): number {
    return this.pending.length;
  }

  /** Milliseconds until the next timer fires. */
  get nextIn(): number | undefined {
    if (this.pending.length === 0) return undefined;
    return Math.min(...this.pending.map(({ dueAt }) => dueAt)) - this.time;
  }

  advance(ms: number): void {
    const end = this.time + ms;
    for (;;) {
      const [next] = this.pending.filter(({ dueAt }) => dueAt <= end).sort((a, b) => a.dueAt - b.dueAt);
      if (next === undefined) break;
      this.pending = this.pending.filter((other) => other !== next);
      this.time = next.dueAt;
      next.run();
    }
    this.time = end;
  }
}

/** Lets everything that waits only for promises run. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
}
