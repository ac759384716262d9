import { Code, ConnectError } from '@connectrpc/connect';
import { type Failure, FailureSchema } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';

/** A call to the privileged helper that failed. The message names the call, what it attempted and the errno. */
export class HelperError extends Error {
  override readonly name: string = 'HelperError';
  readonly code: Code;
  /** System call or check that failed, for instance `openat2 launcher-sock`; empty when the helper gave none. */
  readonly operation: string;
  /** 0 when no system call failed. */
  readonly errno: number;
  /** Symbolic errno, for instance `ECONNREFUSED`; empty when errno is 0. */
  readonly errnoName: string;
  /** Field of the request at fault, if one is. */
  readonly field: string;
  /** Refused by policy or identity check, not by the kernel. */
  readonly refused: boolean;
  /** Nothing in the pod differs from before the call. */
  readonly unchanged: boolean;

  constructor(
    call: string,
    code: Code,
    message: string,
    failure: Failure | undefined,
    options?: ErrorOptions,
  ) {
    super(describe(call, message, failure), options);
    this.code = code;
    this.operation = failure?.operation ?? '';
    this.errno = failure?.errno ?? 0;
    this.errnoName = failure?.errnoName ?? '';
    this.field = failure?.field ?? '';
    this.refused = failure?.refused ?? false;
    this.unchanged = failure?.unchanged ?? false;
  }
}

/** The helper does not answer: not running, restarting, or past the deadline. Repeating the call is right. */
export class HelperUnavailable extends HelperError {
  override readonly name = 'HelperUnavailable';
}

function describe(call: string, message: string, failure: Failure | undefined): string {
  const parts = [`helper ${call}: ${message}`];
  if (failure !== undefined) {
    if (failure.operation !== '') parts.push(`operation ${failure.operation}`);
    if (failure.errnoName !== '') parts.push(failure.errnoName);
    if (failure.field !== '') parts.push(`field ${failure.field}`);
    if (failure.refused) parts.push('refused');
  }
  return parts.join(', ');
}

/** Turns what a call threw into a HelperError. A lost transport is HelperUnavailable, an answered failure is not. */
export function toHelperError(call: string, reason: unknown): HelperError {
  if (reason instanceof HelperError) return reason;
  const error = ConnectError.from(reason);
  const failure = error.findDetails(FailureSchema)[0];
  const unavailable =
    failure === undefined &&
    [
      Code.Unavailable,
      Code.DeadlineExceeded,
      Code.Canceled,
      Code.Internal,
      Code.Aborted,
      Code.Unknown,
    ].includes(error.code);
  const Kind = unavailable ? HelperUnavailable : HelperError;
  return new Kind(call, error.code, error.rawMessage, failure, { cause: reason });
}

/**
 * The connection was going away and the call was certainly not processed (RFC 9113 section 8.7): as happens
 * to the first call after a restart of the helper.
 */
export function isUnprocessed(reason: unknown): boolean {
  return ConnectError.from(reason).rawMessage.includes('NGHTTP2_REFUSED_STREAM');
}
