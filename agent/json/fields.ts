import { isLosslessNumber } from 'lossless-json';
import type { JsonValue } from './lossless.js';

/** A JSON document whose shape is not the expected one. The message names the path. */
export class JsonShapeError extends Error {
  override readonly name = 'JsonShapeError';
}

/**
 * Reads a JSON object as Go's encoding/json fills a struct: keys are case-sensitive, unknown ones are
 * ignored, a missing key or null is the zero value, and a value of another type is an error.
 */
export class Fields {
  private constructor(
    private readonly object: { [key: string]: JsonValue } | undefined,
    private readonly path: string,
  ) {}

  /** Null and undefined count as an empty object. Throws JsonShapeError for anything else but an object. */
  static of(value: JsonValue | undefined, path: string): Fields {
    if (value === undefined || value === null) return new Fields(undefined, path);
    if (typeof value !== 'object' || Array.isArray(value) || isLosslessNumber(value)) {
      throw new JsonShapeError(`${path}: ${kindOf(value)} instead of object`);
    }
    return new Fields(value, path);
  }

  string(key: string): string {
    const value = this.get(key);
    if (value === undefined) return '';
    if (typeof value !== 'string') throw this.wrong(key, value, 'string');
    return value;
  }

  boolean(key: string): boolean {
    return this.optionalBoolean(key) ?? false;
  }

  optionalBoolean(key: string): boolean | undefined {
    const value = this.get(key);
    if (value === undefined) return undefined;
    if (typeof value !== 'boolean') throw this.wrong(key, value, 'boolean');
    return value;
  }

  /** An integer of any size. */
  bigint(key: string): bigint {
    const value = this.get(key);
    if (value === undefined) return 0n;
    const text = isLosslessNumber(value) ? value.value : typeof value === 'number' ? String(value) : '';
    if (!/^-?\d{1,20}$/.test(text)) throw this.wrong(key, value, 'integer');
    return BigInt(text);
  }

  /** An integer that JavaScript holds exactly. */
  integer(key: string): number {
    const value = Number(this.bigint(key));
    if (!Number.isSafeInteger(value)) throw new JsonShapeError(`${this.path}.${key}: integer out of range`);
    return value;
  }

  /** Any number, as JavaScript holds it. */
  number(key: string): number {
    const value = this.get(key);
    if (value === undefined) return 0;
    if (typeof value !== 'number' && !isLosslessNumber(value)) throw this.wrong(key, value, 'number');
    return Number(value.toString());
  }

  optionalInteger(key: string): number | undefined {
    return this.get(key) === undefined ? undefined : this.integer(key);
  }

  /** RFC 3339 text; undefined when absent. */
  time(key: string): string | undefined {
    const value = this.get(key);
    if (value === undefined) return undefined;
    if (typeof value !== 'string') throw this.wrong(key, value, 'time');
    if (
      !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/.test(value) ||
      Number.isNaN(Date.parse(value))
    ) {
      throw new JsonShapeError(`${this.path}.${key}: not an RFC 3339 time`);
    }
    return value;
  }

  /** A struct; absent is the same as empty. */
  struct(key: string): Fields {
    return Fields.of(this.get(key), `${this.path}.${key}`);
  }

  /** A pointer to a struct. */
  optional<T>(key: string, read: (fields: Fields) => T): T | undefined {
    const value = this.get(key);
    return value === undefined ? undefined : read(Fields.of(value, `${this.path}.${key}`));
  }

  /** A slice of structs, at most `limit`. */
  list<T>(key: string, limit: number, read: (fields: Fields) => T): T[] {
    return this.items(key, limit).map((item, i) => read(Fields.of(item, `${this.path}.${key}[${i}]`)));
  }

  /** The keys of a map, at most `limit`. */
  keys(limit: number): string[] {
    const keys = Object.keys(this.object ?? {});
    if (keys.length > limit)
      throw new JsonShapeError(`${this.path}: ${keys.length} entries, at most ${limit}`);
    return keys;
  }

  /** A map of structs, at most `limit`. */
  map<T>(key: string, limit: number, read: (fields: Fields) => T): Record<string, T> {
    const { object = {} } = this.struct(key);
    const keys = this.struct(key).keys(limit);
    return Object.fromEntries(
      keys.map((name) => [name, read(Fields.of(object[name], `${this.path}.${key}.${name}`))]),
    );
  }

  has(key: string): boolean {
    return this.get(key) !== undefined;
  }

  strings(key: string, limit: number): string[] {
    return this.items(key, limit).map((item, i) => {
      if (typeof item !== 'string') throw this.wrong(`${key}[${i}]`, item, 'string');
      return item;
    });
  }

  private items(key: string, limit: number): JsonValue[] {
    const value = this.get(key);
    if (value === undefined) return [];
    if (!Array.isArray(value)) throw this.wrong(key, value, 'array');
    if (value.length > limit)
      throw new JsonShapeError(`${this.path}.${key}: ${value.length} entries, at most ${limit}`);
    return value;
  }

  private get(key: string): JsonValue | undefined {
    if (this.object === undefined || !Object.hasOwn(this.object, key)) return undefined;
    return this.object[key] ?? undefined;
  }

  private wrong(key: string, value: JsonValue, expected: string): JsonShapeError {
    return new JsonShapeError(`${this.path}.${key}: ${kindOf(value)} instead of ${expected}`);
  }
}

function kindOf(value: JsonValue): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (isLosslessNumber(value)) return 'number';
  return typeof value;
}
