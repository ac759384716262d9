/**
 * Follows kubelet's pods directory by inotify. Each look at a pod first places the watches that are
 * possible, then reads the state, so nothing falls between; what an event cannot tell (overflow, a lost
 * event, no watch to be had) the slow re-check finds.
 */
import { Code } from '@connectrpc/connect';
import type { Call, InotifyEvent, Native } from '../../native/binding.js';
import { TokenBucket } from '../audit/limiter.js';
import { CallFailure, errnoOf, exhausted, toFailure } from '../failure.js';
import { isUuid } from '../policy/fields.js';
import type { Policy } from '../policy/policy.js';
import { IN_IGNORED, levels, socketsLevel, watched } from './levels.js';
import { type ObservedPod, type PodEvent, Subscription } from './subscription.js';

export interface WatcherOptions {
  readonly native: Native;
  readonly podsDir: number;
  readonly policy: Policy;
  /** Capabilities and deadline for each look. */
  readonly call: Call;
  readonly hasExited: (podUid: string) => boolean;
  /** Told when a pod's directory is gone. */
  readonly onGone: (podUid: string) => void;
  readonly recheckMs: number;
  /** Milliseconds, monotonic. */
  readonly now: () => number;
  readonly report: (message: string, error?: unknown) => void;
}

interface WatchedPod {
  readonly uid: string;
  /** Watch descriptor of each level. */
  readonly watches: (number | undefined)[];
  readonly budget: TokenBucket;
  readonly events: TokenBucket;
  published: ObservedPod | undefined;
  /** The chain of directories must be looked at, not only the state. */
  chain: boolean;
  queued: boolean;
  looking: boolean;
  timer: NodeJS.Timeout | undefined;
  /** Runs while a directory of the pod is not watched because it changed too often. */
  pause: NodeJS.Timeout | undefined;
}

/** Events of one pod: what a launcher does to its volumes must not take up the time of the others. */
const eventsBurst = 2000;
const eventsPerSecond = 200;
/** Time without a watch for a directory that changes more often; then it is looked at again. */
const pauseMs = 1000;
/** Looks at one pod: 20 at once, then 10 a second, so that a busy pod does not starve others. */
const looksBurst = 20;
const looksPerSecond = 10;
/** Looks at a time; leaves privileged threads free for calls. */
const maxLooking = 2;
/** Entries of the pods directory that are read. */
const maxEntries = 8192;
/** Errors of placing a watch that mean: there is no such directory that may be entered. */
const notThere = new Set(['ENOENT', 'ENOTDIR', 'ELOOP', 'EXDEV']);

export class PodWatcher {
  private readonly pods = new Map<string, WatchedPod>();
  private readonly owners = new Map<number, { readonly pod: WatchedPod; readonly level: number }>();
  private readonly subscriptions = new Set<Subscription>();
  private readonly line: WatchedPod[] = [];
  private readonly synced: Promise<void>;
  private markSynced: () => void = () => undefined;
  private inotify: { readonly fd: number; close(): void } | undefined;
  private rootWatch: number | undefined;
  private watching = 0;
  private looking = 0;
  private scanning = false;
  /** The pods directory was listed once. */
  private scanned = false;
  private rescan = false;
  private timer: NodeJS.Timeout | undefined;
  private closed = false;

  constructor(private readonly options: WatcherOptions) {
    this.synced = new Promise((resolve) => {
      this.markSynced = resolve;
    });
  }

  start(): void {
    this.inotify = this.options.native.createInotify((events) => this.onEvents(events));
    this.timer = setInterval(() => this.scan(), this.options.recheckMs);
    this.timer.unref();
    this.scan();
  }

  close(): void {
    this.closed = true;
    clearInterval(this.timer);
    for (const pod of this.pods.values()) clearTimers(pod);
    const stops = { code: Code.Unavailable, operation: 'watch pods', message: 'the helper stops' };
    for (const subscription of this.subscriptions) subscription.end(new CallFailure(stops));
    this.inotify?.close();
  }

