import { describe, expect, it } from 'vitest';
import { Backoff } from '../../../agent/kube/backoff.js';
import { ClientRateLimiter } from '../../../agent/kube/client-rate-limiter.js';
import { FakeTimers, settle } from './fake-timers.js';

describe('ClientRateLimiter', () => {
  /** How many of `requests` made now may go within `ms`. */
  async function passed(limiter: ClientRateLimiter, timers: FakeTimers, requests: number, ms: number) {
    let count = 0;
    for (let n = 0; n < requests; n++) {
      void limiter.wait(new AbortController().signal).then(() => {
        count++;
      });
    }
    await settle();
    timers.advance(ms);
    await settle();
    return count;
  }

  it('lets a burst of 100 through and then 50 a second', async () => {
    const timers = new FakeTimers();
    expect(await passed(new ClientRateLimiter(timers), timers, 300, 0)).toBe(100);
    expect(await passed(new ClientRateLimiter(timers), timers, 300, 2000)).toBe(200);
  });

  it('takes a new limit with a full bucket; what is not positive means the default', async () => {
    const timers = new FakeTimers();
    const limiter = new ClientRateLimiter(timers);
    await passed(limiter, timers, 100, 0);
    limiter.set({ qps: 10, burst: 3 });
    expect(await passed(limiter, timers, 100, 1000)).toBe(13);
    limiter.set({ qps: 10, burst: 0 });
    expect(await passed(limiter, timers, 300, 0)).toBe(100);
  });

  it('does not fill the bucket when the limit stays', async () => {
    const timers = new FakeTimers();
    const limiter = new ClientRateLimiter(timers, { qps: 1, burst: 5 });
    expect(await passed(limiter, timers, 9, 0)).toBe(5);
    limiter.set({ qps: 1, burst: 5 });
    expect(await passed(limiter, timers, 9, 0)).toBe(0);
  });

  it('gives up waiting with its caller, without costing a token', async () => {
    const timers = new FakeTimers();
    const limiter = new ClientRateLimiter(timers, { qps: 1, burst: 1 });
    await limiter.wait(new AbortController().signal);
    const leaving = new AbortController();
    const waiting = limiter.wait(leaving.signal);
    leaving.abort(new Error('gone'));
    await expect(waiting).rejects.toThrow('gone');
    expect(timers.pendingCount).toBe(0);
    expect(await passed(limiter, timers, 1, 1000)).toBe(1);
  });
});

describe('Backoff', () => {
  it('doubles from 0.8 s to 30 s and starts over after two quiet minutes', () => {
    const timers = new FakeTimers();
    const backoff = new Backoff(timers, () => 0);
    const pauses = Array.from({ length: 8 }, () => backoff.next());
    expect(pauses).toEqual([800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
    timers.advance(120_001);
    expect(backoff.next()).toBe(800);
  });

  it('spreads agents that failed at the same moment', () => {
    const timers = new FakeTimers();
    const first = Array.from({ length: 10 }, (_, n) => new Backoff(timers, () => n / 10).next());
    expect(new Set(first).size).toBe(10);
    expect(Math.max(...first) - Math.min(...first)).toBeGreaterThan(700);
  });
});
