/** A token bucket. Times are milliseconds of any clock that does not go back. */
export class TokenBucket {
  private tokens: number;
  private filledAt: number;

  constructor(
    private readonly burst: number,
    private readonly perSecond: number,
    now: number,
  ) {
    this.tokens = burst;
    this.filledAt = now;
  }

  take(cost: number, now: number): boolean {
    const earned = ((now - this.filledAt) / 1_000) * this.perSecond;
    this.tokens = Math.min(this.burst, this.tokens + Math.max(0, earned));
    this.filledAt = now;
    if (this.tokens < cost) return false;
    this.tokens -= cost;
    return true;
  }
}
