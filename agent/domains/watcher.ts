import type { Domain } from '../api/domain.js';
import { type VmiRef, vmiKey } from '../api/vmi.js';
import { HelperError } from '../helper/errors.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { LauncherPods } from '../helper/launcher-pods.js';
import { sleep, type Timers, within } from '../kube/timers.js';
import type { LauncherClients } from '../launcher/clients.js';
import { podUidOfSocket } from '../launcher/sockets.js';
import type { Logger } from '../log/log.js';
import type { DomainEventType, NotifyServer, NotifySink } from '../notify/server.js';
import { forEachLimited } from './concurrency.js';
import { type GhostRecord, type GhostRecordStore, recordRef } from './ghost-records.js';
import { deadDomain, missingDomain, unknownDomain } from './minimal-domain.js';
import { type DeadSince, judgeStaleness, staleCheckSeconds } from './staleness.js';
import type { DomainStore } from './store.js';

/** Launchers asked at a time. */
const concurrency = 16;
/** A launcher that has not answered by then is Unknown; nobody waits longer for it. Milliseconds. */
const answerTimeoutMs = 5_000;
/** Delays of the looks at an Unknown launcher, the last one for ever. Milliseconds. */
const unknownRetryMs = [1_000, 2_000, 4_000, 8_000, 10_000] as const;

export interface DomainWatcherOptions {
  readonly helper: Pick<HelperClient, 'markUnresponsive'>;
  readonly pods: Pick<LauncherPods, 'get' | 'whenSynced'>;
  readonly clients: Pick<LauncherClients, 'domainOf' | 'livenessOf'>;
  readonly notify: Pick<NotifyServer, 'ensure'>;
  readonly records: GhostRecordStore;
  readonly store: DomainStore;
  readonly timers: Timers;
  readonly log: Logger;
  readonly resyncSeconds: number;
  readonly watchdogSeconds: number;
}

type Answer = { readonly domain: Domain | undefined } | { readonly error: unknown };

interface UnknownLauncher {
  readonly record: GhostRecord;
  attempts: number;
  dueAt: number;
  asking: boolean;
}

/**
 * Keeps the domain store: lists the launchers of all ghost records at the start, takes their events, looks
 * at them again every so often, and reports those whose launcher is dead (KubeVirt
 * pkg/virt-handler/cache/domain-watcher.go). No launcher delays another one.
 */
export class DomainWatcher implements NotifySink {
  private readonly deadSince = new Map<string, DeadSince>();
  private readonly unknown = new Map<string, UnknownLauncher>();
  private cancelLookAtUnknown = () => {};
  private running = false;
  private stopped = false;

  constructor(private readonly options: DomainWatcherOptions) {}

  /**
   * Makes the notify listeners of all known launchers, lists their domains and looks once more for what
   * changed in between. When it resolves, after 10 s at most once the pods are known, the store is complete;
   * launchers that do not answer are Unknown.
   */
  async start(signal: AbortSignal): Promise<void> {
    await this.options.pods.whenSynced(signal);
    // What is not made by then goes on being made.
    const listening = within(this.options.timers, answerTimeoutMs, this.listenEverywhere(), () => undefined);
    await Promise.all([listening, this.list()]);
    // Events that a launcher could not send before its listener existed are in the domain it shows now.
    await within(this.options.timers, answerTimeoutMs, this.resync(), () => undefined);
  }

  /** Looks regularly until the signal aborts, after which nothing is delivered. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    signal.addEventListener('abort', () => {
      this.stopped = true;
      this.cancelLookAtUnknown();
    });
    this.running = true;
    this.lookAtUnknownInTime();
    await Promise.all([
      this.every(this.options.resyncSeconds * 1_000, signal, () => this.resync()),
      this.every(staleCheckSeconds(this.options.watchdogSeconds) * 1_000, signal, async () => {
        await this.checkStale();
        await this.listenEverywhere();
      }),
    ]);
  }

  domainEvent(type: DomainEventType, vmi: VmiRef, domain: Domain): void {
    if (this.stopped) return;
    this.unknown.delete(vmiKey(vmi));
    if (type === 'DELETED') this.options.store.remove(vmiKey(vmi));
    else this.put(vmi, domain);
  }

  /** One look at every launcher that could be dead. */
  async checkStale(): Promise<void> {
    const records = this.options.records.list();
    const uids = new Set(records.map(({ uid }) => uid));
    for (const uid of this.deadSince.keys()) if (!uids.has(uid)) this.deadSince.delete(uid);
    await forEachLimited(records, concurrency, (record) => this.checkStaleRecord(record));
  }

