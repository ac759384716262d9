import type { JsonValue } from '../../../agent/json/lossless.js';
import { badRequest, isObject, type JsonObject } from './status.js';

export type Selector = (object: JsonObject) => boolean;

/** Label and field selector of a list or watch. Throws a 400 for what cannot be parsed. */
export function parseSelector(labels: string | null, fields: string | null): Selector {
  const label = parseLabelSelector(labels ?? '');
  const field = parseFieldSelector(fields ?? '');
  return (object) => label(object) && field(object);
}

const setTerm = /^([\w./-]+)\s+(in|notin)\s*\(([^)]*)\)$/;
const equalTerm = /^([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)$/;
const existsTerm = /^(!?)\s*([\w./-]+)$/;

function parseLabelSelector(text: string): Selector {
  const terms = text
    .split(/,(?![^(]*\))/)
    .map((term) => term.trim())
    .filter((term) => term !== '')
    .map(parseLabelTerm);
  return (object) => {
    const metadata = object['metadata'];
    const labels = isObject(metadata) && isObject(metadata['labels']) ? metadata['labels'] : {};
    return terms.every((term) => term(labels));
  };
}

function parseLabelTerm(term: string): (labels: JsonObject) => boolean {
  const set = setTerm.exec(term);
  if (set !== null) {
    const [, key = '', operator, list = ''] = set;
    const values = list.split(',').map((value) => value.trim());
    const wanted = operator === 'in';
    // A label that is not there is "notin" every set.
    return (labels) => (key in labels && values.includes(String(labels[key]))) === wanted;
  }
  const equal = equalTerm.exec(term);
  if (equal !== null) {
    const [, key = '', operator, value = ''] = equal;
    return (labels) => (key in labels && labels[key] === value) === (operator !== '!=');
  }
  const exists = existsTerm.exec(term);
  if (exists === null) throw badRequest(`unable to parse requirement: ${term}`);
  const [, not, key = ''] = exists;
  return (labels) => key in labels === (not === '');
}

function parseFieldSelector(text: string): Selector {
  const terms = text
    .split(',')
    .filter((term) => term !== '')
    .map((term) => {
      const match = /^([\w.]+)(==|=|!=)(.*)$/.exec(term);
      if (match === null) throw badRequest(`invalid field selector: ${term}`);
      const [, path = '', operator, value = ''] = match;
      return (object: JsonObject) => (textAt(object, path) === value) === (operator !== '!=');
    });
  return (object) => terms.every((term) => term(object));
}

function textAt(object: JsonObject, path: string): string {
  const value = valueAt(object, path);
  return value === undefined || value === null ? '' : String(value);
}

/** Follows a path of keys and indexes; `[Type]` is the status of the condition of that type. */
export function valueAt(object: JsonObject, path: string): JsonValue | undefined {
  let value: JsonValue | undefined = object;
  for (const key of path.split('.')) {
    if (Array.isArray(value)) {
      const condition = /^\[(.*)\]$/.exec(key)?.[1];
      if (condition === undefined) value = value[Number(key)];
      else {
        const found: JsonValue | undefined = value.find(
          (item) => isObject(item) && item['type'] === condition,
        );
        value = isObject(found) ? found['status'] : undefined;
      }
    } else value = isObject(value) ? value[key] : undefined;
  }
  return value;
}
