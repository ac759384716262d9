/** The REST verbs on the store. */
import type { IncomingHttpHeaders } from 'node:http';
import type { JsonValue } from '../../../agent/json/lossless.js';
import { findKind, groupVersion, type Kind } from './kinds.js';
import { applyPatch } from './patch.js';
import { parseSelector } from './selectors.js';
import { badRequest, expired, isObject, type JsonObject, pathNotFound } from './status.js';
import { type DeleteOptions, metadataOf, type ObjectStore } from './store.js';
import { table, wantsTable } from './table.js';
import type { WatchRequest } from './watch.js';

/** A parsed request for objects. */
export interface Target {
  readonly kind: Kind;
  readonly namespace: string;
  /** Empty: the collection. */
  readonly name: string;
  readonly subresource: string;
}

export interface Answer {
  readonly code: number;
  readonly body: JsonValue;
}

/** Undefined when the path does not name objects of a known kind. */
export function parseTarget(path: string): Target | undefined {
  const parts = path.split('/').slice(1).map(decodeURIComponent);
  const root = parts.shift();
  if (root !== 'api' && root !== 'apis') return undefined;
  const group = root === 'api' ? '' : (parts.shift() ?? '');
  const version = parts.shift() ?? '';
  let namespace = '';
  if (parts[0] === 'namespaces' && parts.length > 2) {
    parts.shift();
    namespace = parts.shift() ?? '';
  }
  const [plural = '', name = '', subresource = '', ...rest] = parts;
  const kind = findKind(group, version, plural);
  if (kind === undefined || rest.length > 0) return undefined;
  if (subresource !== '' && !(subresource === 'status' && kind.statusSubresource)) return undefined;
  if (name !== '' && kind.namespaced !== (namespace !== '')) return undefined;
  return { kind, namespace, name, subresource };
}

/** The verb as audit logs name it. */
export function verbOf(method: string, target: Target, query: URLSearchParams): string {
  const isWatch = /^(1|true)$/.test(query.get('watch') ?? '');
  const collection = target.name === '';
  switch (method) {
    case 'GET':
      return isWatch ? 'watch' : collection ? 'list' : 'get';
    case 'POST':
      return 'create';
    case 'PUT':
      return 'update';
    case 'PATCH':
      return 'patch';
    case 'DELETE':
      return collection ? 'deletecollection' : 'delete';
    default:
      return method.toLowerCase();
  }
}

interface Snapshot {
  readonly version: number;
  readonly objects: readonly JsonObject[];
}
const maxSnapshots = 64;

export class Requests {
  /** Lists that somebody is paging through. */
  private readonly snapshots = new Map<string, Snapshot>();
  private lastSnapshot = 0;

  constructor(private readonly store: ObjectStore) {}

  /** Page tokens given out so far are answered with 410. */
  expireTokens(): void {
    this.snapshots.clear();
  }

