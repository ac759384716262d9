import { EventEmitter } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from '../log/log.js';
import type { HelperClient } from './helper-client.js';
import { type PodState, samePodState, toPodState } from './pod-state.js';

/** More launcher pods than a kubelet can run. */
const maxPods = 4096;
const backoffMs = { first: 100, max: 5_000 };
/** Stat calls at a time when states are checked against lost events. */
const recheckConcurrency = 4;

export interface LauncherPodsOptions {
  readonly helper: Pick<HelperClient, 'health' | 'statPod' | 'watchPods'>;
  readonly log: Logger;
  /** Time between two looks at every known pod, in case an event was lost. Milliseconds. */
  readonly recheckIntervalMs: number;
}

/**
 * The launcher pods of this host by pod UID, kept from the helper's watch. While the helper is down the last
 * known states stay; `synced` tells whether they were ever complete.
 *
 * Emits `change` with the pod's UID and its state, undefined when the pod is gone.
 */
export class LauncherPods extends EventEmitter<{
  change: [podUid: string, state: PodState | undefined];
  synced: [];
}> {
  private readonly states = new Map<string, PodState>();
  private complete = false;

  constructor(private readonly options: LauncherPodsOptions) {
    super();
    this.setMaxListeners(0);
  }

  get synced(): boolean {
    return this.complete;
  }

  get(podUid: string): PodState | undefined {
    return this.states.get(podUid);
  }

  podUids(): string[] {
    return [...this.states.keys()];
  }

  /** Resolves once the states were complete, rejects when the signal aborts. */
  async whenSynced(signal: AbortSignal): Promise<void> {
    if (this.complete) return;
    await new Promise<void>((resolve, reject) => {
      const finish = () => {
        this.off('synced', finish);
        signal.removeEventListener('abort', finish);
        if (this.complete) resolve();
        else reject(new Error('launcher pods are not known yet: the helper has not listed them'));
      };
      this.on('synced', finish);
      signal.addEventListener('abort', finish);
      if (signal.aborted) finish();
    });
  }

  /** Follows the helper until the signal aborts. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.follow(signal), this.recheckRegularly(signal)]);
  }

  private async follow(signal: AbortSignal): Promise<void> {
    let delay = backoffMs.first;
    while (!signal.aborted) {
      try {
        await this.options.helper.health();
        await this.watchOnce(signal, () => {
          delay = backoffMs.first;
        });
      } catch (error) {
        if (signal.aborted) return;
        this.options.log.warning(`watch of launcher pods ended, again in ${delay} ms`, error);
      }
      await sleep(delay, undefined, { signal }).catch(() => undefined);
      delay = Math.min(delay * 2, backoffMs.max);
    }
  }

  private async watchOnce(signal: AbortSignal, onSynced: () => void): Promise<void> {
    const listed = new Set<string>();
    let listing = true;
    for await (const event of this.options.helper.watchPods(signal)) {
      if (event.case === 'pod') {
        if (listing) listed.add(event.value.podUid);
        this.set(toPodState(event.value));
      } else if (event.case === 'gonePodUid') {
        this.remove(event.value);
      } else if (event.case === 'synced') {
        listing = false;
        for (const podUid of this.podUids()) if (!listed.has(podUid)) this.remove(podUid);
        listed.clear();
        this.complete = true;
        onSynced();
        this.emit('synced');
      }
    }
  }

  /** Looks at one pod now. Throws a HelperError. */
  async refresh(podUid: string): Promise<PodState | undefined> {
    const state = await this.options.helper.statPod(podUid);
    if (state === undefined || (!state.directory && state.launcherSocket === 'absent')) {
      if (!this.states.has(podUid)) return undefined;
      this.remove(podUid);
      return undefined;
    }
    this.set(state);
    return state;
  }

  private async recheckRegularly(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(this.options.recheckIntervalMs, undefined, { signal }).catch(() => undefined);
      if (signal.aborted) return;
      const waiting = this.podUids();
      const worker = async () => {
        for (let podUid = waiting.pop(); podUid !== undefined; podUid = waiting.pop()) {
          if (signal.aborted) return;
          await this.refresh(podUid);
        }
      };
      try {
        await Promise.all(Array.from({ length: recheckConcurrency }, worker));
      } catch (error) {
        // Whoever is down now is followed again by the watch; the next round looks anew.
        this.options.log.debug(`re-check of launcher pods ended early: ${String(error)}`);
      }
    }
  }

  private set(state: PodState): void {
    const before = this.states.get(state.podUid);
    if (before !== undefined && samePodState(before, state)) return;
    if (before === undefined && this.states.size >= maxPods) {
      this.options.log.error(`launcher pod ${state.podUid} is ignored: ${maxPods} are known already`);
      return;
    }
    this.states.set(state.podUid, state);
    this.emit('change', state.podUid, state);
  }

  private remove(podUid: string): void {
    if (this.states.delete(podUid)) this.emit('change', podUid, undefined);
  }
}
