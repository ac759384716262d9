/**
 * Launchers that the helper knows by descriptor. Every operation on a pod goes through here: one at a
 * time for each pod, on a launcher that is pinned and still the pod's, for the VMI that the pod was
 * first named with.
 */

import type { Launcher, ListeningSocket, Native } from '../../native/binding.js';
import type { Declared } from '../declarations.js';
import { errnoOf, exhausted, refusal } from '../failure.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type { Policy } from '../policy/policy.js';
import { Pin } from './pin.js';
import { KeyedQueue } from './queue.js';

/** Inode of the notify socket that the helper made in a pod. */
export type NotifySocket = Pick<ListeningSocket, 'dev' | 'ino'>;

interface Entry {
  pin: Pin | undefined;
  notify: NotifySocket | undefined;
}

export interface RegistryOptions {
  readonly native: Native;
  readonly podsDir: number;
  readonly policy: Policy;
  /** Declaration of PodService.Identify: pinning happens under it, whichever method needs the pin. */
  readonly identify: Declared;
  /** Told when a pinned launcher has exited. */
  readonly onExit: (podUid: string) => void;
}

/** Failures of pinning that mean: nobody listens there (any more). */
const gone = new Set(['ENOENT', 'ECONNREFUSED', 'ESRCH']);

export class PodRegistry {
  private readonly entries = new Map<string, Entry>();
  private readonly queue: KeyedQueue;

  constructor(private readonly options: RegistryOptions) {
    this.queue = new KeyedQueue(options.policy.maxWaitingPerPod);
  }

  /** Launchers pinned now. */
  get pinned(): number {
    let count = 0;
    for (const { pin } of this.entries.values()) if (pin?.isUsable) count += 1;
    return count;
  }

  /** True when a pinned launcher of the pod has exited and no other one was pinned since. */
  hasExited(podUid: string): boolean {
    const pin = this.entries.get(podUid)?.pin;
    return pin !== undefined && !pin.isAlive;
  }

  /** Runs `operation` on the pod's launcher, which is pinned now if it was not and checked in any case. */
  withLauncher<T>(
    invocation: Invocation,
    pod: PodRef,
    operation: (launcher: Launcher, pinnedNow: boolean) => Promise<T>,
  ): Promise<T> {
    return this.serially(pod, async () => {
      const { pin, now } = await this.obtain(invocation, pod);
      return pin.use((launcher) => operation(launcher, now));
    });
  }

  /** As {@link withLauncher}, but with null when nobody listens on launcher-sock any more. */
  withLauncherIfAny<T>(
    invocation: Invocation,
    pod: PodRef,
    operation: (launcher: Launcher | null) => Promise<T>,
  ): Promise<T> {
    return this.serially(pod, async () => {
      let pin: Pin;
      try {
        ({ pin } = await this.obtain(invocation, pod));
      } catch (error) {
        if (!gone.has(errnoOf(error))) throw error;
        return operation(null);
      }
      return pin.use(operation);
    });
  }

  /** Runs `operation` in the pod's turn without a launcher. */
  withPod<T>(pod: PodRef, operation: () => Promise<T>): Promise<T> {
    return this.serially(pod, operation);
  }

  notifySocket(podUid: string): NotifySocket | undefined {
    return this.entries.get(podUid)?.notify;
  }

  setNotifySocket(podUid: string, socket: NotifySocket | undefined): void {
    const entry = this.entries.get(podUid);
    if (entry !== undefined) entry.notify = socket;
  }

  /**
   * Lets go of the pod. While its launcher lives the binding to the VMI stays, or an agent could name
   * the pod for another VMI by releasing it in between. True when something was held.
   */
  release(podUid: string): boolean {
    const entry = this.entries.get(podUid);
    if (entry === undefined) return false;
    const held = entry.pin?.isUsable === true || entry.notify !== undefined;
    entry.notify = undefined;
    if (entry.pin?.isAlive) entry.pin.release();
    else this.entries.delete(podUid);
    return held;
  }

  /** The pod's directory is gone. A launcher that is still alive stays bound. */
  forget(podUid: string): void {
    const entry = this.entries.get(podUid);
    if (entry !== undefined && !entry.pin?.isAlive) this.entries.delete(podUid);
  }

  close(): void {
    for (const { pin } of this.entries.values()) pin?.abandon();
    this.entries.clear();
  }

  private serially<T>(pod: PodRef, task: () => Promise<T>): Promise<T> {
    return this.queue.run(pod.podUid, async () => {
      const pin = this.entries.get(pod.podUid)?.pin;
      if (pin?.isAlive && pin.vmiUid !== pod.vmiUid) {
        throw refusal('check binding', `pod ${pod.podUid} runs another VMI`, 'pod.vmi_uid');
      }
      return task();
    });
  }

  private async obtain(invocation: Invocation, pod: PodRef): Promise<{ pin: Pin; now: boolean }> {
    const { native, identify } = this.options;
    const pin = this.entries.get(pod.podUid)?.pin;
    if (pin?.isUsable) {
      const call = invocation.within(identify.caps, identify.deadlineMs);
      try {
        await pin.use((launcher) => native.checkLauncher(call, launcher, pod.podUid));
        return { pin, now: false };
      } catch (error) {
        if (errnoOf(error) !== 'ESRCH') throw error;
        // It has exited and its exit notice is still on the way.
        pin.markExited();
      }
    }
    return { pin: await this.pinNow(invocation, pod), now: true };
  }

  private async pinNow(invocation: Invocation, pod: PodRef): Promise<Pin> {
    const { native, podsDir, policy, identify } = this.options;
    this.makeRoom(pod.podUid);
    const call = invocation.within(identify.caps, identify.deadlineMs);
    const launcher = await native.pinLauncher(call, podsDir, pod.podUid);
    if (launcher.uid !== 0 && launcher.uid !== policy.qemuUid) {
      for (const fd of [launcher.pidfd, launcher.mntns, launcher.netns]) native.close(fd);
      throw refusal('check launcher', `launcher of pod ${pod.podUid} runs as uid ${launcher.uid}`);
    }
    const pin = new Pin(native, launcher, pod.vmiUid, () => this.options.onExit(pod.podUid));
    const entry = this.entries.get(pod.podUid);
    entry?.pin?.abandon();
    this.entries.set(pod.podUid, { pin, notify: entry?.notify });
    return pin;
  }

  /** Keeps the number of pods bounded: what has exited makes room. */
  private makeRoom(podUid: string): void {
    const { maxPods } = this.options.policy;
    if (this.entries.has(podUid) || this.entries.size < maxPods) return;
    for (const [uid, { pin }] of this.entries) {
      if (pin?.isAlive) continue;
      this.entries.delete(uid);
      return;
    }
    throw exhausted('pin launcher', `${maxPods} launcher pods are pinned`);
  }
}
