/** What the helper may answer to a call. */
import { type DescMessage, fromBinary } from '@bufbuild/protobuf';
import type { RpcCall, StrayRequest } from './calls.js';
import type { Answer } from './connection.js';

/**
 * Codes of the helper. `internal` and `unknown` are not among them: they are faults of the helper, whatever
 * the call was.
 */
const codes: ReadonlySet<string> = new Set([
  'invalid_argument',
  'permission_denied',
  'not_found',
  'failed_precondition',
  'aborted',
  'deadline_exceeded',
  'resource_exhausted',
  'unavailable',
  'unimplemented',
  'canceled',
]);

/** Answers to bytes that are no message of the method, or too many. The library has its own for streams. */
const undecodableCodes: ReadonlySet<string> = new Set(['invalid_argument', 'resource_exhausted']);
const undecodableStreamCodes: ReadonlySet<string> = new Set([...undecodableCodes, 'internal']);

export interface Verdict {
  /** `ok`, the code of the error, or `reset`. */
  readonly outcome: string;
  /** What is wrong with the answer. */
  readonly problem?: string;
}

export function judge(call: RpcCall, answer: Answer): Verdict {
  const { request, method } = call;
  if (answer.status === 0) {
    const expected = request.cutAt !== undefined;
    return { outcome: 'reset', ...(expected ? {} : { problem: 'the stream was reset' }) };
  }
  if (answer.contentType === 'application/connect+proto') return judgeStream(call, answer);
  if (answer.contentType === 'application/json') return judgeError(call, errorCode(answer.body.toString()));
  if (answer.status !== 200 || answer.contentType !== 'application/proto') {
    return { outcome: 'other', problem: `status ${answer.status}, type ${answer.contentType}` };
  }
  // A stream that was cut off may have been answered in part.
  if (request.cutAt === undefined && !decodes(method.output, answer.body)) {
    return { outcome: 'ok', problem: `the answer is no ${method.output.name}` };
  }
  return { outcome: 'ok' };
}

/** Of a request that need not be one of the protocol: any refusal will do, but no fault of the helper. */
export function judgeStray({ method, request }: StrayRequest, { status }: Answer): Verdict {
  const fault = status === 500 && (method.methodKind === 'unary' || decodes(method.input, request.body));
  return { outcome: String(status), ...(fault ? { problem: `status ${status}` } : {}) };
}

function judgeError(call: RpcCall, code: string): Verdict {
  const undecodable = call.method.methodKind === 'unary' ? undecodableCodes : undecodableStreamCodes;
  const allowed = decodes(call.method.input, call.message) ? codes : undecodable;
  return { outcome: code, ...(allowed.has(code) ? {} : { problem: `code ${code}` }) };
}

/** The first message of a stream, or the error in its end. */
function judgeStream(call: RpcCall, { body }: Answer): Verdict {
  if (body.length < 5 || body[0] !== 2) return { outcome: 'ok' };
  return judgeError(call, errorCode(body.subarray(5).toString()));
}

function errorCode(text: string): string {
  try {
    const value = JSON.parse(text);
    return String((value.error ?? value).code);
  } catch {
    return 'no JSON';
  }
}

function decodes(message: DescMessage, bytes: Uint8Array): boolean {
  try {
    fromBinary(message, bytes);
    return true;
  } catch {
    return false;
  }
}
