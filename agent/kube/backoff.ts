import type { Clock } from '../clock.js';

const firstMs = 800;
const longestMs = 30_000;
/** Without a failure for so long the next one starts from the beginning. */
const resetAfterMs = 120_000;

/** Pauses of a reflector: 0.8 s doubling up to 30 s, each stretched by up to its own length (client-go). */
export class Backoff {
  private baseMs = firstMs;
  private lastAt: number | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly random: () => number,
  ) {}

  /** Milliseconds to wait after one more failure. */
  next(): number {
    const now = this.clock.now();
    if (this.lastAt !== undefined && now - this.lastAt > resetAfterMs) this.baseMs = firstMs;
    this.lastAt = now;
    const base = this.baseMs;
    this.baseMs = Math.min(base * 2, longestMs);
    return base * (1 + this.random());
  }
}
