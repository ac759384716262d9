/** A token bucket. */
export class TokenBucket {
  private tokens: number;
  private refilledAt: number;

  /**
   * @param burst tokens when full
   * @param perSecond refill rate
   * @param now milliseconds, monotonic
   */
  constructor(
    private readonly burst: number,
    private readonly perSecond: number,
    private readonly now: () => number,
  ) {
    this.tokens = burst;
    this.refilledAt = now();
  }

  /** Takes a token. False when there is none. */
  take(): boolean {
    this.refill();
    if (this.tokens < 1) return false;
    this.tokens -= 1;
    return true;
  }

  /** Milliseconds until there is a token; 0 when there is one. */
  wait(): number {
    this.refill();
    return this.tokens >= 1 ? 0 : Math.ceil(((1 - this.tokens) * 1000) / this.perSecond);
  }

  private refill(): void {
    const now = this.now();
    this.tokens = Math.min(this.burst, this.tokens + ((now - this.refilledAt) * this.perSecond) / 1000);
    this.refilledAt = now;
  }
}
