/** Log lines with the JSON keys that operators of KubeVirt grep for. */
import { basename } from 'node:path';

export type Level = 'debug' | 'info' | 'warning' | 'error';
const rank: Record<Level, number> = { debug: 0, info: 1, warning: 2, error: 3 };

/** The object that a line is about. */
export interface LogObject {
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
  readonly level: Level;
  readonly write: (line: string) => void;
  readonly now: () => Date;
}

export function createLogger(options: LogOptions, fields: Record<string, unknown> = {}): Logger {
  const emit = (level: Level, message: string, error?: unknown) => {
    if (rank[level] < rank[options.level]) return;
    const line: Record<string, unknown> = {
      component: options.component,
      level,
      msg: message,
      pos: callSite(),
      timestamp: options.now().toISOString(),
      ...fields,
    };
    if (error !== undefined) line['reason'] = error instanceof Error ? error.message : String(error);
    options.write(`${JSON.stringify(line)}\n`);
  };
  return {
    object: (object) => createLogger(options, { ...fields, ...object }),
    with: (extra) => createLogger(options, { ...fields, ...extra }),
    debug: (message) => emit('debug', message),
    info: (message) => emit('info', message),
    warning: (message, error) => emit('warning', message, error),
    error: (message, error) => emit('error', message, error),
  };
}

/** `file:line` of the caller of the logger. */
function callSite(): string {
  // Frames: callSite, emit, the level's method, the caller.
  const frame = new Error().stack?.split('\n')[4] ?? '';
  const match = /([^/\\(]+:\d+):\d+\)?$/.exec(frame);
  return match?.[1] === undefined ? 'unknown:0' : basename(match[1]);
}
