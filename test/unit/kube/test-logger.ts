import { createLogger, type Logger } from '../../../agent/log/log.js';

/** A logger whose lines end in `lines`. */
export function testLogger(lines: string[] = []): Logger {
  return createLogger({
    component: 'test',
    level: 'debug',
    write: (line) => lines.push(line),
    now: () => new Date(0),
  });
}
