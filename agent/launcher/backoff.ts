const firstMs = 1_000;
const maxMs = 60_000;

interface Failures {
  readonly count: number;
  readonly until: number;
  readonly circumstances: string;
  readonly error: Error;
}

/**
 * Holds back connection attempts to one launcher after failures: 1 s, doubling to 60 s. Success, or other
 * circumstances than at the failure (pods of the VMI, their sockets), end it.
 */
export class ConnectBackoff {
  private failures: Failures | undefined;

  /** The last failure and the time left, or undefined when an attempt may be made. Milliseconds. */
  pending(
    now: number,
    circumstances: string,
  ): { readonly error: Error; readonly retryAfterMs: number } | undefined {
    if (this.failures === undefined || now >= this.failures.until) return undefined;
    if (this.failures.circumstances !== circumstances) {
      this.failures = undefined;
      return undefined;
    }
    return { error: this.failures.error, retryAfterMs: this.failures.until - now };
  }

  failed(now: number, circumstances: string, error: Error): void {
    const count = (this.failures?.count ?? 0) + 1;
    const delay = Math.min(firstMs * 2 ** (count - 1), maxMs);
    this.failures = { count, until: now + delay, circumstances, error };
  }

  succeeded(): void {
    this.failures = undefined;
  }
}
