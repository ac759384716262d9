/** Runs one call: check, audit, deadline, audit; and brings every error into the form that is answered. */

import { Code } from '@connectrpc/connect';
import type { Peer } from '../../native/binding.js';
import type { AuditedCall, AuditLog } from '../audit/audit.js';
import type { Declared } from '../declarations.js';
import { CallFailure, errnoOf, expired, toFailure } from '../failure.js';
import { Invocation } from '../invocation.js';

export interface CallsOptions {
  readonly audit: AuditLog;
  /** Prefix of call ids: tells runs of the helper apart. */
  readonly instanceId: string;
  /** Milliseconds, monotonic. */
  readonly now: () => number;
  /** Told of errors that are faults of the helper itself. */
  readonly report: (message: string, error?: unknown) => void;
}

export interface CallContext {
  readonly peer: Peer;
  /** Who calls, where the audit log is to say more than the peer. */
  readonly actor?: string | undefined;
  readonly signal: AbortSignal;
  /** Milliseconds that the client gives the call, if it says so. */
  readonly timeoutMs: number | undefined;
}

/** A checked request and what the audit log says about it. */
export interface CheckedRequest<C> {
  readonly checked: C;
  readonly podUid: string | undefined;
  readonly vmiUid: string | undefined;
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** How long after its deadline a call is answered although its operation has not returned. */
const graceMs = 500;

export class Calls {
  private count = 0;
  private running = 0;
  private onIdle: (() => void) | undefined;

  constructor(private readonly options: CallsOptions) {}

  async unary<C, R>(
    declared: Declared,
    context: CallContext,
    check: () => CheckedRequest<C>,
    run: (invocation: Invocation, checked: C) => Promise<R>,
  ): Promise<R> {
    const started = this.options.now();
    const budget = Math.min(declared.deadlineMs, context.timeoutMs ?? Number.POSITIVE_INFINITY);
    const { call, checked } = this.admit(declared, context, check);
    const invocation = this.invocation(declared, context, call.id, started + budget);
    try {
      const result = await withDeadline(this.track(run(invocation, checked)), budget + graceMs);
      this.options.audit.end(call, undefined, this.options.now() - started, invocation.remark);
      return result;
    } catch (error) {
      throw this.fail(call, error, started);
    }
  }

  async *stream<C, R>(
    declared: Declared,
    context: CallContext,
    check: () => CheckedRequest<C>,
    run: (invocation: Invocation, checked: C) => AsyncIterable<R>,
  ): AsyncGenerator<R> {
    const started = this.options.now();
    const { call, checked } = this.admit(declared, context, check);
    const invocation = this.invocation(declared, context, call.id, Number.POSITIVE_INFINITY);
    let failure: unknown;
    try {
      yield* run(invocation, checked);
    } catch (error) {
      failure = error;
      throw this.fail(call, error, started);
    } finally {
      if (failure === undefined) this.options.audit.end(call, undefined, this.options.now() - started);
    }
  }

  /** Resolves when no operation is under way. */
  async idle(): Promise<void> {
    if (this.running === 0) return;
    await new Promise<void>((resolve) => {
      this.onIdle = resolve;
    });
  }

  private admit<C>(
    { name: method }: Declared,
    { peer, actor }: CallContext,
    check: () => CheckedRequest<C>,
  ): { call: AuditedCall; checked: C } {
    this.count += 1;
    const id = `${this.options.instanceId.slice(0, 8)}-${this.count}`;
    let request: CheckedRequest<C>;
    try {
      request = check();
    } catch (error) {
      const failure = toFailure(error);
      this.options.audit.refused({ id, method, peer, actor }, failure);
      throw failure.toConnectError();
    }
    const { checked, ...facts } = request;
    const call = { id, method, peer, actor, ...facts };
    try {
      this.options.audit.begin(call);
    } catch (error) {
      this.options.report(`${method} refused: it cannot be audited`, error);
      throw new CallFailure({
        code: Code.Unavailable,
        operation: 'write audit log',
        message: 'the call cannot be audited and is refused',
        errnoName: errnoOf(error),
      }).toConnectError();
    }
    return { call, checked };
  }

  private invocation(declared: Declared, context: CallContext, id: string, deadline: number): Invocation {
    const { peer, signal } = context;
    return new Invocation({ id, peer, signal, deadline, caps: declared.caps, now: this.options.now });
  }

  private fail(call: AuditedCall, error: unknown, started: number): Error {
    const failure = toFailure(error);
    if (failure.code === Code.Internal)
      this.options.report(`${call.method} failed`, failure.cause ?? failure);
    this.options.audit.end(call, failure, this.options.now() - started);
    return failure.toConnectError();
  }

  private async track<R>(operation: Promise<R>): Promise<R> {
    this.running += 1;
    try {
      return await operation;
    } finally {
      this.running -= 1;
      if (this.running === 0) this.onIdle?.();
    }
  }
}

/** Rejects with DEADLINE_EXCEEDED when the operation has not settled in time. It goes on regardless. */
async function withDeadline<R>(operation: Promise<R>, milliseconds: number): Promise<R> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(expired('await operation', false)), milliseconds);
  });
  try {
    return await Promise.race([operation, late]);
  } finally {
    clearTimeout(timer);
  }
}
