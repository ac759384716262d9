/** An API server in memory: one kind of object that matters, watches, conflicts, and faults on demand. */
import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import type { Vmi } from '../../agent/api/vmi.js';
import { vmiKey } from '../../agent/api/vmi.js';
import type { JsonValue } from '../../agent/json/lossless.js';
import { ApiError, ApiUnavailable } from '../../agent/kube/api-error.js';
import type { Resource } from '../../agent/kube/resources.js';
import type { Query, RestClient } from '../../agent/kube/rest.js';

import type { ModelTime } from './time.js';

export type PutFault = 409 | 500 | 'lost answer';

interface Change {
  readonly version: number;
  readonly before: Vmi | undefined;
  readonly after: Vmi | undefined;
}

interface Watch {
  readonly stream: PassThrough;
  readonly selector: string | undefined;
}

export interface SentEvent {
  readonly object: string;
  readonly uid: string;
  readonly reason: string;
}

export class ModelApi implements Pick<RestClient, 'list' | 'watch' | 'update' | 'create' | 'patch'> {
  /** Faults of the next writes, one each. */
  readonly putFaults: PutFault[] = [];
  down = false;
  puts = 0;
  eventWrites = 0;
  readonly events: SentEvent[] = [];
  /** What no agent may ever do. */
  readonly violations: string[] = [];
  readonly #vmis = new Map<string, Vmi>();
  readonly #watches = new Set<Watch>();
  #changes: Change[] = [];
  #version = 100;
  #compacted = 0;
  #held: (() => void)[] | undefined;

  constructor(private readonly time: ModelTime) {}

  get(key: string): Vmi | undefined {
    return this.#vmis.get(key);
  }

