/** Faults that tests ask for. */
export interface RequestInfo {
  readonly verb: string;
  readonly plural: string;
  readonly namespace: string;
  readonly name: string;
  readonly subresource: string;
}

export interface RequestRecord extends RequestInfo {
  /** HTTP status; 0 when the connection was cut before an answer. */
  readonly status: number;
  readonly query: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
}

export type RequestFilter = Partial<Pick<RequestInfo, 'verb' | 'plural' | 'namespace' | 'name'>>;

export interface Failure extends RequestFilter {
  /** How many requests fail; default 1. */
  readonly count?: number;
  readonly status: number;
  readonly reason?: string;
  readonly message?: string;
  readonly retryAfterSeconds?: number;
}

interface Rule<T> {
  readonly filter: RequestFilter;
  left: number;
  readonly what: T;
}

export class Faults {
  private readonly failures: Rule<Failure>[] = [];
  private readonly holds: Rule<() => Promise<void>>[] = [];

  /** The next matching requests are answered with an error. */
  fail(failure: Failure): void {
    this.failures.push({ filter: failure, left: failure.count ?? 1, what: failure });
  }

  /** Matching requests wait until the returned function is called. */
  hold(filter: RequestFilter): () => void {
    let release: () => void = () => undefined;
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const rule = { filter, left: Number.POSITIVE_INFINITY, what: () => released };
    this.holds.push(rule);
    return () => {
      const at = this.holds.indexOf(rule);
      if (at !== -1) this.holds.splice(at, 1);
      release();
    };
  }

  /** The next matching requests, one by default, are answered later. */
  delay(filter: RequestFilter, ms: number, count = 1): void {
    const what = () => new Promise<void>((resolve) => setTimeout(resolve, ms));
    this.holds.push({ filter, left: count, what });
  }

  clear(): void {
    this.failures.length = 0;
    this.holds.length = 0;
  }

  takeFailure(request: RequestInfo): Failure | undefined {
    return take(this.failures, request);
  }

  async wait(request: RequestInfo): Promise<void> {
    await take(this.holds, request)?.();
  }
}

function take<T>(rules: Rule<T>[], request: RequestInfo): T | undefined {
  const rule = rules.find(({ filter }) => matches(filter, request));
  if (rule === undefined) return undefined;
  rule.left--;
  if (rule.left <= 0) rules.splice(rules.indexOf(rule), 1);
  return rule.what;
}

export function matches(filter: RequestFilter, request: RequestInfo): boolean {
  const keys = ['verb', 'plural', 'namespace', 'name'] as const;
  return keys.every((key) => filter[key] === undefined || filter[key] === request[key]);
}
