import type { ServerResponse } from 'node:http';
import { stringifyJson } from '../../../agent/json/lossless.js';
import { groupVersion, type Kind } from './kinds.js';
import type { Selector } from './selectors.js';
import { type JsonObject, StatusError } from './status.js';
import { type Change, metadataOf, type ObjectStore } from './store.js';
import { table } from './table.js';

export interface WatchRequest {
  readonly kind: Kind;
  readonly namespace: string;
  readonly selector: Selector;
  /** Undefined or 0: begin with what is there. */
  readonly version: number | undefined;
  readonly bookmarks: boolean;
  readonly timeoutSeconds: number | undefined;
  readonly asTable: boolean;
}

/** A reader that lets so much pile up is cut off. */
const maxBuffered = 32 * 2 ** 20;

/** One watch: writes a line for every change that its selector sees. */
export class Watch {
  private readonly unsubscribe: () => void;
  private readonly timer: NodeJS.Timeout | undefined;
  /** The columns of a table are sent once. */
  private columnsSent = false;

  constructor(
    readonly request: WatchRequest,
    private readonly store: ObjectStore,
    private readonly response: ServerResponse,
    private readonly ended: (watch: Watch) => void,
  ) {
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.flushHeaders();
    this.unsubscribe = store.subscribe((change) => this.see(change));
    response.on('close', () => this.release());
    const { timeoutSeconds } = request;
    if (timeoutSeconds !== undefined && timeoutSeconds > 0) {
      this.timer = setTimeout(() => this.end(), timeoutSeconds * 1000);
    }
    this.begin();
  }

  /** Says up to which version everything was sent. */
  bookmark(): void {
    if (!this.request.bookmarks) return;
    const { kind } = this.request;
    this.write('BOOKMARK', {
      apiVersion: groupVersion(kind),
      kind: kind.kind,
      metadata: { resourceVersion: String(this.store.version), creationTimestamp: null },
    });
  }

  /** Any bytes, for tests of what a client does with them. */
  raw(text: string): void {
    this.response.write(text);
  }

  /** Ends the watch as its timeout does. */
  end(): void {
    this.bookmark();
    this.response.end();
  }

  /** Breaks the connection. */
  drop(): void {
    this.response.destroy();
  }

  error(error: StatusError): void {
    this.write('ERROR', error.toStatus());
    this.response.end();
  }

  private begin(): void {
    const { kind, namespace, version } = this.request;
    if (version === undefined || version === 0) {
      for (const object of this.store.all(kind, namespace)) {
        if (this.request.selector(object)) this.send('ADDED', object);
      }
      return;
    }
    try {
      for (const change of this.store.since(version)) this.see(change);
    } catch (error) {
      if (!(error instanceof StatusError)) throw error;
      this.error(error);
    }
  }

  /** An object that begins or ceases to match appears as added or deleted. */
  private see(change: Change): void {
    const { kind, namespace, selector } = this.request;
    if (change.kind.plural !== kind.plural || change.kind.group !== kind.group) return;
    if (namespace !== '' && metadataOf(change.object)['namespace'] !== namespace) return;
    const was = change.before !== undefined && selector(change.before);
    const is = change.type !== 'DELETED' && selector(change.object);
    if (is) this.send(was ? 'MODIFIED' : 'ADDED', change.object);
    else if (was) this.send('DELETED', change.object);
  }

  private send(type: string, object: JsonObject): void {
    const { kind, asTable } = this.request;
    if (!asTable) {
      this.write(type, object);
      return;
    }
    const rows = table(kind, [object], {});
    this.write(type, this.columnsSent ? { ...rows, columnDefinitions: [] } : rows);
    this.columnsSent = true;
  }

  private write(type: string, object: JsonObject): void {
    if (this.response.writableEnded || this.response.destroyed) return;
    if (this.response.writableLength > maxBuffered) this.drop();
    else this.response.write(`${stringifyJson({ type, object })}\n`);
  }

  private release(): void {
    clearTimeout(this.timer);
    this.unsubscribe();
    this.ended(this);
  }
}
