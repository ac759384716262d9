/** Tables as kubectl asks for them, and the plain answer otherwise. */
import type { JsonValue } from '../../../agent/json/lossless.js';
import type { Kind } from './kinds.js';
import { valueAt } from './selectors.js';
import type { JsonObject } from './status.js';
import { metadataOf } from './store.js';

export function wantsTable(accept: string | undefined): boolean {
  // The first media type that the client names and the server has.
  const first = accept?.split(',').find((type) => /as=Table;.*v=v1;|^application\/json$/.test(type.trim()));
  return first?.includes('as=Table') ?? false;
}

export function table(kind: Kind, objects: readonly JsonObject[], metadata: JsonObject): JsonObject {
  return {
    kind: 'Table',
    apiVersion: 'meta.k8s.io/v1',
    metadata,
    columnDefinitions: [{ name: 'Name', type: 'string', path: '' }, ...kind.columns].map((column) => ({
      name: column.name,
      type: column.type === 'date' ? 'string' : column.type,
      format: column.name === 'Name' ? 'name' : '',
      description: '',
      priority: 0,
    })),
    rows: objects.map((object) => row(kind, object)),
  };
}

function row(kind: Kind, object: JsonObject): JsonObject {
  const metadata = metadataOf(object);
  const cells: JsonValue[] = [metadata['name'] ?? ''];
  for (const column of kind.columns) {
    const value = valueAt(object, column.path) ?? null;
    cells.push(column.type === 'date' && typeof value === 'string' ? ageOf(value) : value);
  }
  return {
    cells,
    object: { kind: 'PartialObjectMetadata', apiVersion: 'meta.k8s.io/v1', metadata },
  };
}

function ageOf(timestamp: string): string {
  const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(timestamp)) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}
