import type { Clock } from '../clock.js';

/**
 * Token bucket that lends: a caller takes a token at once and waits until it would have been there, so
 * callers are served in the order in which they asked (golang.org/x/time/rate Reserve).
 */
export class TokenBucket {
  private tokens: number;
  private updatedAt: number;

  /** `ratePerSecond` and `burst` must be greater than zero. The bucket starts full. */
  constructor(
    private readonly ratePerSecond: number,
    private readonly burst: number,
    private readonly clock: Clock,
  ) {
    this.tokens = burst;
    this.updatedAt = clock.now();
  }

  /** Takes one token and returns how many milliseconds to wait before acting on it. */
  reserve(): number {
    const now = this.clock.now();
    const elapsed = Math.max(0, now - this.updatedAt);
    this.tokens = Math.min(this.burst, this.tokens + (elapsed * this.ratePerSecond) / 1000) - 1;
    this.updatedAt = now;
    return this.tokens >= 0 ? 0 : (-this.tokens * 1000) / this.ratePerSecond;
  }

  /** Gives back a token whose caller gave up waiting. */
  giveBack(): void {
    this.tokens = Math.min(this.burst, this.tokens + 1);
  }
}
