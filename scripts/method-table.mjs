// Writes the table of the helper's methods into docs/security.md, from the declarations and the dispatch tables of
// the built helper. With --check, fails when the document is not what it should be.
import { readFileSync, writeFileSync } from 'node:fs';
import { inspection, table } from '../dist/privhelper/dispatch.js';
import { capabilityNames, namespaceNames } from '../dist/privhelper/privctl/commands/describe.js';
import { declareAll, describeAll } from '../dist/privhelper/server/routes.js';

const file = 'docs/security.md';

function rows(entries) {
  const declared = declareAll(entries);
  const described = describeAll(declared);
  return declared.map(({ declared: { name, declaration, deadlineMs } }, i) => {
    const raises = capabilityNames(declaration);
    const checks = described[i].checks.join('; ');
    return `| ${[
      `\`${name}\``,
      raises === '' ? 'nothing' : raises,
      namespaceNames(declaration) || '–',
      declaration.changes,
      checks === '' ? '–' : checks,
      deadlineMs === 0 ? 'stream' : `${deadlineMs / 1000} s`,
    ].join(' | ')} |`;
  });
}

const heading = [
  '| method | raises | enters | what is different afterwards | checked first | within |',
  '|---|---|---|---|---|---|',
];
const generated = [
  'What the agent may ask for:',
  '',
  ...heading,
  ...rows(table),
  '',
  'What an operator may ask for besides, over `ctl.sock`:',
  '',
  ...heading,
  ...rows(inspection),
].join('\n');

const begin = '<!-- methods: written by scripts/method-table.mjs -->\n';
const end = '<!-- end of methods -->';
const text = readFileSync(file, 'utf8');
const [before, rest] = text.split(begin);
const [, after] = (rest ?? '').split(end);
if (after === undefined) throw new Error(`${file} has no place for the table`);
const wanted = `${before}${begin}${generated}\n${end}${after}`;
if (!process.argv.includes('--check')) {
  writeFileSync(file, wanted);
} else if (text !== wanted) {
  process.stderr.write(`${file} is out of date: run make build && node scripts/method-table.mjs\n`);
  process.exit(1);
}
