/** Wrong requests made of a right one: each field in turn gets what no field of its type may hold. */
import {
  clone,
  type DescField,
  type DescMessage,
  type Message,
  ScalarType,
  toBinary,
} from '@bufbuild/protobuf';
import type { Target } from './line.js';
import type { HostileMethod } from './methods.js';

export interface Variation {
  readonly what: string;
  readonly bytes: Uint8Array;
  /** Field that the refusal names; empty where the message cannot be read at all. */
  readonly field: string;
}

type Fields = Record<string | number, unknown>;

/** A field that is set in a message: where it is, and how messages of errors call it. */
interface Place {
  readonly keys: readonly (string | number)[];
  readonly path: string;
  readonly field: DescField;
  /** The whole list, not one element. */
  readonly list: boolean;
}

const tooLong = 70_000;
const tooMany = 2000;
const texts = ['..', '../../etc/passwd', '/', '/etc/passwd', 'a/b', 'a\0b', ' ', 'a\nb', '\u202eab', 'ｅth0'];
const notUuids = [
  '',
  '99999999-9999-4999-8999-99999999999',
  '99999999-9999-4999-8999-999999999999/',
  '99999999-9999-4999-8999-999999999999\n',
  'AAAAAAAA-9999-4999-8999-999999999999',
  '{9999999-9999-4999-8999-999999999999}',
  '99999999/../4999-8999-9999-999999999999',
  'kube-system',
];
const mark = 'MARK';

export function* variations(hostile: HostileMethod, target: Target): Generator<Variation> {
  const schema = hostile.method.input;
  const right = hostile.request(target);
  const encode = (change: (request: Message) => void) => {
    const request = clone(schema, right);
    change(request);
    return toBinary(schema, request);
  };
  for (const { field, change } of hostile.wrong)
    yield { what: `wrong ${field}`, field, bytes: encode(change) };
  for (const place of places(schema, right as unknown as Fields)) {
    for (const [what, value] of wrongValues(place, hostile.anyText)) {
      // What may be left out is empty where it is.
      if (value === get(right as unknown as Fields, place.keys)) continue;
      const bytes = encode((request) => set(request as unknown as Fields, place.keys, value));
      yield { what: `${place.path} ${what}`, field: place.path, bytes };
    }
    if (place.field.scalar !== ScalarType.STRING || place.list) continue;
    const marked = Buffer.from(encode((request) => set(request as unknown as Fields, place.keys, mark)));
    marked.fill(0xff, marked.indexOf(mark), marked.indexOf(mark) + mark.length);
    yield { what: `${place.path} not UTF-8`, field: '', bytes: marked };
  }
  const bytes = toBinary(schema, right);
  if (bytes.length > 0) {
    yield { what: 'cut off', field: '', bytes: bytes.subarray(0, -1) };
    yield { what: 'empty', field: firstRequired(schema), bytes: new Uint8Array() };
  }
  for (const [what, raw] of unreadable) yield { what, field: '', bytes: Buffer.concat([bytes, raw]) };
}

/** No message, whatever precedes it. */
const unreadable: readonly (readonly [string, Buffer])[] = [
  ['a length beyond the end', Buffer.from([0x0a, 0x7f, 0x01])],
  ['a length of 4 GiB', Buffer.from([0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f])],
  ['a tag of eleven bytes', Buffer.alloc(11, 0xff)],
  ['field number 0', Buffer.from([0x00, 0x00])],
  ['an unknown wire type', Buffer.from([0x0f])],
  ['an end of no group', Buffer.from([0x0c])],
  ['a group without end', Buffer.from([0xfb, 0x7f])],
  // Deeper than any stack.
  [
    '200,000 groups in each other',
    Buffer.concat(Array.from({ length: 200_000 }, () => Buffer.from([0xfb, 0x7f]))),
  ],
];

/** Unknown fields, which change nothing: a number, a text and a closed group. */
export const unknownFields = Buffer.from([0xf8, 0x7f, 0x01, 0xfa, 0x7f, 0x01, 0x41, 0xfb, 0x7f, 0xfc, 0x7f]);

function* places(
  schema: DescMessage,
  message: Fields,
  keys: Place['keys'] = [],
  path = '',
): Generator<Place> {
  for (const field of schema.fields) {
    const oneof = field.oneof === undefined ? undefined : (message[field.oneof.localName] as Fields);
    if (oneof !== undefined && oneof['case'] !== field.localName) continue;
    const own =
      oneof === undefined ? [...keys, field.localName] : [...keys, field.oneof?.localName ?? '', 'value'];
    const value = oneof === undefined ? message[field.localName] : oneof['value'];
    const name = `${path === '' ? '' : `${path}.`}${field.name}`;
    const elements = field.fieldKind === 'list' ? (value as unknown[]) : [value];
    if (field.fieldKind === 'list') yield { keys: own, path: name, field, list: true };
    for (const [i, element] of elements.entries()) {
      const at = field.fieldKind === 'list' ? [...own, i] : own;
      const called = field.fieldKind === 'list' ? `${name}[${i}]` : name;
      if (field.message !== undefined) {
        if (element !== undefined) yield* places(field.message, element as Fields, at, called);
      } else yield { keys: at, path: called, field, list: false };
    }
    if (field.fieldKind === 'message' && field.name === 'pod')
      yield { keys: own, path: name, field, list: false };
  }
}

function* wrongValues(
  { path, field, list }: Place,
  anyText: readonly string[],
): Generator<[string, unknown]> {
  if (list) {
    yield [`${tooMany} times`, tooMany];
  } else if (field.message !== undefined) {
    yield ['missing', undefined];
  } else if (field.enum !== undefined) {
    yield ['0', 0];
    yield ['unknown', 99];
  } else if (field.scalar === ScalarType.UINT32) {
    yield ['at its most', 0xffff_ffff];
  } else if (field.scalar === ScalarType.UINT64) {
    yield ['at its most', 2n ** 64n - 1n];
  } else if (field.scalar === ScalarType.STRING) {
    yield [`of ${tooLong} bytes`, 'a'.repeat(tooLong)];
    const wrong = anyText.includes(path) ? ['a\0b'] : path.endsWith('_uid') ? [...texts, ...notUuids] : texts;
    for (const text of wrong) yield [JSON.stringify(text), text];
  }
}

function get(message: Fields, keys: Place['keys']): unknown {
  return keys.reduce<unknown>((each, key) => (each as Fields | undefined)?.[key], message);
}

/** A number for a list means: its first element so many times. */
function set(message: Fields, keys: Place['keys'], value: unknown): void {
  const holder = keys.slice(0, -1).reduce<Fields>((each, key) => each[key] as Fields, message);
  const last = keys.at(-1) ?? '';
  const previous = holder[last];
  holder[last] = Array.isArray(previous) ? Array.from({ length: value as number }, () => previous[0]) : value;
}

function firstRequired(schema: DescMessage): string {
  return schema.fields[0]?.name ?? '';
}
