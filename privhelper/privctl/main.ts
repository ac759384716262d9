#!/usr/bin/env node
/** privctl: looks at a node as the helper sees it, for people who debug it. */
import { isAbsolute } from 'node:path';
import { parseArgs } from 'node:util';
import { commonOptions, type OptionName, options } from './commands.js';
import { bashCompletion, commandHelp, findCommand, overview } from './help.js';
import { callError } from './helper.js';
import { CommandError, type ExitCode, exitCodes } from './output.js';
import { type Options, Session } from './session.js';

type Values = ReturnType<typeof parse>['values'];

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options, strict: true, allowPositionals: true, tokens: true });
  } catch (error) {
    throw new CommandError(
      exitCodes.usage,
      (error as Error).message.split('.')[0] ?? '',
      'Try privctl help.',
    );
  }
}

function optionsOf(values: Values): Options {
  const path = (name: 'socket-dir' | 'audit-file' | 'state-dir' | 'hotplug-state-dir') => {
    if (isAbsolute(values[name])) return values[name];
    throw new CommandError(exitCodes.usage, `--${name}: not an absolute path`);
  };
  if (values.output !== 'table' && values.output !== 'json') {
    throw new CommandError(exitCodes.usage, `--output: ${values.output} is neither table nor json`);
  }
  if (!/^\d{1,7}$/.test(values.limit)) {
    throw new CommandError(exitCodes.usage, `--limit: ${values.limit} is not a number`);
  }
  return {
    output: values.output,
    full: values.full,
    quiet: values.quiet,
    socketDir: path('socket-dir'),
    auditFile: path('audit-file'),
    stateDir: path('state-dir'),
    hotplugStateDir: path('hotplug-state-dir'),
    kubeletPodsDir: values['kubelet-pods-dir'],
    policyFile: values.policy,
    follow: values.follow,
    refused: values.refused,
    pod: values.pod,
    since: values.since,
    limit: Number(values.limit),
  };
}

function write(text: string): void {
  process.stdout.write(text);
}

async function main(args: readonly string[]): Promise<void> {
  const { values, positionals, tokens } = parse(args);
  const [name, ...rest] = positionals;
  const lines = (text: readonly string[]) => write(`${text.join('\n')}\n`);
  if (name === undefined || name === 'help') {
    if (name === undefined && !values.help) {
      throw new CommandError(exitCodes.usage, 'which command?', overview().join('\n'));
    }
    return lines(rest[0] === undefined ? overview() : commandHelp(findCommand(rest[0])));
  }
  if (name === 'completion') {
    if (rest[0] === 'bash' && rest.length === 1) return lines(bashCompletion());
    throw new CommandError(exitCodes.usage, 'completion bash: other shells are not supported');
  }
  const command = findCommand(name);
  if (values.help) return lines(commandHelp(command));
  const [least, most] = command.arity;
  if (rest.length < least || rest.length > most) {
    throw new CommandError(exitCodes.usage, `usage: privctl ${command.synopsis}`);
  }
  const known: readonly OptionName[] = [...commonOptions, ...command.options];
  const foreign = tokens.find(
    (token) => token.kind === 'option' && !known.some((each) => each === token.name),
  );
  if (foreign?.kind === 'option') {
    throw new CommandError(exitCodes.usage, `${name} has no option --${foreign.name}`);
  }
  const session = new Session(optionsOf(values), rest, write);
  try {
    await command.run(session);
  } finally {
    session.close();
  }
}

function report(error: unknown): ExitCode {
  const { message, hint, exitCode } = callError(error);
  // Without a message everything has been said.
  if (message !== '') process.stderr.write(`privctl: ${message}\n`);
  if (hint !== undefined) process.stderr.write(`${hint}\n`);
  return exitCode;
}

// A reader that has seen enough (`privctl audit | head`) is no error.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  process.exit(error.code === 'EPIPE' ? exitCodes.ok : exitCodes.failed);
});

main(process.argv.slice(2)).then(
  () => {
    process.exitCode = exitCodes.ok;
  },
  (error: unknown) => {
    process.exitCode = report(error);
  },
);