  all(): Vmi[] {
    return [...this.#vmis.values()];
  }

  // What others do

  write(vmi: Vmi): void {
    const key = vmiKey(vmi.metadata);
    this.#change(this.#vmis.get(key), {
      ...vmi,
      metadata: { ...vmi.metadata, resourceVersion: String(this.#version + 1) },
    });
  }

  change(key: string, edit: (vmi: Vmi) => Vmi): void {
    const vmi = this.#vmis.get(key);
    if (vmi !== undefined) this.write(edit(vmi));
  }

  remove(key: string): void {
    const vmi = this.#vmis.get(key);
    if (vmi !== undefined) this.#change(vmi, undefined);
  }

  // Faults

  dropWatches(): void {
    for (const { stream } of this.#watches) stream.end();
    this.#watches.clear();
  }

  /** Versions before now are too old to be watched from. */
  compact(): void {
    this.#compacted = this.#version;
    this.#changes = [];
    this.dropWatches();
  }

  /** Watches bring nothing until they are released. */
  hold(): void {
    this.#held ??= [];
  }

  release(): void {
    const held = this.#held ?? [];
    this.#held = undefined;
    for (const deliver of held) deliver();
  }

  // What the agent calls

  async list(resource: Resource, _namespace: string, query: Query): Promise<JsonValue> {
    this.#check();
    const items =
      resource.plural === 'virtualmachineinstances'
        ? this.all().filter((vmi) => matches(vmi, query['labelSelector'] as string | undefined))
        : [];
    const list = { metadata: { resourceVersion: String(this.#version) }, items };
    return JSON.parse(JSON.stringify(list)) as JsonValue;
  }

  async watch(
    resource: Resource,
    _namespace: string,
    query: Query,
    signal: AbortSignal,
  ): Promise<IncomingMessage> {
    this.#check();
    const from = Number(query['resourceVersion']);
    if (from < this.#compacted) throw new ApiError(410, 'Expired', 'too old resource version', 'watch');
    const stream = new PassThrough();
    const cancel = this.time.after(Number(query['timeoutSeconds']) * 1000, () => stream.end());
    signal.addEventListener('abort', () => stream.destroy(signal.reason as Error));
    stream.once('close', cancel);
    if (resource.plural === 'virtualmachineinstances') {
      const watch = { stream, selector: query['labelSelector'] as string | undefined };
      for (const change of this.#changes) if (change.version > from) this.#deliver(watch, change);
      this.#watches.add(watch);
      stream.once('close', () => this.#watches.delete(watch));
    }
    return stream as unknown as IncomingMessage;
  }

  async update(_resource: Resource, namespace: string, name: string, body: JsonValue): Promise<JsonValue> {
    this.#check();
    this.puts++;
    const fault = this.putFaults.shift();
    if (fault === 500) throw new ApiError(500, 'InternalError', 'etcd is slow', 'PUT');
    const key = `${namespace}/${name}`;
    const stored = this.#vmis.get(key);
    const sent = JSON.parse(JSON.stringify(body)) as Vmi;
    if (stored === undefined || stored.metadata.uid !== sent.metadata.uid) {
      throw new ApiError(stored === undefined ? 404 : 409, 'Conflict', `no such VMI ${key}`, 'PUT');
    }
    if (fault === 409 || stored.metadata.resourceVersion !== sent.metadata.resourceVersion) {
      throw new ApiError(409, 'Conflict', 'the object has been modified', 'PUT');
    }
    this.#checkWrite(stored, sent);
    this.write(sent);
    if (fault === 'lost answer') throw new ApiUnavailable('the connection broke off');
    return JSON.parse(JSON.stringify(this.#vmis.get(key))) as JsonValue;
  }

  async create(_resource: Resource, _namespace: string, body: JsonValue): Promise<JsonValue> {
    this.#check();
    this.eventWrites++;
    const { involvedObject, reason } = body as unknown as {
      involvedObject: { name: string; uid: string };
      reason: string;
    };
    this.events.push({ object: involvedObject.name, uid: involvedObject.uid, reason });
    return body;
  }

  async patch(...[, , , , body]: Parameters<RestClient['patch']>): Promise<JsonValue> {
    this.#check();
    this.eventWrites++;
    return body;
  }

  #check(): void {
    if (this.down) throw new ApiUnavailable('connect ECONNREFUSED');
  }

  #checkWrite(stored: Vmi, sent: Vmi): void {
    const key = vmiKey(stored.metadata);
    const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
    if (!same(stored.spec, sent.spec)) this.violations.push(`${key}: a PUT changed the spec`);
    if (!same(stored.metadata, sent.metadata)) this.violations.push(`${key}: a PUT changed the metadata`);
    if (same(stored.status, sent.status)) this.violations.push(`${key}: a PUT changed nothing`);
    const { phase } = stored.status;
    if (phase === 'Succeeded' || phase === 'Failed') this.violations.push(`${key}: a PUT of a final VMI`);
    if (phase === 'Running' && ['Scheduled', 'Scheduling', ''].includes(sent.status.phase ?? '')) {
      this.violations.push(`${key}: phase went back from Running to ${sent.status.phase}`);
    }
  }

  #change(before: Vmi | undefined, after: Vmi | undefined): void {
    const change = { version: ++this.#version, before, after };
    const key = vmiKey((after ?? before ?? ({} as Vmi)).metadata);
    if (after === undefined) this.#vmis.delete(key);
    else this.#vmis.set(key, after);
    this.#changes.push(change);
    for (const watch of this.#watches) this.#deliver(watch, change);
  }

  #deliver({ stream, selector }: Watch, { version, before, after }: Change): void {
    const was = before !== undefined && matches(before, selector);
    const is = after !== undefined && matches(after, selector);
    if (!was && !is) return;
    const type = is ? (was ? 'MODIFIED' : 'ADDED') : 'DELETED';
    const object = (is ? after : before) as Vmi;
    const metadata = { ...object.metadata, resourceVersion: String(version) };
    const line = `${JSON.stringify({ type, object: { ...object, metadata } })}\n`;
    const write = () => void (stream.writable && stream.write(line));
    if (this.#held === undefined) write();
    else this.#held.push(write);
  }
}

/** `kubevirt.io/nodeName in (node01)` and nothing else. */
function matches(vmi: Vmi, selector: string | undefined): boolean {
  const match = /^(\S+) in \((\S+)\)$/.exec(selector ?? '');
  return match?.[1] === undefined || vmi.metadata.labels?.[match[1]] === match[2];
}
