/**
 * The audit log: JSON lines, one at the begin of every call with its arguments, one at its end, one for
 * every refusal.
 */
import { createHash } from 'node:crypto';
import type { Peer } from '../../native/binding.js';
import type { CallFailure } from '../failure.js';
import { TokenBucket } from './limiter.js';

export type Decision = 'allowed' | 'refused' | 'failed';

/** Where lines go. Throws when a line could not be written whole. */
export interface AuditSink {
  append(line: string): void;
}

/** A call as the log knows it. */
export interface AuditedCall {
  readonly id: string;
  readonly method: string;
  readonly peer: Peer;
  /** Who calls, where that says more than the peer: `privctl uid 0`. Absent for the agent. */
  readonly actor?: string | undefined;
  readonly podUid?: string | undefined;
  readonly vmiUid?: string | undefined;
  readonly arguments?: Readonly<Record<string, unknown>>;
}

export interface AuditOptions {
  readonly sink: AuditSink;
  /** Wall clock. */
  readonly now: () => Date;
  /** Milliseconds, monotonic. */
  readonly monotonic: () => number;
  /** Told when a line is lost. */
  readonly report: (message: string, error?: unknown) => void;
}

/** Refusals written at most: 100 at once, 20 a second. */
const refusalBurst = 100;
const refusalsPerSecond = 20;
/**
 * Of a call's arguments, as JSON text, and of what its failure says. A call can name some megabytes, which would
 * push all older lines out with a few calls.
 */
const maxArguments = 16 << 10;
const maxText = 1 << 10;

export class AuditLog {
  private readonly refusals: TokenBucket;
  private suppressed = 0;

  constructor(private readonly options: AuditOptions) {
    this.refusals = new TokenBucket(refusalBurst, refusalsPerSecond, options.monotonic);
  }

  /** The first line of a run of the helper: calls of earlier runs without an end will never get one. */
  started(facts: Readonly<Record<string, unknown>>): void {
    this.options.sink.append(this.line('start', {}, facts));
  }

  /** Throws when the line cannot be written: the call must not happen then. */
  begin(call: AuditedCall): void {
    this.options.sink.append(this.line('begin', call, { arguments: bounded(call.arguments) }));
  }

  /**
   * Never throws: the call has happened.
   * @param remark what is to be known of a call that was allowed
   */
  end(call: AuditedCall, failure: CallFailure | undefined, durationMs: number, remark?: string): void {
    const decision: Decision = failure === undefined ? 'allowed' : failure.refused ? 'refused' : 'failed';
    const said = failure === undefined ? { message: remark } : facts(failure);
    this.tryAppend(this.line('end', call, { decision, ...said, duration_ms: round(durationMs) }));
  }

  /** A call or connection that was refused before anything was done for it. Rate limited. */
  refused(call: Partial<AuditedCall> & { readonly method: string }, failure: CallFailure): void {
    if (!this.refusals.take()) {
      this.suppressed += 1;
      return;
    }
    this.tryAppend(
      this.line('refusal', call, { decision: 'refused', ...facts(failure), ...this.takeSuppressed() }),
    );
  }

  /** Writes the number of refusals that were not written one by one, if there are any. */
  flush(): void {
    if (this.suppressed === 0) return;
    this.tryAppend(this.line('suppressed', {}, this.takeSuppressed()));
  }

  private takeSuppressed(): { suppressed?: number } {
    const count = this.suppressed;
    this.suppressed = 0;
    return count === 0 ? {} : { suppressed: count };
  }

  private line(event: string, call: Partial<AuditedCall>, rest: Record<string, unknown>): string {
    const peer = call.peer;
    return `${JSON.stringify({
      time: this.options.now().toISOString(),
      event,
      call: call.id,
      method: call.method,
      peer: peer === undefined ? undefined : { pid: peer.pid, uid: peer.uid },
      actor: call.actor,
      pod: call.podUid,
      vmi: call.vmiUid,
      ...rest,
    })}\n`;
  }

  private tryAppend(line: string): void {
    try {
      this.options.sink.append(line);
    } catch (error) {
      this.options.report('audit line lost', error);
    }
  }
}

function facts(failure: CallFailure | undefined): Record<string, unknown> {
  if (failure === undefined) return {};
  return {
    errno: failure.errnoName === '' ? undefined : failure.errnoName,
    operation: failure.operation.slice(0, maxText),
    field: failure.field === '' ? undefined : failure.field,
    message: failure.message.slice(0, maxText),
  };
}

/** The arguments, or of too many how long their JSON text is, its digest and its start. */
function bounded(given: AuditedCall['arguments']): AuditedCall['arguments'] {
  const text = JSON.stringify(given) ?? '';
  if (text.length <= maxArguments) return given;
  const sha256 = createHash('sha256').update(text).digest('hex');
  return { length: text.length, sha256, start: text.slice(0, maxText) };
}

function round(milliseconds: number): number {
  return Math.round(milliseconds * 1000) / 1000;
}
