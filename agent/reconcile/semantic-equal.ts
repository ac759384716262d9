/**
 * Equality of statuses as the API server sees it. A write that changes nothing produces no event, and the
 * key would wait for that event; a difference that is none would be written for ever.
 */
import { isLosslessNumber } from 'lossless-json';
import { quantityNanos } from '../api/quantity.js';
import { isRecord } from '../json/lossless.js';
import { instant } from './time.js';

/** Fields whose text is a quantity. */
const quantityKeys: ReadonlySet<string> = new Set([
  'storage',
  'guestAtBoot',
  'guestCurrent',
  'guestRequested',
  'memoryOverhead',
  'targetMemoryOverhead',
]);
const timeKey = /(Timestamp|Time)$/;

/**
 * Absent, null and zero values (empty text, list, map, 0, false) are equal, quantities compare by value,
 * times by instant; everything else, the order of lists included, must be the same. `key` is the name of
 * the field that holds the values.
 */
export function semanticEqual(a: unknown, b: unknown, key = ''): boolean {
  if (isZero(a) || isZero(b)) return isZero(a) && isZero(b);
  if (isNumber(a) && isNumber(b)) return sameNumber(a, b);
  if (typeof a === 'string' && typeof b === 'string') return a === b || sameValue(a, b, key);
  if (Array.isArray(a) || Array.isArray(b)) {
    return (
      Array.isArray(a) &&
      Array.isArray(b) &&
      a.length === b.length &&
      a.every((item, index) => semanticEqual(item, b[index], key))
    );
  }
  if (isRecord(a) && isRecord(b)) {
    const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
    return [...keys].every((name) => semanticEqual(a[name], b[name], name));
  }
  return a === b;
}

function isZero(value: unknown): boolean {
  if (value === undefined || value === null || value === '' || value === false) return true;
  if (isNumber(value)) return Number(value.toString()) === 0;
  if (Array.isArray(value)) return value.length === 0;
  return isRecord(value) && Object.values(value).every(isZero);
}

type NumberLike = number | bigint | { toString(): string; readonly isLosslessNumber: true };

function isNumber(value: unknown): value is NumberLike {
  return typeof value === 'number' || typeof value === 'bigint' || isLosslessNumber(value);
}

function sameNumber(a: NumberLike, b: NumberLike): boolean {
  const [textA, textB] = [a.toString(), b.toString()];
  if (textA === textB) return true;
  const [valueA, valueB] = [Number(textA), Number(textB)];
  return valueA === valueB && Math.abs(valueA) <= Number.MAX_SAFE_INTEGER;
}

function sameValue(a: string, b: string, key: string): boolean {
  if (quantityKeys.has(key)) {
    const [nanosA, nanosB] = [quantityNanos(a), quantityNanos(b)];
    return nanosA !== undefined && nanosA === nanosB;
  }
  if (!timeKey.test(key)) return false;
  const [instantA, instantB] = [instant(a), instant(b)];
  return instantA !== undefined && instantA === instantB;
}
