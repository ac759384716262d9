// The golden cases about paths for path_vectors_test.cc: name, operation, root, path, outcome, then the entries of the
// tree, each a path and what it is.
import { load, say } from './golden.mjs';

const images = load('storage', 'container-disk').filter(({ input }) => input.op === 'getImage');
const below = (path) => path.replace(/^\$ROOT\/?/, '');

for (const { name, input, expected } of [...load('storage', 'safepath'), ...images]) {
  const { op, elems = [], elem = elems.join('/'), path = '', root = '', tree = {} } = input;
  const walked = op === 'NewPathNoFollow' ? below(path) : (input.imagePath ?? elem);
  const outcome = expected.ok ? `ok:${below(expected.path ?? path)}` : 'fail';
  const entries = Object.entries(tree).flat();
  say(name, op, below(root), walked, outcome, ...entries);
}
