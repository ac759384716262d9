// Golden cases of test/vectors for programs that do not read JSON: one a line, fields separated by tabs.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

export function load(area, name) {
  const file = new URL(`../../test/vectors/${area}/${name}.json.gz`, import.meta.url);
  return JSON.parse(gunzipSync(readFileSync(file)).toString());
}

export function say(...fields) {
  if (fields.some((field) => /[\t\n]/.test(field))) throw new Error(`${fields[0]} has a tab or a newline`);
  process.stdout.write(`${fields.join('\t')}\n`);
}
