// The golden cases about paths (test/vectors/storage) for path_vectors_test.cc: one a line, fields separated by tabs:
// name, operation, root, path, outcome, then the entries of the tree, each a path and what it is.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

function load(name) {
  const file = new URL(`../../test/vectors/storage/${name}.json.gz`, import.meta.url);
  return JSON.parse(gunzipSync(readFileSync(file)).toString());
}

const images = load('container-disk').filter(({ input }) => input.op === 'getImage');
const below = (path) => path.replace(/^\$ROOT\/?/, '');

for (const { name, input, expected } of [...load('safepath'), ...images]) {
  const { op, elems = [], elem = elems.join('/'), path = '', root = '', tree = {} } = input;
  const walked = op === 'NewPathNoFollow' ? below(path) : (input.imagePath ?? elem);
  const outcome = expected.ok ? `ok:${below(expected.path ?? path)}` : 'fail';
  const entries = Object.entries(tree).flat();
  const fields = [name, op, below(root), walked, outcome, ...entries];
  if (fields.some((field) => /[\t\n]/.test(field))) throw new Error(`${name} has a tab or a newline`);
  process.stdout.write(`${fields.join('\t')}\n`);
}
