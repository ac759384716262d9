#!/usr/bin/env node
/** The process: command line, privileges (none), signals, exit code. */
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { loadNative } from '../native/binding.js';
import { runAgent } from './agent.js';
import { logLevelOf, parseFlags, UsageError, usage } from './flags.js';
import { NativeDescriptorChannel } from './helper/descriptors.js';
import { timelineCommand, timelineUsage } from './inspect/timeline-command.js';
import { systemTimers, within } from './kube/timers.js';
import { createLogger } from './log/log.js';
import { TimelineFile } from './timeline/file.js';

const descriptorClaimMs = 5_000;
/** For steps that wait to be written to the timeline file when the agent stops. */
const timelineCloseMs = 1_000;

/** Exit codes: 0 stopped, 1 broken, 2 wrong use. */
async function main(): Promise<number> {
  const [first, ...rest] = process.argv.slice(2);
  if (process.argv.includes('--help')) {
    process.stdout.write(`${first === 'timeline' ? timelineUsage : usage()}\n`);
    return 0;
  }
  if (first === 'timeline') {
    process.stdout.write(await timelineCommand(rest));
    return 0;
  }
  const flags = parseFlags(process.argv.slice(2), process.env);
  let level = flags.logLevel;
  const log = createLogger({
    component: 'virt-handler',
    level: () => level,
    write: (line) => process.stderr.write(line),
    now: () => new Date(),
  });
  if (process.getuid?.() === 0)
    throw new UsageError('virt-agent does not run as root: give it a uid of its own');

  const native = loadNative();
  native.lockDown({ privileged: false });

  const timeline =
    flags.timelineFile === undefined
      ? undefined
      : new TimelineFile(createWriteStream(flags.timelineFile, { flags: 'a' }), log);
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stop.abort());
  await runAgent(
    {
      flags,
      env: process.env,
      descriptors: new NativeDescriptorChannel(native, join(flags.helperDir, 'fd.sock'), descriptorClaimMs),
      relay: native,
      log,
      setVerbosity: (verbosity) => {
        level = verbosity === undefined ? flags.logLevel : logLevelOf(verbosity);
      },
      onStep: (of, step) => timeline?.step(of, step),
    },
    stop.signal,
  );
  if (timeline !== undefined)
    await within(systemTimers(), timelineCloseMs, timeline.close(), () => undefined);
  return 0;
}

main().then(
  // Calls that do not end keep nobody waiting.
  (code) => process.exit(code),
  (error) => {
    const wrongUse = error instanceof UsageError;
    process.stderr.write(
      wrongUse ? `virt-agent: ${error.message}\n${usage()}\n` : `virt-agent: ${error?.stack ?? error}\n`,
    );
    process.exit(wrongUse ? 2 : 1);
  },
);