  handle(
    verb: string,
    target: Target,
    query: URLSearchParams,
    headers: IncomingHttpHeaders,
    body: JsonValue,
  ): Answer {
    const { kind, namespace, name, subresource } = target;
    const asTable = wantsTable(headers.accept);
    switch (verb) {
      case 'get': {
        const object = this.store.read(kind, namespace, name);
        return ok(asTable ? table(kind, [object], {}) : object);
      }
      case 'list':
        return ok(this.list(target, query, asTable));
      case 'create':
        if (name !== '') throw pathNotFound();
        this.checkBody(target, body);
        return { code: 201, body: this.store.create(kind, namespace, body) };
      case 'update':
        this.checkBody(target, body);
        return ok(this.store.update(kind, namespace, name, body, subresource));
      case 'patch': {
        const before = this.store.read(kind, namespace, name);
        const type = (headers['content-type'] ?? '').split(';')[0] ?? '';
        const after = applyPatch(kind, type, before, body);
        return ok(this.store.update(kind, namespace, name, after, subresource));
      }
      case 'delete':
        return ok(this.store.delete(kind, namespace, name, deleteOptions(query, body)));
      case 'deletecollection': {
        const selector = parseSelector(query.get('labelSelector'), query.get('fieldSelector'));
        for (const object of this.store.all(kind, namespace).filter(selector)) {
          const metadata = metadataOf(object);
          const where = String(metadata['namespace'] ?? '');
          this.store.delete(kind, where, String(metadata['name']), deleteOptions(query, body));
        }
        return ok({ kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Success' });
      }
      default:
        throw badRequest(`verb ${verb} is not supported`);
    }
  }

  private checkBody(target: Target, body: JsonValue): asserts body is JsonObject {
    if (!isObject(body)) throw badRequest('the body is not an object');
    const { kind } = target;
    const sent = body['kind'];
    if ((kind.custom || sent !== undefined) && sent !== kind.kind) {
      throw badRequest(`the kind of the object (${String(sent)}) is not ${kind.kind}`);
    }
    const version = body['apiVersion'];
    if ((kind.custom || version !== undefined) && version !== groupVersion(kind)) {
      throw badRequest(`the apiVersion of the object (${String(version)}) is not ${groupVersion(kind)}`);
    }
    const namespace = metadataOf(body)['namespace'];
    if (namespace !== undefined && kind.namespaced && namespace !== target.namespace) {
      throw badRequest(
        'the namespace of the provided object does not match the namespace sent on the request',
      );
    }
  }

  private list(target: Target, query: URLSearchParams, asTable: boolean): JsonObject {
    const { kind } = target;
    const limit = Number(query.get('limit') ?? 0);
    const token = query.get('continue') ?? '';
    const { version, objects } = token === '' ? this.select(target, query) : this.resume(token);
    const page = limit > 0 ? objects.slice(0, limit) : objects;
    const rest = objects.slice(page.length);
    const metadata: JsonObject = { resourceVersion: String(version) };
    if (rest.length > 0) {
      metadata['continue'] = this.keep({ version, objects: rest });
      metadata['remainingItemCount'] = rest.length;
    }
    if (asTable) return table(kind, page, metadata);
    return {
      kind: `${kind.kind}List`,
      apiVersion: groupVersion(kind),
      metadata,
      items: [...page],
    };
  }

  private select({ kind, namespace }: Target, query: URLSearchParams): Snapshot {
    const selector = parseSelector(query.get('labelSelector'), query.get('fieldSelector'));
    return { version: this.store.version, objects: this.store.all(kind, namespace).filter(selector) };
  }

  private resume(token: string): Snapshot {
    const snapshot = this.snapshots.get(token);
    if (snapshot === undefined) {
      throw expired('The provided continue parameter is too old to display a consistent list result.');
    }
    return snapshot;
  }

  private keep(snapshot: Snapshot): string {
    const token = Buffer.from(`page-${++this.lastSnapshot}`).toString('base64url');
    this.snapshots.set(token, snapshot);
    const [oldest] = this.snapshots.keys();
    if (this.snapshots.size > maxSnapshots && oldest !== undefined) this.snapshots.delete(oldest);
    return token;
  }
}

/** The watch that a request asks for. A watch of one object is a watch of the collection by its name. */
export function watchRequest(
  target: Target,
  query: URLSearchParams,
  accept: string | undefined,
): WatchRequest {
  const { kind, namespace, name } = target;
  const fields = name === '' ? query.get('fieldSelector') : `metadata.name=${name}`;
  const version = query.get('resourceVersion');
  const timeout = query.get('timeoutSeconds');
  if (version !== null && !/^\d*$/.test(version))
    throw badRequest(`Invalid value: ${version}: resourceVersion`);
  return {
    kind,
    namespace,
    selector: parseSelector(query.get('labelSelector'), fields),
    version: version === null || version === '' ? undefined : Number(version),
    bookmarks: /^(1|true)$/.test(query.get('allowWatchBookmarks') ?? ''),
    timeoutSeconds: timeout === null ? undefined : Number(timeout),
    asTable: wantsTable(accept),
  };
}

function ok(body: JsonValue): Answer {
  return { code: 200, body };
}

function deleteOptions(query: URLSearchParams, body: JsonValue): DeleteOptions {
  const sent = isObject(body) ? body : {};
  const preconditions = isObject(sent['preconditions']) ? sent['preconditions'] : {};
  const grace = query.get('gracePeriodSeconds') ?? sent['gracePeriodSeconds'];
  const { uid, resourceVersion } = preconditions;
  return {
    ...(grace === undefined || grace === null ? {} : { gracePeriodSeconds: Number(grace) }),
    ...(typeof uid === 'string' ? { uid } : {}),
    ...(typeof resourceVersion === 'string' ? { resourceVersion } : {}),
  };
}
