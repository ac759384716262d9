import type { Logger } from '../log/log.js';
import { deepFreeze, type KubeObject, objectKey } from './objects.js';
import { Reflector, type ReflectorOptions, type ReflectorSink } from './reflector.js';
import type { Timers } from './timers.js';

export interface InformerHandler<T> {
  add(object: T): void;
  update(before: T, after: T): void;
  /** Where the deletion was found by listing, `object` is the last state known, not the last state. */
  delete(object: T): void;
}

export interface InformerOptions<T extends KubeObject> extends ReflectorOptions<T> {
  /** Applied to every object before it is kept, for instance to keep less of it. */
  readonly transform?: (object: T) => T;
  /** When given, all objects are handed to the handlers again, as updates, this often. */
  readonly resyncMs?: number;
}

/** KubeVirt's resync period: 12 h, stretched by up to its own length. */
export function resyncPeriodMs(random: () => number): number {
  return 12 * 3_600_000 * (1 + random());
}

/**
 * Cache of the objects of one resource, kept current by a reflector. Handlers are called in the order of
 * the changes, after the cache holds them. Objects are frozen and shared.
 */
export class Informer<T extends KubeObject> {
  private readonly objects = new Map<string, T>();
  private readonly handlers: InformerHandler<T>[] = [];
  private readonly stopping = new AbortController();
  private readonly reflector: Reflector<T>;
  private readonly timers: Timers;
  private readonly logger: Logger;
  private running: Promise<void> | undefined;
  private cancelResync: () => void = () => undefined;
  private synced = false;
  private readonly syncWaiters: (() => void)[] = [];

  constructor(private readonly options: InformerOptions<T>) {
    this.timers = options.timers;
    this.logger = options.logger;
    const sink: ReflectorSink<T> = {
      replace: (objects) => this.replace(objects),
      upsert: (object) => this.upsert(object),
      remove: (object) => this.remove(object),
    };
    const { decode, transform } = options;
    this.reflector = new Reflector(
      {
        ...options,
        decode(value) {
          const object = decode(value);
          return deepFreeze(transform === undefined ? object : transform(object));
        },
      },
      sink,
    );
  }

  get(key: string): T | undefined {
    return this.objects.get(key);
  }

  list(): T[] {
    return [...this.objects.values()];
  }

  /** Resolves once the first list is in the cache and the handlers have seen it. */
  whenSynced(): Promise<void> {
    return this.synced ? Promise.resolve() : new Promise((resolve) => this.syncWaiters.push(resolve));
  }

  /** A handler added late is first told of everything in the cache. */
  addHandler(handler: InformerHandler<T>): void {
    this.handlers.push(handler);
    for (const object of this.objects.values()) this.tell(handler, (to) => to.add(object));
  }

  start(): void {
    if (this.running !== undefined) throw new Error('the informer was started already');
    this.running = this.reflector.run(this.stopping.signal);
    this.scheduleResync();
  }

  /** Resolves when no handler will be called any more. */
  async stop(): Promise<void> {
    this.stopping.abort(new Error('the informer was stopped'));
    this.cancelResync();
    await this.running;
  }

  private replace(objects: readonly T[]): void {
    const present = new Set(objects.map(objectKey));
    for (const [key, object] of this.objects) if (!present.has(key)) this.remove(object);
    for (const object of objects) this.upsert(object);
    this.synced = true;
    for (const resolve of this.syncWaiters.splice(0)) resolve();
  }

  private upsert(object: T): void {
    const key = objectKey(object);
    const before = this.objects.get(key);
    this.objects.set(key, object);
    if (before === undefined) this.tellAll((handler) => handler.add(object));
    else this.tellAll((handler) => handler.update(before, object));
  }

  private remove(object: T): void {
    if (this.objects.delete(objectKey(object))) this.tellAll((handler) => handler.delete(object));
  }

  private tellAll(call: (handler: InformerHandler<T>) => void): void {
    for (const handler of this.handlers) this.tell(handler, call);
  }

  /** A handler that throws must not keep the others, or the cache, from going on. */
  private tell(handler: InformerHandler<T>, call: (handler: InformerHandler<T>) => void): void {
    try {
      call(handler);
    } catch (error) {
      this.logger.error(`a handler of ${this.options.resource.plural} failed`, error);
    }
  }

  private scheduleResync(): void {
    const { resyncMs } = this.options;
    if (resyncMs === undefined) return;
    this.cancelResync = this.timers.after(resyncMs, () => {
      for (const object of this.objects.values()) this.tellAll((handler) => handler.update(object, object));
      this.scheduleResync();
    });
  }
}
