/** Errors of a pass that mean more than "try again". */
import { asError } from '../as-error.js';
import { CriticalNetworkError, LauncherError } from './ports.js';

/** The firmware that the VMI asks for does not exist for its Secure Boot setting: the VMI fails. */
export class CriticalSecureBootError extends Error {
  override readonly name = 'CriticalSecureBootError';
}

/** The guest is lost: the VMI fails. */
export class IrrecoverableError extends Error {
  override readonly name = 'IrrecoverableError';
}

/** The launcher's connection ended during the call. */
export function isDisconnected(error: unknown): boolean {
  return error instanceof LauncherError && error.disconnected;
}

const maxCauses = 16;

/** A critical network error anywhere in the chain of causes, or one of the others itself, fails the VMI. */
export function failsVmi(error: Error): boolean {
  if (error instanceof CriticalSecureBootError || error instanceof IrrecoverableError) return true;
  let link: unknown = error;
  for (let depth = 0; depth < maxCauses && link instanceof Error; depth++) {
    if (link instanceof CriticalNetworkError) return true;
    link = link.cause;
  }
  return false;
}

/** One error for all of them, itself where it is the only one; undefined for none. */
export function joined(errors: readonly Error[]): Error | undefined {
  return errors.length > 1 ? new Error(errors.map(({ message }) => message).join('; ')) : errors[0];
}

/** Runs `action`; what it throws is rethrown as `<text>: <message>` with the original as cause. */
export async function explained<T>(text: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    throw new Error(`${text}: ${asError(error).message}`, { cause: error });
  }
}
