import { HelperError, HelperUnavailable } from '../helper/errors.js';
import { CriticalNetworkError } from '../reconcile/ports.js';

export function critical(cause: unknown): CriticalNetworkError {
  const message = cause instanceof Error ? cause.message : String(cause);
  return new CriticalNetworkError(`Critical network error: ${message}`, { cause });
}

const permanent = new Set(['EPERM', 'EACCES', 'EEXIST']);

/**
 * Whether an apply that failed may simply be repeated. A helper that did not answer died or hung; its
 * apply completes or restores what an earlier one left, so that is repeated as well.
 */
export function isRetryable(error: unknown): boolean {
  if (error instanceof HelperUnavailable) return true;
  if (!(error instanceof HelperError)) return false;
  return error.unchanged && error.field === '' && !permanent.has(error.errnoName);
}