  /** Asks every launcher; one that does not answer keeps what is known of it. */
  async resync(): Promise<void> {
    await forEachLimited(this.options.records.list(), concurrency, async (record) => {
      const version = this.versionOf(record);
      const answer = await this.ask(record);
      if (!('error' in answer) && answer.domain !== undefined) this.accept(record, version, answer.domain);
    });
  }

  /** Asks the Unknown launchers whose time has come. One that is still being asked is left alone. */
  async askUnknown(): Promise<void> {
    const all = [...this.unknown.values()];
    const free = concurrency - all.filter(({ asking }) => asking).length;
    const due = all.filter(({ asking, dueAt }) => !asking && dueAt <= this.options.timers.now());
    const asked = due.slice(0, Math.max(free, 0)).map((launcher) => this.askUnknownLauncher(launcher));
    this.lookAtUnknownInTime();
    await Promise.all(asked);
  }

  /** Wakes up for the Unknown launcher that is due next, unless all that may be asked at a time are being asked. */
  private lookAtUnknownInTime(): void {
    if (!this.running || this.stopped) return;
    this.cancelLookAtUnknown();
    const all = [...this.unknown.values()];
    const waiting = all.filter(({ asking }) => !asking);
    if (waiting.length === 0 || all.length - waiting.length >= concurrency) return;
    const next = Math.min(...waiting.map(({ dueAt }) => dueAt)) - this.options.timers.now();
    this.cancelLookAtUnknown = this.options.timers.after(Math.max(next, 0), () => void this.askUnknown());
  }

  private async askUnknownLauncher(launcher: UnknownLauncher): Promise<void> {
    const { record } = launcher;
    const key = vmiKey(record);
    const version = this.versionOf(record);
    launcher.asking = true;
    const answer = await this.ask(record);
    launcher.asking = false;
    if (this.unknown.get(key) === launcher) this.settleUnknown(launcher, answer, version);
    this.lookAtUnknownInTime();
  }

  private settleUnknown(launcher: UnknownLauncher, answer: Answer, version: number): void {
    const { record } = launcher;
    const key = vmiKey(record);
    if (this.options.records.get(key)?.uid !== record.uid) {
      this.unknown.delete(key);
    } else if ('error' in answer) {
      launcher.attempts++;
      launcher.dueAt = this.options.timers.now() + retryDelay(launcher.attempts);
    } else {
      this.unknown.delete(key);
      if (answer.domain !== undefined) this.accept(record, version, answer.domain);
      else if (this.versionOf(record) === version && !this.stopped) this.options.store.remove(key);
    }
  }

  private async list(): Promise<void> {
    const records = this.options.records.list();
    const open = new Map(records.map((record) => [record, this.versionOf(record)]));
    const settle = (record: GhostRecord, domain: Domain | undefined) => {
      const version = open.get(record);
      if (version === undefined || !open.delete(record) || domain === undefined) return;
      this.accept(record, version, domain);
    };
    const all = forEachLimited(records, concurrency, async (record) =>
      settle(record, await this.listRecord(record)),
    );
    await within(this.options.timers, answerTimeoutMs, all, () => undefined);
    // Whoever has not been heard by now is asked again soon, and nobody waits for it.
    for (const record of [...open.keys()]) settle(record, this.notAnswering(record));
  }

  private async listRecord(record: GhostRecord): Promise<Domain | undefined> {
    const podUid = podUidOfSocket(record.socketFile);
    const state = podUid === undefined ? undefined : this.options.pods.get(podUid);
    if (state === undefined || state.launcherSocket === 'absent') {
      return missingDomain(recordRef(record), this.options.timers.now());
    }
    const answer = await this.ask(record);
    return 'error' in answer ? this.notAnswering(record) : answer.domain;
  }

  private notAnswering(record: GhostRecord): Domain {
    const dueAt = this.options.timers.now() + retryDelay(0);
    this.unknown.set(vmiKey(record), { record, attempts: 0, dueAt, asking: false });
    this.lookAtUnknownInTime();
    return unknownDomain(recordRef(record));
  }

