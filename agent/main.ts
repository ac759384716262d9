#!/usr/bin/env node
/** The process: command line, privileges (none), signals, exit code. */
import { appendFile } from 'node:fs/promises';
import { loadNative } from '../native/binding.js';
import { runAgent } from './agent.js';
import { parseFlags, UsageError, usage } from './flags.js';
import { createLogger, type Logger } from './log/log.js';
import { TimelineRecorder } from './timeline/timeline.js';

/** Exit codes: 0 stopped, 1 broken, 2 wrong use. */
async function main(): Promise<number> {
  if (process.argv.includes('--help')) {
    process.stdout.write(`${usage}\n`);
    return 0;
  }
  const flags = parseFlags(process.argv.slice(2), process.env);
  const log = createLogger({
    component: 'virt-handler',
    level: flags.logLevel,
    write: (line) => process.stdout.write(line),
    now: () => new Date(),
  });
  if (process.getuid?.() === 0)
    throw new UsageError('virt-agent does not run as root: give it a uid of its own');

  const native = loadNative();
  native.lockDown({ privileged: false });

  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stop.abort());
  await runAgent(
    { flags, env: process.env, native, log, timeline: timelineTo(flags.timelineFile, log) },
    stop.signal,
  );
  return 0;
}

/** Steps go to the log at debug level, and as JSON lines to the file, if one is wanted. */
function timelineTo(file: string | undefined, log: Logger): TimelineRecorder {
  let writing = Promise.resolve();
  return new TimelineRecorder({ now: () => Date.now(), monotonic: () => performance.now() }, (vmi, step) => {
    log.object(vmi).debug(`${step.step} after ${step.atMs.toFixed(1)} ms (${step.who})`);
    if (file === undefined) return;
    const line = `${JSON.stringify({ ...vmi, ...step })}\n`;
    writing = writing
      .then(() => appendFile(file, line))
      .catch((error) => {
        log.warning(`the timeline was not written to ${file}`, error);
      });
  });
}

main().then(
  (code) => {
    process.exitCode = code;
  },
  (error) => {
    const wrongUse = error instanceof UsageError;
    process.stderr.write(
      wrongUse ? `virt-agent: ${error.message}\n${usage}\n` : `virt-agent: ${error?.stack ?? error}\n`,
    );
    process.exit(wrongUse ? 2 : 1);
  },
);
