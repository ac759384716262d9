import { isRecord, type JsonValue } from '../json/lossless.js';

/** An answer of the API server that is not success. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  constructor(
    /** HTTP status code. */
    readonly status: number,
    /** Kubernetes' machine-readable reason, such as `Conflict`; empty when the answer had none. */
    readonly reason: string,
    message: string,
    /** Method and path of the request. */
    readonly request: string,
    /** Seconds after which the server asks to be tried again. */
    readonly retryAfter?: number,
  ) {
    super(message);
  }
}

/** The API server could not be reached, or did not answer in time or in a form that can be used. */
export class ApiUnavailable extends Error {
  override readonly name = 'ApiUnavailable';
}

export function isNotFound(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** The version or page token asked for is too old: list anew. */
export function isExpired(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 410 || error.reason === 'Expired');
}

const maxMessage = 4096;

/** Builds the error from a Status object, or from whatever else the server (or a proxy) answered. */
export function apiErrorFrom(
  status: number,
  body: JsonValue | undefined,
  text: string,
  request: string,
  retryAfter: number | undefined,
): ApiError {
  const fields = isRecord(body) && body['kind'] === 'Status' ? body : {};
  const reason = typeof fields['reason'] === 'string' ? fields['reason'] : '';
  const message =
    typeof fields['message'] === 'string' && fields['message'] !== ''
      ? fields['message']
      : `the server answered ${request} with status ${status}: ${text.slice(0, 256).trim()}`;
  const details = isRecord(fields['details']) ? fields['details'] : {};
  const seconds = retryAfter ?? details['retryAfterSeconds'];
  return new ApiError(
    status,
    reason,
    message.slice(0, maxMessage),
    request,
    typeof seconds === 'number' && seconds >= 0 ? seconds : undefined,
  );
}
