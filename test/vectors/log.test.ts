import { expect, it } from 'vitest';
import { logLevelOf } from '../../agent/flags.js';
import { createLogger, type LogObject } from '../../agent/log/log.js';
import { loadVectors } from './load.js';

interface Input {
  readonly call: string;
  readonly component: string;
  readonly msg: string;
  readonly object: LogObject | null;
  readonly reason?: string;
  readonly verbosity: number;
}

/** The agent has no line that is fatal, none that is always shown without being a warning, and one debug level. */
const calls: Readonly<Record<string, 'info' | 'warning' | 'error' | 'debug'>> = {
  Info: 'info',
  'V(2)': 'info',
  'V(3)': 'debug',
  Warning: 'warning',
  Error: 'error',
};
const cases = loadVectors<Input, { output: string }>('process', 'log_lines').filter(
  // An information line with a reason does not occur here.
  ({ input }) =>
    input.call in calls && !(input.reason !== undefined && !['Warning', 'Error'].includes(input.call)),
);

it.each(cases)('$name', ({ input, expected }) => {
  const lines: string[] = [];
  let log = createLogger({
    component: input.component,
    level: logLevelOf(input.verbosity),
    write: (line) => lines.push(line),
    now: () => new Date('2026-01-02T03:04:05.678Z'),
  });
  if (input.object !== null) log = log.object(input.object);
  const call = calls[input.call] ?? 'info';
  if (call === 'warning' || call === 'error') log[call](input.msg, input.reason);
  else log[call](input.msg);
  const masked = lines
    .join('')
    .replace('"timestamp":"2026-01-02T03:04:05.678000Z"', '"timestamp":"<timestamp>"')
    .replace(/"pos":"log\.test\.ts:\d+"/, '"pos":"<pos>"');
  expect(masked).toBe(expected.output);
});

it('names an object and nothing else of it, and as a VMI unless it says otherwise', () => {
  const lines: string[] = [];
  const log = createLogger({
    component: 'virt-handler',
    level: 'info',
    write: (line) => lines.push(line),
    now: () => new Date(0),
  });
  const metadata = { namespace: 'default', name: 'vm1', uid: 'u1', annotations: { secret: 'x' } };
  log.object(metadata).info('hello');
  expect(JSON.parse(lines[0] ?? '')).toMatchObject({
    ...{ kind: 'VirtualMachineInstance', namespace: 'default', name: 'vm1', uid: 'u1' },
    ...{ component: 'virt-handler', level: 'info', msg: 'hello' },
  });
  expect(lines[0]).not.toContain('secret');
});
