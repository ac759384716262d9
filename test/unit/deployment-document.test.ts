import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import * as agent from '../../agent/flags.js';
import * as helper from '../../privhelper/flags.js';

const root = new URL('../..', import.meta.url).pathname;
const document = readFileSync(join(root, 'docs/deployment.md'), 'utf8');

interface Option {
  readonly value: string;
  readonly help: string;
  readonly default?: string;
  readonly short?: string;
}

function rows(options: Readonly<Record<string, Option>>): string[] {
  return Object.entries(options).map(([name, { short, value, help, default: fallback }]) => {
    const flag = `\`${short === undefined ? '--' : '-'}${name} ${value}\``;
    return `| ${flag} | ${fallback === undefined ? '' : `\`${fallback}\` `}| ${help} |`;
  });
}

describe.each([
  { program: 'virt-agent', main: 'dist/agent/main.js', options: agent.options },
  { program: 'virt-privhelper', main: 'dist/privhelper/main.js', options: helper.options },
])('the flags of $program', ({ program, main, options }) => {
  it('are those of the table in docs/deployment.md', () => {
    const [, section = ''] = document.split(`\n### ${program}\n`);
    const [table = ''] = section.split('\n#');
    expect(table.split('\n').filter((line) => line.startsWith('| `-'))).toEqual(rows(options));
  });

  it('are told by --help', () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [main, '--help'], {
      cwd: root,
      encoding: 'utf8',
    });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const told = [...stdout.matchAll(/^ {2}--?(\S+) (\S+) {2,}(.+?)(?: \(([^()]+)\))?$/gm)];
    expect(told.map(([, name, value, help, fallback]) => ({ name, value, help, fallback }))).toEqual(
      Object.entries(options as Readonly<Record<string, Option>>).map(([name, option]) => ({
        name,
        value: option.value,
        help: option.help,
        fallback: option.default,
      })),
    );
  });
});
