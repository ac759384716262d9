import { Code } from '@connectrpc/connect';
import { asError } from '../as-error.js';
import { HelperError, HelperUnavailable } from '../helper/errors.js';
import { CriticalNetworkError } from '../reconcile/ports.js';

export function critical(cause: unknown): CriticalNetworkError {
  const message = asError(cause).message;
  return new CriticalNetworkError(`Critical network error: ${message}`, { cause });
}

const permanent = new Set(['EPERM', 'EACCES', 'EEXIST']);

/**
 * Whether an apply that failed may simply be repeated. Without an answer, or past its deadline, the
 * outcome is unknown: the next apply completes or restores what this one left.
 */
export function isRetryable(error: unknown): boolean {
  if (!(error instanceof HelperError)) return false;
  if (error instanceof HelperUnavailable || error.code === Code.DeadlineExceeded) return true;
  // A plan, or a pod link, with which no plan can be carried out.
  const impossible = error.refused && error.errnoName === 'EINVAL';
  return error.unchanged && error.field === '' && !permanent.has(error.errnoName) && !impossible;
}
