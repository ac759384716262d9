import { Code, type ConnectError } from '@connectrpc/connect';
import { LauncherError } from '../reconcile/ports.js';

/** The part of every answer that tells whether the command worked. */
export interface InnerResponse {
  readonly success: boolean;
  readonly message: string;
}

/** A command that failed, with the gRPC code if the transport or the launcher gave one. */
export class CommandError extends LauncherError {
  constructor(
    message: string,
    disconnected: boolean,
    readonly code: Code | undefined,
    options?: ErrorOptions,
  ) {
    super(message, disconnected, options);
  }

  /** The launcher is of a release without this command. */
  get unimplemented(): boolean {
    return this.code === Code.Unimplemented;
  }
}

/** `rpc error: code = Unavailable desc = …`, the text that grpc-go gives a status. */
export function statusText(error: ConnectError): string {
  return `rpc error: code = ${Code[error.code]} desc = ${error.rawMessage}`;
}

/**
 * What a command's outcome means (KubeVirt pkg/virt-handler/cmd-client/errors.go handleError). Undefined:
 * it worked. Canceled is the only status that counts as disconnected; Unavailable does not, so that a
 * kill or delete towards a dying launcher is repeated.
 */
export function commandError(
  command: string,
  transport: ConnectError | undefined,
  response: InnerResponse | undefined,
): CommandError | undefined {
  if (transport !== undefined) {
    const text = statusText(transport);
    const disconnected = transport.code === Code.Canceled;
    const plain = disconnected || transport.code === Code.Unimplemented || command === '';
    const message = plain ? text : `unknown error encountered sending command ${command}: ${text}`;
    return new CommandError(message, disconnected, transport.code, { cause: transport });
  }
  if (response === undefined || response.success) return undefined;
  // Commands without a word of their own report the launcher's message as it is.
  const message =
    command === ''
      ? response.message
      : `server error. command ${command} failed: ${goQuote(response.message)}`;
  return new CommandError(message, false, undefined);
}

const escapes: Record<string, string> = {
  '\x07': '\\a',
  '\b': '\\b',
  '\f': '\\f',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
  '\v': '\\v',
  '"': '\\"',
  '\\': '\\\\',
};

/** A Go string literal as strconv.Quote writes it. */
function goQuote(text: string): string {
  let quoted = '';
  for (const char of text) quoted += quoteChar(char);
  return `"${quoted}"`;
}

function quoteChar(char: string): string {
  const short = escapes[char];
  if (short !== undefined) return short;
  // Go prints letters, marks, numbers, punctuation, symbols and the ASCII space.
  if (char === ' ' || /[\p{L}\p{M}\p{N}\p{P}\p{S}]/u.test(char)) return char;
  const point = char.codePointAt(0) ?? 0;
  if (point < 0x80) return `\\x${point.toString(16).padStart(2, '0')}`;
  return point > 0xffff
    ? `\\U${point.toString(16).padStart(8, '0')}`
    : `\\u${point.toString(16).padStart(4, '0')}`;
}
