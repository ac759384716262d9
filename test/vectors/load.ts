import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

/** One golden case. */
export interface Vector<Input, Expected> {
  readonly name: string;
  readonly input: Input;
  readonly expected: Expected;
}

/** All cases of `<area>/<file>.json.gz`. */
export function loadVectors<Input, Expected>(area: string, file: string): Vector<Input, Expected>[] {
  const packed = readFileSync(new URL(`${area}/${file}.json.gz`, import.meta.url));
  return JSON.parse(gunzipSync(packed).toString('utf8'));
}