  /** Launcher pods as they were last seen. */
  get known(): ObservedPod[] {
    return [...this.pods.values()].flatMap(({ published }) => published ?? []);
  }

  /** Watch streams that are open. */
  get open(): number {
    return this.watching;
  }

  /** The pod's launcher has exited: part of its state. */
  touch(podUid: string): void {
    const pod = this.pods.get(podUid);
    if (pod !== undefined) this.enqueue(pod, false);
  }

  /** Every known pod, `synced`, then changes. Throws RESOURCE_EXHAUSTED when the reader is too slow. */
  async *watch(signal: AbortSignal): AsyncGenerator<PodEvent> {
    if (this.watching >= this.options.policy.maxWatches) {
      throw exhausted('watch pods', `${this.watching} watches are open`);
    }
    const subscription = new Subscription(this.options.policy.maxPendingEvents);
    this.watching += 1;
    try {
      await Promise.race([this.synced, aborted(signal)]);
      // In one step with what is known: each later change is in one of the two.
      this.subscriptions.add(subscription);
      for (const pod of this.known) yield { kind: 'pod', pod };
      yield { kind: 'synced' };
      yield* subscription.changes(signal);
    } finally {
      this.subscriptions.delete(subscription);
      this.watching -= 1;
    }
  }

  private onEvents(events: readonly InotifyEvent[]): void {
    for (const { wd, mask, name } of events) {
      if (wd === -1) {
        this.options.report('inotify queue overflow, looking at every pod again');
        this.scan();
        continue;
      }
      if (wd === this.rootWatch) {
        const pod = this.pods.get(name);
        if (pod !== undefined) this.enqueue(pod, true);
        else if (isUuid(name)) this.add(name);
        continue;
      }
      const owner = this.owners.get(wd);
      if (owner === undefined) continue;
      const { pod, level } = owner;
      if ((mask & IN_IGNORED) !== 0) {
        this.owners.delete(wd);
        if (pod.watches[level] === wd) pod.watches[level] = undefined;
      }
      if (!pod.events.take()) {
        this.pauseWatch(pod, level);
        continue;
      }
      const { concerns, branches } = levels[level] ?? { concerns: () => false, branches: false };
      // Without a name the event is about the directory itself.
      if (name === '') this.enqueue(pod, true);
      else if (concerns(name)) this.enqueue(pod, branches);
    }
  }

  private pauseWatch(pod: WatchedPod, level: number): void {
    this.own(pod, level, undefined);
    pod.pause ??= setTimeout(() => {
      pod.pause = undefined;
      this.enqueue(pod, true);
    }, pauseMs).unref();
  }

  /** Lists the pods directory and looks at every pod, with one scan at a time. */
  private scan(): void {
    this.rescan = true;
    if (this.scanning) return;
    this.scanning = true;
    void this.scanAll().finally(() => {
      this.scanning = false;
    });
  }

  private async scanAll(): Promise<void> {
    const { native, podsDir, call } = this.options;
    while (this.rescan && !this.closed) {
      this.rescan = false;
      try {
        this.rootWatch = await native.watchDirectory(call, this.inotify?.fd ?? -1, podsDir, [], watched);
        const names = await native.listDirectory(call, podsDir, [], maxEntries);
        for (const pod of this.pods.values()) this.enqueue(pod, true);
        for (const name of names) if (isUuid(name)) this.add(name);
        this.scanned = true;
        if (this.pods.size === 0) this.markSynced();
      } catch (error) {
        this.options.report('pods directory not read, next attempt at the re-check', error);
      }
    }
  }

  private add(uid: string): void {
    if (this.pods.has(uid) || this.closed) return;
    if (this.pods.size >= this.options.policy.maxPods) {
      this.options.report(`pod ${uid} is not watched: there are ${this.pods.size} already`);
      return;
    }
    const pod: WatchedPod = {
      uid,
      watches: levels.map(() => undefined),
      budget: new TokenBucket(looksBurst, looksPerSecond, this.options.now),
      events: new TokenBucket(eventsBurst, eventsPerSecond, this.options.now),
      published: undefined,
      chain: true,
      queued: false,
      looking: false,
      timer: undefined,
      pause: undefined,
    };
    this.pods.set(uid, pod);
    this.enqueue(pod, true);
  }

