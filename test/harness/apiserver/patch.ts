import { cloneJson, type JsonValue } from '../../../agent/json/lossless.js';
import type { Kind } from './kinds.js';
import { badRequest, invalid, isObject, type JsonObject, StatusError } from './status.js';

export const patchTypes = {
  'application/merge-patch+json': mergePatch,
  'application/strategic-merge-patch+json': strategicPatch,
  'application/json-patch+json': jsonPatch,
} as const;

/** Applies the body of a PATCH. Throws the StatusError that the real server would answer. */
export function applyPatch(
  kind: Kind,
  contentType: string,
  object: JsonObject,
  patch: JsonValue,
): JsonObject {
  const apply = Object.entries(patchTypes).find(([type]) => type === contentType)?.[1];
  if (apply === undefined || (kind.custom && apply === strategicPatch)) {
    const message = `the body of the request was in an unknown format - accepted media types include: ${Object.keys(patchTypes).join(', ')}`;
    throw new StatusError(415, 'UnsupportedMediaType', message);
  }
  const result = apply(object, patch, kind);
  if (!isObject(result)) throw badRequest('the patch does not leave an object');
  return result;
}

/** RFC 7386. */
function mergePatch(target: JsonValue, patch: JsonValue): JsonValue {
  if (!isObject(patch)) return patch;
  const result: JsonObject = isObject(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else result[key] = mergePatch(result[key] ?? null, value);
  }
  return result;
}

/** Lists that are merged by a key of their items; all others are replaced. */
const mergeKeys: Readonly<Record<string, string>> = {
  containers: 'name',
  initContainers: 'name',
  volumes: 'name',
  env: 'name',
  volumeMounts: 'mountPath',
  conditions: 'type',
  addresses: 'type',
  ownerReferences: 'uid',
};

/** What of strategic merge patch kubectl and controllers use: keyed lists, `$patch: delete`, no ordering. */
function strategicPatch(target: JsonValue, patch: JsonValue): JsonValue {
  if (!isObject(patch)) return patch;
  const result: JsonObject = isObject(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith('$')) continue;
    const mergeKey = mergeKeys[key];
    const before = result[key] ?? null;
    if (value === null) delete result[key];
    else if (mergeKey !== undefined && Array.isArray(value) && Array.isArray(before)) {
      result[key] = mergeList(before, value, mergeKey);
    } else result[key] = strategicPatch(before, value);
  }
  return result;
}

function mergeList(before: JsonValue[], patch: JsonValue[], mergeKey: string): JsonValue[] {
  const result = [...before];
  for (const item of patch) {
    if (!isObject(item)) continue;
    const at = result.findIndex((old) => isObject(old) && old[mergeKey] === item[mergeKey]);
    if (item['$patch'] === 'delete') {
      if (at !== -1) result.splice(at, 1);
    } else if (at === -1) result.push(strategicPatch({}, item));
    else result[at] = strategicPatch(result[at] ?? null, item);
  }
  return result;
}

/** RFC 6902. */
function jsonPatch(target: JsonValue, patch: JsonValue, kind: Kind): JsonValue {
  if (!Array.isArray(patch)) throw badRequest('a JSON patch is a list');
  const root: JsonObject = { '': cloneJson(target) };
  for (const operation of patch) {
    if (!isObject(operation)) throw badRequest('a JSON patch operation is an object');
    const { op, path, from, value } = operation;
    const failed = (why: string) =>
      invalid(kind, '', `the server rejected our request due to an error in our request: ${why}`);
    const to = pointer(path);
    switch (op) {
      case 'add':
        insert(root, to, value ?? null, failed);
        break;
      case 'remove':
        remove(root, to, failed);
        break;
      case 'replace':
        remove(root, to, failed);
        insert(root, to, value ?? null, failed);
        break;
      case 'move':
        insert(root, to, remove(root, pointer(from), failed), failed);
        break;
      case 'copy':
        insert(root, to, cloneJson(read(root, pointer(from), failed)), failed);
        break;
      case 'test':
        if (JSON.stringify(read(root, to, failed)) !== JSON.stringify(value)) {
          throw failed(`testing value ${String(path)} failed`);
        }
        break;
      default:
        throw badRequest(`unknown JSON patch operation ${String(op)}`);
    }
  }
  return root[''] ?? null;
}

type Failed = (why: string) => StatusError;

function pointer(path: JsonValue | undefined): string[] {
  if (typeof path !== 'string' || (path !== '' && !path.startsWith('/'))) {
    throw badRequest('a JSON patch operation lacks its path');
  }
  // The first, empty part leads from the holder to the document.
  return path.split('/').map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function read(root: JsonObject, path: string[], failed: Failed): JsonValue {
  let value: JsonValue | undefined = root;
  for (const key of path) {
    if (Array.isArray(value)) value = value[Number(key)];
    else value = isObject(value) ? value[key] : undefined;
    if (value === undefined) throw failed(`path ${path.join('/')} does not exist`);
  }
  return value;
}

function insert(root: JsonObject, path: string[], value: JsonValue, failed: Failed): void {
  const parent = read(root, path.slice(0, -1), failed);
  const key = path.at(-1) ?? '';
  if (Array.isArray(parent)) parent.splice(key === '-' ? parent.length : Number(key), 0, value);
  else if (isObject(parent)) parent[key] = value;
  else throw failed(`path ${path.join('/')} is not inside an object or list`);
}

function remove(root: JsonObject, path: string[], failed: Failed): JsonValue {
  const value = read(root, path, failed);
  const parent = read(root, path.slice(0, -1), failed);
  const key = path.at(-1) ?? '';
  if (Array.isArray(parent)) parent.splice(Number(key), 1);
  else if (isObject(parent)) delete parent[key];
  return value;
}
