import type { Clock } from '../clock.js';

interface Expected {
  add: number;
  del: number;
  readonly setAt: number;
}

const expiryMs = 5 * 60_000;

/**
 * Watch events that a key still waits for after an own write. Until they are seen the cached object is
 * older than what was written (KubeVirt pkg/controller/expectations.go).
 */
export class Expectations {
  private readonly expected = new Map<string, Expected>();

  constructor(private readonly clock: Clock) {}

  set(key: string, add: number, del: number): void {
    this.expected.set(key, { add, del, setAt: this.clock.now() });
  }

  /** Counts down without renewing the expiry; ignored when nothing is expected of the key. */
  lower(key: string, add: number, del: number): void {
    const entry = this.expected.get(key);
    if (entry === undefined) return;
    entry.add -= add;
    entry.del -= del;
  }

  delete(key: string): void {
    this.expected.delete(key);
  }

  /** True when nothing is outstanding, or it has been for more than five minutes. */
  satisfied(key: string): boolean {
    const entry = this.expected.get(key);
    if (entry === undefined || (entry.add <= 0 && entry.del <= 0)) return true;
    return this.clock.now() - entry.setAt > expiryMs;
  }
}
