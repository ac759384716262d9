import { randomBytes, randomUUID } from 'node:crypto';
import { cloneJson, type JsonValue, stringifyJson } from '../../../agent/json/lossless.js';
import { groupVersion, type Kind, kindOf } from './kinds.js';
import {
  alreadyExists,
  badRequest,
  conflict,
  expired,
  invalid,
  isObject,
  type JsonObject,
  notFound,
} from './status.js';

export interface Change {
  readonly version: number;
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED';
  readonly kind: Kind;
  readonly object: JsonObject;
  readonly before: JsonObject | undefined;
}

export interface DeleteOptions {
  readonly gracePeriodSeconds?: number;
  readonly uid?: string;
  readonly resourceVersion?: string;
}

const firstVersion = 1000;
const defaultGraceSeconds = 30;

/**
 * The objects of the cluster with the rules of the real server: versions and conflicts, generation, UID,
 * finalizers, graceful deletion, writes that change nothing. Stored objects are never changed, only replaced.
 */
export class ObjectStore {
  private readonly objects = new Map<string, JsonObject>();
  private readonly history: Change[] = [];
  private readonly listeners = new Set<(change: Change) => void>();
  private lastVersion = firstVersion;
  /** Changes up to this version are forgotten. */
  private floor = firstVersion;

  constructor(private readonly maxHistory: number) {}

  get version(): number {
    return this.lastVersion;
  }

  find(kind: Kind, namespace: string, name: string): JsonObject | undefined {
    return this.objects.get(keyOf(kind, namespace, name));
  }

  /** Throws a 404. */
  read(kind: Kind, namespace: string, name: string): JsonObject {
    const object = this.find(kind, namespace, name);
    if (object === undefined) throw notFound(kind, name);
    return object;
  }

  /** Sorted by namespace and name; all namespaces when `namespace` is empty. */
  all(kind: Kind, namespace: string): JsonObject[] {
    const prefix = keyOf(kind, namespace, '');
    const start = namespace === '' ? prefix.slice(0, -1) : prefix;
    return [...this.objects.keys()]
      .filter((key) => key.startsWith(start))
      .sort()
      .map((key) => this.objects.get(key) as JsonObject);
  }

  create(kind: Kind, namespace: string, body: JsonObject, uid: string = randomUUID()): JsonObject {
    const given = metadataOf(body);
    const generated = given['generateName'];
    const name =
      textOf(given['name']) || (generated ? `${textOf(generated)}${randomBytes(3).toString('hex')}` : '');
    if (name === '')
      throw invalid(kind, '', 'metadata.name: Required value: name or generateName is required');
    if (this.find(kind, namespace, name) !== undefined) throw alreadyExists(kind, name);
    if (textOf(given['resourceVersion']) !== '') {
      throw badRequest('resourceVersion should not be set on objects to be created');
    }
    const { deletionTimestamp, deletionGracePeriodSeconds, resourceVersion, ...kept } = given;
    const object = cloneJson(body);
    const metadata = {
      ...kept,
      name,
      ...(kind.namespaced ? { namespace } : {}),
      uid,
      creationTimestamp: timestamp(Date.now()),
      ...(kind.custom ? { generation: 1 } : {}),
    };
    if (kind.statusSubresource && kind.custom) delete object['status'];
    return this.commit(kind, 'ADDED', { ...object, ...typeOf(kind), metadata }, undefined);
  }

  update(kind: Kind, namespace: string, name: string, body: JsonObject, subresource = ''): JsonObject {
    const before = this.read(kind, namespace, name);
    const old = metadataOf(before);
    const given = metadataOf(body);
    const version = textOf(given['resourceVersion']);
    if (textOf(given['name']) !== name) {
      const sent = textOf(given['name']);
      throw badRequest(`the name of the object (${sent}) does not match the name on the URL (${name})`);
    }
    if (version === '' && kind.custom) {
      throw invalid(
        kind,
        name,
        'metadata.resourceVersion: Invalid value: 0x0: must be specified for an update',
      );
    }
    if (version !== '' && version !== old['resourceVersion']) throw conflict(kind, name);
    const uid = textOf(given['uid']);
    if (uid !== '' && uid !== old['uid']) {
      throw conflict(
        kind,
        name,
        `Precondition failed: UID in precondition: ${uid}, UID in object meta: ${textOf(old['uid'])}`,
      );
    }
    return this.replace(kind, before, body, subresource);
  }

