/** Log lines with the JSON keys that operators of KubeVirt grep for. */
import { basename } from 'node:path';
import { asError } from '../as-error.js';

export type Level = 'debug' | 'info' | 'warning' | 'error';
const rank: Record<Level, number> = { debug: 0, info: 1, warning: 2, error: 3 };

/** The object that a line is about; what else it holds is not logged. */
export interface LogObject {
  /** VirtualMachineInstance unless given. */
  readonly kind?: string;
  readonly namespace?: string;
  readonly name?: string;
  readonly uid?: string;
}

export interface Logger {
  /** A logger whose lines name this object. */
  object(object: LogObject): Logger;
  /** A logger whose lines carry these extra keys. */
  with(fields: Record<string, unknown>): Logger;
  debug(message: string): void;
  info(message: string): void;
  warning(message: string, error?: unknown): void;
  error(message: string, error?: unknown): void;
}

export interface LogOptions {
  readonly component: string;
  /** The least level that is written; asked for each line, because it may change at run time. */
  readonly level: Level | (() => Level);
  readonly write: (line: string) => void;
  readonly now: () => Date;
}

/**
 * One JSON object a line, keys in alphabetical order (KubeVirt staging/src/kubevirt.io/client-go/log).
 * Debug lines have the level `info`, as KubeVirt's more verbose lines do.
 */
export function createLogger(options: LogOptions, fields: Record<string, unknown> = {}): Logger {
  const emit = (level: Level, message: string, error?: unknown) => {
    const least = typeof options.level === 'function' ? options.level() : options.level;
    if (rank[level] < rank[least]) return;
    options.write(
      format({
        ...fields,
        component: options.component,
        level: level === 'debug' ? 'info' : level,
        msg: message,
        pos: callSite(),
        timestamp: timestamp(options.now()),
        ...(error === undefined ? {} : { reason: asError(error).message }),
      }),
    );
  };
  return {
    object: (object) => createLogger(options, { ...fields, ...named(object) }),
    with: (extra) => createLogger(options, { ...fields, ...extra }),
    debug: (message) => emit('debug', message),
    info: (message) => emit('info', message),
    warning: (message, error) => emit('warning', message, error),
    error: (message, error) => emit('error', message, error),
  };
}

/** Objects without a kind are VMIs; those without a namespace do not show one. */
function named({ kind = 'VirtualMachineInstance', namespace = '', name = '', uid = '' }: LogObject): object {
  return { kind, name, uid, ...(namespace === '' ? {} : { namespace }) };
}

function format(line: Record<string, unknown>): string {
  const sorted = Object.fromEntries(Object.entries(line).sort(([a], [b]) => (a < b ? -1 : 1)));
  // Both separate lines for some readers.
  const text = JSON.stringify(sorted).replace(/[\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
  return `${text}\n`;
}

/** `YYYY-MM-DDTHH:MM:SS.ffffffZ`; the clock knows milliseconds. */
function timestamp(now: Date): string {
  return now.toISOString().replace('Z', '000Z');
}

/** `file:line` of the caller of the logger. */
function callSite(): string {
  // Frames: callSite, emit, the level's method, the caller.
  const frame = new Error().stack?.split('\n')[4] ?? '';
  const match = /([^/\\(]+:\d+):\d+\)?$/.exec(frame);
  return match?.[1] === undefined ? 'unknown:0' : basename(match[1]);
}
