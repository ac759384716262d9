/**
 * JSON without loss: numbers that JavaScript cannot hold exactly (libvirt counters, resource versions of
 * other people's fields, 1.0 that must stay 1.0) survive a round trip.
 */
import { isLosslessNumber, LosslessNumber, parse, stringify } from 'lossless-json';

export type JsonValue =
  | null
  | boolean
  | number
  | string
  | LosslessNumber
  | JsonValue[]
  | { [key: string]: JsonValue };

/** Whether a value of a JSON document is an object. */
export function isRecord(value: unknown): value is Record<string, JsonValue> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isLosslessNumber(value);
}

export class JsonTooLarge extends Error {
  override readonly name = 'JsonTooLarge';
}

/** Numbers become JavaScript numbers only when writing them again gives the same text. */
function exactNumber(text: string): number | LosslessNumber {
  const value = Number(text);
  return String(value) === text ? value : new LosslessNumber(text);
}

/**
 * Finds any number that JavaScript might not write again as it was read: fractions, exponents, 16 digits
 * and more, minus zero. May also match inside a string, which costs only time.
 */
const doubtfulNumber = /(?:^|[:,[\s])-?(?:\d+[.eE]|\d{16}|(?<=-)0)/;

/**
 * Parses `text`. Throws JsonTooLarge beyond `maxBytes` (UTF-16 units count as bytes) and SyntaxError for
 * what is not JSON.
 */
export function parseJson(text: string, maxBytes: number): JsonValue {
  if (text.length > maxBytes) throw new JsonTooLarge(`JSON of ${text.length} bytes exceeds ${maxBytes}`);
  // The engine's own parser is ten times faster and shares strings; most texts need nothing more.
  if (!doubtfulNumber.test(text)) return JSON.parse(text) as JsonValue;
  return parse(text, undefined, {
    parseNumber: exactNumber,
    onDuplicateKey: ({ newValue }) => newValue,
  }) as JsonValue;
}

export function stringifyJson(value: unknown): string {
  const text = stringify(value);
  if (text === undefined) throw new TypeError('value has no JSON form');
  return text;
}

/** Deep copy that keeps lossless numbers. */
export function cloneJson<T>(value: T): T {
  if (Array.isArray(value)) return value.map(cloneJson) as T;
  if (value !== null && typeof value === 'object' && !isLosslessNumber(value)) {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, cloneJson(v)])) as T;
  }
  return value;
}