  /** Replaces an object whatever its version. */
  replace(kind: Kind, before: JsonObject, body: JsonObject, subresource = ''): JsonObject {
    const old = metadataOf(before);
    const given = metadataOf(body);
    let after = cloneJson(body);
    const metadata: JsonObject = { ...metadataOf(after) };
    if (subresource === 'status') {
      after = { ...before };
      if (body['status'] !== undefined) after['status'] = cloneJson(body['status']);
      Object.assign(metadata, old);
    } else if (kind.statusSubresource) {
      delete after['status'];
      if (before['status'] !== undefined) after['status'] = before['status'];
    }
    for (const field of serverFields) {
      if (old[field] === undefined) delete metadata[field];
      else metadata[field] = old[field];
    }
    const name = textOf(old['name']);
    const finalizers = listOf(metadata['finalizers']);
    if (old['deletionTimestamp'] !== undefined) {
      const added = finalizers.filter((finalizer) => !listOf(old['finalizers']).includes(finalizer));
      if (added.length > 0) {
        const why =
          'metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted';
        throw invalid(kind, textOf(given['name']) || name, why);
      }
    }
    const object: JsonObject = { ...after, ...typeOf(kind), metadata };
    if (sameJson(object, before)) return before;
    if (kind.custom && !sameJson(desired(kind, object), desired(kind, before))) {
      metadata['generation'] = Number(old['generation'] ?? 1) + 1;
    }
    const finished =
      old['deletionTimestamp'] !== undefined &&
      finalizers.length === 0 &&
      Number(old['deletionGracePeriodSeconds'] ?? 0) === 0;
    return this.commit(kind, finished ? 'DELETED' : 'MODIFIED', object, before);
  }

  /** Deletes, or marks for deletion while finalizers or a grace period keep the object. */
  delete(kind: Kind, namespace: string, name: string, options: DeleteOptions = {}): JsonObject {
    const before = this.read(kind, namespace, name);
    const old = metadataOf(before);
    for (const field of ['uid', 'resourceVersion'] as const) {
      const wanted = options[field];
      if (wanted !== undefined && wanted !== old[field]) {
        throw conflict(kind, name, `Precondition failed: ${field} in precondition: ${wanted}`);
      }
    }
    const spec = before['spec'];
    const scheduled = isObject(spec) && textOf(spec['nodeName']) !== '';
    const grace = kind.graceful && scheduled ? (options.gracePeriodSeconds ?? defaultGraceSeconds) : 0;
    if (grace === 0 && listOf(old['finalizers']).length === 0) {
      return this.commit(kind, 'DELETED', before, before);
    }
    const deletionTimestamp = old['deletionTimestamp'] ?? timestamp(Date.now() + grace * 1000);
    const metadata = { ...old, deletionTimestamp, deletionGracePeriodSeconds: grace };
    const object = { ...before, metadata };
    return sameJson(object, before) ? before : this.commit(kind, 'MODIFIED', object, before);
  }

  /** Changes after `version`, oldest first. Throws a 410 when some of them are forgotten. */
  since(version: number): readonly Change[] {
    if (version < this.floor) throw expired(`too old resource version: ${version} (${this.floor})`);
    return this.history.filter((change) => change.version > version);
  }

  /** Forgets all changes so far: who has not seen them must list. */
  expireHistory(): void {
    this.history.length = 0;
    this.floor = this.lastVersion;
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private commit(
    kind: Kind,
    type: Change['type'],
    object: JsonObject,
    before: JsonObject | undefined,
  ): JsonObject {
    const version = ++this.lastVersion;
    const metadata: JsonObject = { ...metadataOf(object), resourceVersion: String(version) };
    const stored = { ...object, metadata };
    const key = keyOf(kind, textOf(metadata['namespace']), textOf(metadata['name']));
    if (type === 'DELETED') this.objects.delete(key);
    else this.objects.set(key, stored);
    const change = { version, type, kind, object: stored, before };
    this.history.push(change);
    if (this.history.length > this.maxHistory) this.floor = this.history.shift()?.version ?? this.floor;
    for (const listener of [...this.listeners]) listener(change);
    return stored;
  }
}

/** The store as tests use it: kinds by plural, no conflicts. */
export class StoreAccess {
  constructor(private readonly store: ObjectStore) {}

