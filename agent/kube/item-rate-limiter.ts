import type { Clock } from '../clock.js';
import { TokenBucket } from './token-bucket.js';

const baseDelayMs = 5;
const maxDelayMs = 1_000_000;
const overallPerSecond = 10;
const overallBurst = 100;

/**
 * Delay before a failed key is tried again: the longer of 5 ms doubling per failure up to 1000 s, and one
 * token bucket of 10 a second, burst 100, for all keys (client-go DefaultControllerRateLimiter).
 */
export class ItemRateLimiter {
  private readonly failures = new Map<string, number>();
  private readonly overall: TokenBucket;

  constructor(clock: Clock) {
    this.overall = new TokenBucket(overallPerSecond, overallBurst, clock);
  }

  /** Counts one more failure of `key` and returns its delay in milliseconds. */
  when(key: string): number {
    const failures = this.failures.get(key) ?? 0;
    this.failures.set(key, failures + 1);
    const own = Math.min(baseDelayMs * 2 ** failures, maxDelayMs);
    return Math.max(own, this.overall.reserve());
  }

  forget(key: string): void {
    this.failures.delete(key);
  }
}