  /** Within the time that a launcher is given, whatever it does. */
  private async ask(record: GhostRecord): Promise<Answer> {
    const answer = this.options.clients.domainOf(record).then(
      (domain): Answer => ({ domain }),
      (error: unknown): Answer => ({ error }),
    );
    const first = await within(this.options.timers, answerTimeoutMs, answer, () => ({
      error: new Error('no answer in time'),
    }));
    if ('error' in first) this.log(record).debug(`launcher does not tell its domain: ${String(first.error)}`);
    return first;
  }

  private async checkStaleRecord(record: GhostRecord): Promise<void> {
    const { clients, timers, watchdogSeconds, store } = this.options;
    const liveness = await clients.livenessOf(record);
    const now = Math.floor(timers.now() / 1_000);
    const { deadSince, gone } = judgeStaleness(
      this.deadSince.get(record.uid),
      liveness,
      now,
      watchdogSeconds,
    );
    if (deadSince === undefined) this.deadSince.delete(record.uid);
    else this.deadSince.set(record.uid, deadSince);
    if (!gone || this.stopped) return;
    // The marker comes first: whoever hears of the dead domain probes the launcher and must see it.
    if (!(await this.mark(record)) || this.stopped) return;
    if (this.options.records.get(vmiKey(record))?.uid !== record.uid) return;
    this.unknown.delete(vmiKey(record));
    this.log(record).info(`launcher is dead since ${now - (deadSince ?? now)} s, its domain counts as gone`);
    store.upsert(deadDomain(recordRef(record), timers.now()));
  }

  /** False: the launcher must not be declared dead now. */
  private async mark(record: GhostRecord): Promise<boolean> {
    const podUid = podUidOfSocket(record.socketFile);
    const state = podUid === undefined ? undefined : this.options.pods.get(podUid);
    // Without a directory there is nothing to mark, and nothing that could answer.
    if (podUid === undefined || state === undefined || !state.directory) return true;
    try {
      await this.options.helper.markUnresponsive({ podUid, vmiUid: record.uid });
      return true;
    } catch (error) {
      if (error instanceof HelperError && ['ENOENT', 'ENOTDIR'].includes(error.errnoName)) return true;
      this.log(record).warning(`launcher pod ${podUid} was not marked unresponsive, looking again`, error);
      return false;
    }
  }

  /** Listeners for all launchers that can be there. One that fails is tried again at the next stale check. */
  private async listenEverywhere(): Promise<void> {
    await forEachLimited(this.options.records.list(), concurrency, async (record) => {
      const podUid = podUidOfSocket(record.socketFile);
      if (podUid === undefined || this.stopped) return;
      const state = this.options.pods.get(podUid);
      if (state?.launcherSocket !== 'present' || state.launcherExited || state.unresponsiveMarker) return;
      try {
        await this.options.notify.ensure({ podUid, vmi: recordRef(record) });
      } catch (error) {
        this.log(record).warning(`no notify socket in pod ${podUid}`, error);
      }
    });
  }

  /** An event that came while the launcher was asked is not older than the answer and stays. */
  private accept(record: GhostRecord, versionBefore: number, domain: Domain): void {
    if (this.stopped || this.versionOf(record) !== versionBefore) return;
    if (this.options.records.get(vmiKey(record))?.uid !== record.uid) return;
    if (domain.Status.Status !== 'Unknown') this.unknown.delete(vmiKey(record));
    this.put(recordRef(record), domain);
  }

  /** The connection tells whose domain it is, also while the launcher does not know yet. */
  private put(vmi: VmiRef, domain: Domain): void {
    const named = domain.ObjectMeta.uid !== '' || domain.Spec.Metadata.KubeVirt.UID !== '';
    if (!named) domain.Spec.Metadata.KubeVirt.UID = vmi.uid;
    this.options.store.put(vmiKey(vmi), domain);
  }

  private versionOf(record: GhostRecord): number {
    return this.options.store.versionOf(vmiKey(record));
  }

  private log(record: GhostRecord): Logger {
    return this.options.log.object(recordRef(record));
  }

  private async every(ms: number, signal: AbortSignal, look: () => Promise<void>): Promise<void> {
    while (!signal.aborted) {
      await sleep(this.options.timers, ms, signal).catch(() => undefined); // Aborted: the loop ends.
      if (signal.aborted) return;
      try {
        await look();
      } catch (error) {
        this.options.log.error('looking at the launchers failed, again at the next time', error);
      }
    }
  }
}

function retryDelay(attempts: number): number {
  return unknownRetryMs[Math.min(attempts, unknownRetryMs.length - 1)] ?? 10_000;
}
