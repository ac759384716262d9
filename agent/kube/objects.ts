/** What every object of the API has, and how it is checked on the way in. */
import { isLosslessNumber } from 'lossless-json';
import type { JsonValue } from '../json/lossless.js';
import { isRecord } from '../json/lossless.js';

export interface KubeObject {
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly uid?: string;
    readonly resourceVersion?: string;
  };
}

/** Checks an object as it came from the API server. Throws a TypeError that names the field. */
export type Decode<T extends KubeObject> = (value: JsonValue) => T;

/** `namespace/name`, or `name` for objects of the cluster. */
export function objectKey(object: KubeObject): string {
  const { namespace, name } = object.metadata;
  return namespace === undefined || namespace === '' ? name : `${namespace}/${name}`;
}

/** Names in Kubernetes are DNS subdomains. */
const maxName = 253;

/** The metadata of `value` if it is an object with a usable name, namespace, UID and version. */
export function checkObject(value: JsonValue): Record<string, JsonValue> {
  if (!isRecord(value)) throw new TypeError('the object is not a JSON object');
  const metadata = value['metadata'];
  if (!isRecord(metadata)) throw new TypeError('metadata is not a JSON object');
  checkText(metadata, 'name', true);
  for (const field of ['namespace', 'uid', 'resourceVersion']) checkText(metadata, field, false);
  return value;
}

function checkText(metadata: Record<string, JsonValue>, field: string, required: boolean): void {
  const text = metadata[field];
  if (text === undefined && !required) return;
  if (typeof text !== 'string' || text.length > maxName || text.includes('/') || (required && text === '')) {
    throw new TypeError(`metadata.${field} is not a valid name`);
  }
}

/** Objects are shared by all readers of a cache; a write to one is a bug and must show. */
export function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return value;
  Object.freeze(value);
  if (!isLosslessNumber(value)) for (const part of Object.values(value)) deepFreeze(part);
  return value;
}
