import type { JsonValue } from '../../../agent/json/lossless.js';
import { groupResource, type Kind } from './kinds.js';

export type JsonObject = { [key: string]: JsonValue };

/** An answer that is a Status object. */
export class StatusError extends Error {
  override readonly name = 'StatusError';
  constructor(
    readonly code: number,
    readonly reason: string,
    message: string,
    readonly details: JsonObject = {},
    readonly retryAfterSeconds?: number,
  ) {
    super(message);
  }

  toStatus(): JsonObject {
    return {
      kind: 'Status',
      apiVersion: 'v1',
      metadata: {},
      status: 'Failure',
      message: this.message,
      reason: this.reason,
      details: this.details,
      code: this.code,
    };
  }
}

function about(kind: Kind, name: string): JsonObject {
  return { name, group: kind.group, kind: kind.plural };
}

export function notFound(kind: Kind, name: string): StatusError {
  return new StatusError(404, 'NotFound', `${groupResource(kind)} "${name}" not found`, about(kind, name));
}

export function pathNotFound(): StatusError {
  return new StatusError(404, 'NotFound', 'the server could not find the requested resource');
}

export function alreadyExists(kind: Kind, name: string): StatusError {
  const message = `${groupResource(kind)} "${name}" already exists`;
  return new StatusError(409, 'AlreadyExists', message, about(kind, name));
}

export function conflict(kind: Kind, name: string, why?: string): StatusError {
  const because =
    why ?? 'the object has been modified; please apply your changes to the latest version and try again';
  const message = `Operation cannot be fulfilled on ${groupResource(kind)} "${name}": ${because}`;
  return new StatusError(409, 'Conflict', message, about(kind, name));
}

export function badRequest(message: string): StatusError {
  return new StatusError(400, 'BadRequest', message);
}

export function invalid(kind: Kind, name: string, why: string): StatusError {
  const message = `${kind.kind}${kind.group === '' ? '' : `.${kind.group}`} "${name}" is invalid: ${why}`;
  return new StatusError(422, 'Invalid', message, about(kind, name));
}

export function expired(message: string): StatusError {
  return new StatusError(410, 'Expired', message);
}

export function isObject(value: JsonValue | undefined): value is JsonObject {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !('isLosslessNumber' in value)
  );
}
