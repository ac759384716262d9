// Writes the table of the helper's methods into docs/security.md, from the declarations and the dispatch tables of
// the built helper. With --check, fails when the document is not what it should be.
import { readFileSync, writeFileSync } from 'node:fs';
import { inspection, subjectWords, table } from '../dist/privhelper/dispatch.js';
import { createPolicy } from '../dist/privhelper/policy/policy.js';
import { capabilityNames, namespaceNames } from '../dist/privhelper/privctl/commands/describe.js';
import { declareAll } from '../dist/privhelper/server/routes.js';

const file = 'docs/security.md';
/** Limits are those of a helper without a policy file. */
const policy = createPolicy();

function rows(entries) {
  return declareAll(entries).map(({ entry, declared: { name, declaration, deadlineMs } }) => {
    const cells = [
      `\`${name}\``,
      capabilityNames(declaration) || 'nothing',
      namespaceNames(declaration) || '–',
      declaration.changes,
      entry.subject,
      entry.words(policy).join('; ') || '–',
      deadlineMs === 0 ? 'stream' : `${deadlineMs / 1000} s`,
    ];
    return `| ${cells.join(' | ')} |`;
  });
}

const heading = [
  '| method | raises | enters | what is different afterwards | about | checked in the request | within |',
  '|---|---|---|---|---|---|---|',
];
const subjects = Object.entries(subjectWords).map(
  ([subject, words]) =>
    `| ${subject} | ${words.join('; ') || 'nothing: it takes no pod, or only looks at names'} |`,
);
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
  '',
  'What a method is about decides what is checked about the pod, after the request and before anything is done:',
  '',
  '| about | checked |',
  '|---|---|',
  ...subjects,
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
