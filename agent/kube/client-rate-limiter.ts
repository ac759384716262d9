import { sleep, type Timers } from './timers.js';
import { TokenBucket } from './token-bucket.js';

export interface RateLimit {
  readonly qps: number;
  readonly burst: number;
}

/** KubeVirt's default for virt-handler (pkg/virt-config). */
const defaultRateLimit: RateLimit = { qps: 50, burst: 100 };

/** Limits the requests of this process to the API server; follows the KubeVirt CR at run time. */
export class ClientRateLimiter {
  private bucket: TokenBucket;

  constructor(
    private readonly timers: Timers,
    private limit: RateLimit = defaultRateLimit,
  ) {
    this.bucket = makeBucket(timers, limit);
  }

  /**
   * Replaces the bucket by a full one, if the limit is another one than before. A value that is not positive
   * stands for its default.
   */
  set(limit: RateLimit): void {
    if (limit.qps === this.limit.qps && limit.burst === this.limit.burst) return;
    this.limit = limit;
    this.bucket = makeBucket(this.timers, limit);
  }

  /** Resolves when a request may be sent; rejects when `signal` is aborted first. */
  async wait(signal: AbortSignal): Promise<void> {
    const bucket = this.bucket;
    const delay = bucket.reserve();
    if (delay <= 0) return;
    try {
      await sleep(this.timers, delay, signal);
    } catch (error) {
      bucket.giveBack();
      throw error;
    }
  }
}

function makeBucket(timers: Timers, limit: RateLimit): TokenBucket {
  const qps = limit.qps > 0 ? limit.qps : defaultRateLimit.qps;
  const burst = limit.burst > 0 ? limit.burst : defaultRateLimit.burst;
  return new TokenBucket(qps, burst, timers);
}
