/** Errors of the helper: what the agent is told and what the audit log records are the same facts. */
import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { FailureSchema } from '../gen/virtprivsep/privhelper/v1/common_pb.js';
import type { NativeError } from '../native/binding.js';

export interface FailureFacts {
  readonly code: Code;
  /** What was attempted: a system call or a check. */
  readonly operation: string;
  readonly message: string;
  readonly errno?: number;
  readonly errnoName?: string;
  /** Field of the request that is at fault. */
  readonly field?: string;
  /** Refused by policy or by an identity check. */
  readonly refused?: boolean;
  /** False when something in the pod may differ from before the call. */
  readonly unchanged?: boolean;
}

/** A call that did not succeed, with everything that its answer and its audit record need. */
export class CallFailure extends Error {
  override readonly name = 'CallFailure';
  readonly code: Code;
  readonly operation: string;
  readonly errno: number;
  readonly errnoName: string;
  readonly field: string;
  readonly refused: boolean;
  readonly unchanged: boolean;

  constructor(facts: FailureFacts, options?: ErrorOptions) {
    super(facts.message, options);
    this.code = facts.code;
    this.operation = facts.operation;
    this.errno = facts.errno ?? 0;
    this.errnoName = facts.errnoName ?? '';
    this.field = facts.field ?? '';
    this.refused = facts.refused ?? false;
    this.unchanged = facts.unchanged ?? true;
  }

  toConnectError(): ConnectError {
    const detail = create(FailureSchema, {
      operation: this.operation,
      errno: this.errno,
      errnoName: this.errnoName,
      field: this.field,
      refused: this.refused,
      unchanged: this.unchanged,
    });
    return new ConnectError(this.message, this.code, undefined, [{ desc: FailureSchema, value: detail }]);
  }
}

/** A field of a request that is malformed or out of bounds. */
export function malformed(field: string, reason: string): CallFailure {
  return new CallFailure({
    code: Code.InvalidArgument,
    operation: 'check request',
    message: `${field}: ${reason}`,
    field,
    refused: true,
  });
}

/** A well-formed call that policy or an identity check does not allow. */
export function refusal(operation: string, message: string, field?: string): CallFailure {
  return new CallFailure({
    code: Code.PermissionDenied,
    operation,
    message,
    refused: true,
    ...(field === undefined ? {} : { field }),
  });
}

/** A bound of the helper is reached; nothing was done. */
export function exhausted(operation: string, message: string): CallFailure {
  return new CallFailure({ code: Code.ResourceExhausted, operation, message });
}

/** The failure of a call that left something changed. `undo` is why that could not be taken back, if it was tried. */
export function afterChange(error: unknown, undo?: unknown): CallFailure {
  const failure = toFailure(error);
  const more = undo === undefined ? '' : `; undo failed: ${toFailure(undo).message}`;
  const { code, errno, errnoName, field, refused } = failure;
  const operation = failure.operation + more;
  const message = failure.message + more;
  const facts = { code, operation, message, errno, errnoName, field, refused, unchanged: false };
  return new CallFailure(facts, { cause: failure });
}

/** The deadline of a call has passed. `unchanged` false: the operation was under way. */
export function expired(operation: string, unchanged: boolean): CallFailure {
  return new CallFailure({
    code: Code.DeadlineExceeded,
    operation,
    message: `${operation}: deadline exceeded`,
    unchanged,
  });
}

const codeOfErrno: Readonly<Record<string, Code>> = {
  ENOENT: Code.NotFound,
  // By the kernel; a refusal of the helper's own says so.
  EACCES: Code.PermissionDenied,
  EPERM: Code.PermissionDenied,
  ENAMETOOLONG: Code.InvalidArgument,
  // Something took the place between two system calls.
  EADDRINUSE: Code.Aborted,
  EAGAIN: Code.Aborted,
  EBUSY: Code.Aborted,
  EINTR: Code.Aborted,
  ESTALE: Code.Aborted,
  ETIMEDOUT: Code.DeadlineExceeded,
  E2BIG: Code.ResourceExhausted,
  EDQUOT: Code.ResourceExhausted,
  EMFILE: Code.ResourceExhausted,
  ENFILE: Code.ResourceExhausted,
  ENOMEM: Code.ResourceExhausted,
  ENOSPC: Code.ResourceExhausted,
  ECONNREFUSED: Code.FailedPrecondition,
  ECONNRESET: Code.FailedPrecondition,
  EEXIST: Code.FailedPrecondition,
  ENODEV: Code.FailedPrecondition,
  // Nothing in the kernel has the address, or the family.
  EADDRNOTAVAIL: Code.FailedPrecondition,
  EAFNOSUPPORT: Code.FailedPrecondition,
  ENXIO: Code.FailedPrecondition,
  ESRCH: Code.FailedPrecondition,
  // The file system is not made for it.
  EFBIG: Code.FailedPrecondition,
  EROFS: Code.FailedPrecondition,
  // What is there is of another type than what belongs there.
  EISDIR: Code.FailedPrecondition,
  ENOTDIR: Code.FailedPrecondition,
  EPROTOTYPE: Code.FailedPrecondition,
  // The kernel lacks it (a module, an option): repeating is useless.
  ENOSYS: Code.Unimplemented,
  EOPNOTSUPP: Code.Unimplemented,
};

/** True for errors of the addon and of Node's own system calls. */
function isSystemError(error: unknown): error is Error & Partial<NativeError> & { syscall?: string } {
  return error instanceof Error && 'code' in error && typeof error.code === 'string';
}

/** The errno name of an error, or the empty string. */
export function errnoOf(error: unknown): string {
  if (error instanceof CallFailure) return error.errnoName;
  return isSystemError(error) ? (error.code ?? '') : '';
}

/** The failure of a call at one of several items: it names the field of that one, if the addon says which it was. */
export function atItem(error: unknown, items: readonly { readonly field: string }[]): CallFailure {
  const failure = toFailure(error);
  const { field } = (isSystemError(error) && items[error.item ?? -1]) || failure;
  const { code, operation, message, errno, errnoName, refused, unchanged } = failure;
  const facts = { code, operation, message, errno, errnoName, field, refused, unchanged };
  return new CallFailure(facts, { cause: error });
}

/** Brings any error into the form that is answered and audited. */
export function toFailure(error: unknown): CallFailure {
  if (error instanceof CallFailure) return error;
  if (!isSystemError(error)) {
    return new CallFailure(
      { code: Code.Internal, operation: 'helper', message: 'internal error', unchanged: false },
      { cause: error },
    );
  }
  const name = error.code ?? '';
  const operation = error.operation ?? error.syscall ?? 'system call';
  const refused = error.refused ?? false;
  return new CallFailure(
    {
      code: refused ? Code.PermissionDenied : (codeOfErrno[name] ?? Code.Internal),
      operation,
      message: `${operation}: ${name}`,
      errno: Math.abs(error.errno ?? 0),
      errnoName: name,
      refused,
      unchanged: error.unchanged ?? false,
    },
    { cause: error },
  );
}