  private enqueue(pod: WatchedPod, chain: boolean): void {
    pod.chain ||= chain;
    if (pod.queued || pod.timer !== undefined || this.closed) return;
    const wait = pod.budget.wait();
    if (wait > 0) {
      pod.timer = setTimeout(() => {
        pod.timer = undefined;
        this.enqueue(pod, false);
      }, wait);
      pod.timer.unref();
      return;
    }
    pod.budget.take();
    pod.queued = true;
    this.line.push(pod);
    this.drain();
  }

  private drain(): void {
    while (this.looking < maxLooking && !this.closed) {
      const index = this.line.findIndex((pod) => !pod.looking);
      const [pod] = index < 0 ? [] : this.line.splice(index, 1);
      if (pod === undefined) return;
      pod.queued = false;
      pod.looking = true;
      this.looking += 1;
      void this.look(pod).finally(() => {
        pod.looking = false;
        this.looking -= 1;
        this.drain();
        if (this.scanned && this.looking === 0 && this.line.length === 0) this.markSynced();
      });
    }
  }

  private async look(pod: WatchedPod): Promise<void> {
    const { native, podsDir, call } = this.options;
    const chain = pod.chain;
    pod.chain = false;
    try {
      if (chain && !(await this.placeWatches(pod))) {
        this.remove(pod);
        return;
      }
      // Not (yet) a launcher pod: nothing to read, its few watches tell when that changes.
      if (pod.watches[socketsLevel] === undefined && pod.published === undefined) return;
      const state = await native.podState(call, podsDir, pod.uid);
      this.publish(pod, { ...state, podUid: pod.uid, launcherExited: this.options.hasExited(pod.uid) });
    } catch (error) {
      pod.chain ||= chain;
      this.options.report(`pod ${pod.uid} not read, next attempt at the re-check`, error);
    }
  }

  /** False when the pod's directory is gone. */
  private async placeWatches(pod: WatchedPod): Promise<boolean> {
    const { native, podsDir, call } = this.options;
    for (const [level, { components }] of levels.entries()) {
      try {
        const path = [pod.uid, ...components];
        this.own(
          pod,
          level,
          await native.watchDirectory(call, this.inotify?.fd ?? -1, podsDir, path, watched),
        );
      } catch (error) {
        if (!notThere.has(errnoOf(error)) && !toFailure(error).refused) throw error;
        this.own(pod, level, undefined);
        if (level === 0) return false;
      }
    }
    return true;
  }

  private own(pod: WatchedPod, level: number, wd: number | undefined): void {
    const previous = pod.watches[level];
    if (previous === wd) return;
    if (previous !== undefined && this.owners.delete(previous)) {
      this.options.native.removeWatch(this.inotify?.fd ?? -1, previous);
    }
    pod.watches[level] = wd;
    if (wd !== undefined) this.owners.set(wd, { pod, level });
  }

  private publish(pod: WatchedPod, state: ObservedPod): void {
    if (pod.published === undefined && !state.directory) return;
    if (JSON.stringify(pod.published) === JSON.stringify(state)) return;
    pod.published = state;
    this.send(pod.uid, { kind: 'pod', pod: state });
  }

  private remove(pod: WatchedPod): void {
    for (const level of levels.keys()) this.own(pod, level, undefined);
    clearTimers(pod);
    if (this.pods.get(pod.uid) !== pod) return;
    this.pods.delete(pod.uid);
    this.options.onGone(pod.uid);
    if (pod.published !== undefined) this.send(pod.uid, { kind: 'gone', podUid: pod.uid });
  }

  private send(podUid: string, event: PodEvent): void {
    for (const subscription of this.subscriptions) subscription.push(podUid, event);
  }
}

function clearTimers(pod: WatchedPod): void {
  clearTimeout(pod.timer);
  clearTimeout(pod.pause);
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