  get(plural: string, namespace: string, name: string): JsonObject | undefined {
    return this.store.find(kindOf(plural), namespace, name);
  }

  list(plural: string, namespace = ''): JsonObject[] {
    return this.store.all(kindOf(plural), namespace);
  }

  /** Creates (with the UID given, if any) or replaces, status included. Returns the stored object. */
  put(plural: string, object: JsonObject): JsonObject {
    const kind = { ...kindOf(plural), statusSubresource: false };
    const metadata = metadataOf(object);
    const namespace = kind.namespaced ? textOf(metadata['namespace']) : '';
    const before = this.store.find(kind, namespace, textOf(metadata['name']));
    if (before !== undefined) return this.store.replace(kind, before, object);
    return this.store.create(kind, namespace, object, textOf(metadata['uid']) || undefined);
  }

  /** Replaces an object by what `change` makes of a copy. Throws a 404 when it is not there. */
  change(plural: string, namespace: string, name: string, change: (copy: JsonObject) => void): JsonObject {
    const kind = { ...kindOf(plural), statusSubresource: false };
    const before = this.store.read(kind, namespace, name);
    const copy = cloneJson(before);
    change(copy);
    return this.store.replace(kind, before, copy);
  }

  /** As DELETE does; throws a 404 when it is not there. */
  delete(plural: string, namespace: string, name: string, options: DeleteOptions = {}): JsonObject {
    return this.store.delete(kindOf(plural), namespace, name, options);
  }

  /** Tells `listener` of every change of a kind, with the object as it is then. Returns what ends that. */
  watch(plural: string, listener: (object: JsonObject) => void): () => void {
    const kind = kindOf(plural);
    return this.store.subscribe((change) => {
      if (change.kind.plural === kind.plural) listener(change.object);
    });
  }

  /**
   * Resolves with the object (undefined: not there) as soon as `accept` does. Rejects after `timeoutMs`
   * with its last state.
   */
  until(
    plural: string,
    namespace: string,
    name: string,
    accept: (object: JsonObject | undefined) => boolean,
    timeoutMs = 10_000,
  ): Promise<JsonObject | undefined> {
    return new Promise((resolve, reject) => {
      const look = () => {
        const object = this.get(plural, namespace, name);
        if (!accept(object)) return;
        clearTimeout(timer);
        unsubscribe();
        resolve(object);
      };
      const timer = setTimeout(() => {
        unsubscribe();
        const state = stringifyJson(this.get(plural, namespace, name) ?? null);
        reject(new Error(`${plural} ${namespace}/${name} is after ${timeoutMs} ms still ${state}`));
      }, timeoutMs);
      const unsubscribe = this.store.subscribe(look);
      look();
    });
  }
}

const serverFields = [
  'name',
  'namespace',
  'uid',
  'creationTimestamp',
  'generation',
  'resourceVersion',
  'deletionTimestamp',
  'deletionGracePeriodSeconds',
];

function keyOf(kind: Kind, namespace: string, name: string): string {
  return `${kind.group}/${kind.plural}/${namespace}/${name}`;
}

function typeOf(kind: Kind): JsonObject {
  return { apiVersion: groupVersion(kind), kind: kind.kind };
}

/** What the generation counts: everything but metadata, and status where it is written on its own. */
function desired(kind: Kind, object: JsonObject): JsonObject {
  const { metadata, status, ...rest } = object;
  return kind.statusSubresource || status === undefined ? rest : { ...rest, status };
}

export function metadataOf(object: JsonObject): JsonObject {
  const metadata = object['metadata'];
  return isObject(metadata) ? metadata : {};
}

function textOf(value: JsonValue | undefined): string {
  return typeof value === 'string' ? value : '';
}

function listOf(value: JsonValue | undefined): JsonValue[] {
  return Array.isArray(value) ? value : [];
}

function timestamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}

/** Equality of content; the order of keys does not matter. */
export function sameJson(a: JsonValue | undefined, b: JsonValue | undefined): boolean {
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, index) => sameJson(item, b[index]));
  }
  if (isObject(a) && isObject(b)) {
    const keys = Object.keys(a);
    return keys.length === Object.keys(b).length && keys.every((key) => key in b && sameJson(a[key], b[key]));
  }
  if (a === undefined || b === undefined) return a === b;
  return stringifyJson(a) === stringifyJson(b);
}
