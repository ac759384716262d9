/** Help and shell completion, made from the table of commands. */
import { allMethods } from './commands/describe.js';
import { type Command, commands, commonOptions, type OptionName, options } from './commands.js';
import { CommandError, exitCodes } from './output.js';

const width = 100;

export function overview(): string[] {
  const longest = Math.max(...commands.map(({ synopsis }) => synopsis.length));
  return [
    'privctl looks at this node as the helper of virt-privsep sees it. It works with the agent and the API',
    "server down, and partly with the helper down. It needs root, or the operators' group of the helper.",
    '',
    'Usage: privctl COMMAND [ARGUMENTS] [OPTIONS]',
    '',
    ...commands.map(({ synopsis, summary }) => `  ${synopsis.padEnd(longest)}  ${summary}`),
    `  ${'completion bash'.padEnd(longest)}  for: source <(privctl completion bash)`,
    `  ${'help [COMMAND]'.padEnd(longest)}  more about a command`,
    '',
    'Options of every command:',
    ...optionLines(commonOptions),
    '',
    'Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused.',
    '',
    'A VM does not start? privctl doctor, then privctl pods, then privctl audit --refused.',
  ];
}

export function commandHelp({ synopsis, summary, details, options: own }: Command): string[] {
  return [
    `Usage: privctl ${synopsis} [OPTIONS]`,
    '',
    `${summary.charAt(0).toUpperCase()}${summary.slice(1)}${/[?.]$/.test(summary) ? '' : '.'}`,
    ...details.flatMap((paragraph) => ['', ...wrapped(paragraph)]),
    '',
    'Options:',
    ...optionLines([...own, ...commonOptions]),
  ];
}

export function findCommand(name: string): Command {
  const found = commands.find((command) => command.name === name);
  if (found === undefined) throw new CommandError(exitCodes.usage, `no command ${name}`, 'Try privctl help.');
  return found;
}

function optionLines(names: readonly OptionName[]): string[] {
  const rows = names.map((name) => {
    const option = options[name];
    const short = 'short' in option ? `-${option.short}, ` : '    ';
    const value = 'value' in option ? ` ${option.value}` : '';
    const fallback = 'default' in option && typeof option.default === 'string' ? ` (${option.default})` : '';
    return [`${short}--${name}${value}`, `${option.help}${fallback}`] as const;
  });
  const longest = Math.max(...rows.map(([flag]) => flag.length));
  return rows.map(([flag, help]) => `  ${flag.padEnd(longest)}  ${help}`);
}

function wrapped(text: string): string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const last = lines.at(-1) ?? '';
    if (last !== '' && last.length + word.length >= width) lines.push(word);
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`;
  }
  return lines;
}

/** Completes commands, methods, options, and pods where a helper runs. */
export function bashCompletion(): string[] {
  const names = [...commands.map(({ name }) => name), 'completion', 'help'];
  const flags = (own: readonly OptionName[]) =>
    [...own, ...commonOptions].map((name) => `--${name}`).join(' ');
  const methods = allMethods().map(({ declared }) => declared.name);
  const first = commands.flatMap(({ name, completes, words }) => {
    switch (completes) {
      case 'pods':
        return [`    ${name}) words=$(privctl pods --quiet 2>/dev/null) ;;`];
      case 'methods':
        return [`    ${name}) words="${methods.join(' ')}" ;;`];
      case 'words':
        return [`    ${name}) words="${(words ?? []).join(' ')}" ;;`];
      default:
        return [];
    }
  });
  return [
    '_privctl() {',
    '  local current=$' + '{COMP_WORDS[COMP_CWORD]} previous=$' + '{COMP_WORDS[COMP_CWORD-1]} words=',
    '  case $previous in',
    '    -o|--output) COMPREPLY=($(compgen -W "table json" -- "$current")); return ;;',
    '    --policy|--audit-file|check) COMPREPLY=($(compgen -f -- "$current")); return ;;',
    '    --socket-dir|--state-dir|--hotplug-state-dir|--kubelet-pods-dir) COMPREPLY=($(compgen -d -- "$current")); return ;;',
    '  esac',
    '  if ((COMP_CWORD == 1)); then',
    `    COMPREPLY=($(compgen -W "${names.join(' ')}" -- "$current"))`,
    '    return',
    '  fi',
    '  if [[ $current == -* ]]; then',
    '    case $' + '{COMP_WORDS[1]} in',
    ...commands.map(({ name, options: own }) => `      ${name}) words="${flags(own)}" ;;`),
    '    esac',
    '  elif ((COMP_CWORD == 2)); then',
    '    case $' + '{COMP_WORDS[1]} in',
    ...first.map((line) => `  ${line}`),
    '      completion) words=bash ;;',
    `      help) words="${commands.map(({ name }) => name).join(' ')}" ;;`,
    '    esac',
    '  fi',
    '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
    '}',
    'complete -F _privctl privctl',
  ];
}
