/**
 * Launchers that the helper knows by descriptor. Every operation on a pod goes through here: one at a
 * time for each pod, on a launcher that is pinned and still the pod's, for the VMI that the pod was
 * first named with.
 */

import type { PodListener } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import type {
  Call,
  Launcher,
  ListeningSocket,
  Native,
  NetworkPlan,
  VolumeEntry,
} from '../../native/binding.js';
import type { Declared } from '../declarations.js';
import { errnoOf, exhausted, refusal, toFailure } from '../failure.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type { Policy } from '../policy/policy.js';
import { Pin } from './pin.js';
import { KeyedQueue } from './queue.js';

/** A socket that the helper made in a pod: where, and which inode. */
export interface MadeSocket extends Pick<ListeningSocket, 'dev' | 'ino'> {
  readonly entry: VolumeEntry;
}

/** What the helper has set up in a pod's network. */
export interface AppliedNetwork {
  readonly at: Date;
  readonly plan: NetworkPlan;
}

interface Entry {
  pin: Pin | undefined;
  readonly listeners: Map<PodListener, MadeSocket>;
  /** UIDs of the attachment pods that belong to the pod. */
  readonly attachments: Set<string>;
  network: AppliedNetwork | undefined;
}

/** A launcher that is only looked at. */
export interface Observed {
  readonly launcher: Launcher;
  readonly pinned: boolean;
  /** The VMI that the pod is bound to. */
  readonly vmiUid: string | undefined;
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

const gone = new Set(['ENOENT', 'ECONNREFUSED', 'ESRCH']);

/** Whether this failure of pinning means that nobody listens there (any more). */
export function meansGone(error: unknown): boolean {
  return gone.has(errnoOf(error));
}

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

  /**
   * As {@link withLauncher}, for an operation that begins with a privileged call: the launcher is checked right before
   * each call that is made with `call()`, on its thread, and not in a call of its own before.
   */
  callOnLauncher<T>(
    invocation: Invocation,
    pod: PodRef,
    operation: (launcher: Launcher, call: () => Call) => Promise<T>,
  ): Promise<T> {
    const run = (pin: Pin) =>
      pin.use((launcher) => {
        const { pidfd } = launcher;
        const call = () => ({ ...invocation.call, launcher: { pidfd, podUid: pod.podUid } });
        return operation(launcher, call);
      });
    return this.serially(pod, async () => {
      const known = this.entries.get(pod.podUid)?.pin;
      if (!known?.isUsable) return run((await this.obtain(invocation, pod)).pin);
      try {
        return await run(known);
      } catch (error) {
        const { errnoName, unchanged } = toFailure(error);
        if (errnoName !== 'ESRCH' || !unchanged) throw error;
        // It may be that the launcher has exited and its exit notice is still on the way.
        const { pin, now } = await this.obtain(invocation, pod);
        if (!now) throw error;
        return run(pin);
      }
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
        if (!meansGone(error)) throw error;
        return operation(null);
      }
      return pin.use(operation);
    });
  }

  /** Runs `operation` in the pod's turn without a launcher. */
  withPod<T>(pod: PodRef, operation: () => Promise<T>): Promise<T> {
    return this.serially(pod, operation);
  }

  /**
   * Runs `operation` on the pod's launcher for looking only: out of turn, so that a call that hangs can be
   * looked into, and without binding the pod to a VMI. A launcher that is not pinned is pinned for as long
   * as that takes.
   */
  async observe<T>(
    invocation: Invocation,
    podUid: string,
    operation: (observed: Observed) => Promise<T>,
  ): Promise<T> {
    const { native, podsDir, identify } = this.options;
    const pin = this.entries.get(podUid)?.pin;
    const vmiUid = this.boundTo(podUid);
    if (pin?.isUsable) {
      return pin.use(async (launcher) => {
        const call = invocation.within(identify.caps, identify.deadlineMs);
        await native.checkLauncher(call, launcher, podUid);
        return operation({ launcher, pinned: true, vmiUid });
      });
    }
    const call = invocation.within(identify.caps, identify.deadlineMs);
    const launcher = await native.pinLauncher(call, podsDir, podUid);
    try {
      this.checkUser(launcher, podUid);
      return await operation({ launcher, pinned: false, vmiUid });
    } finally {
      this.closeAll(launcher);
    }
  }

  /** The VMI that the pod was last named with, also when its launcher has exited since. */
  lastNamed(podUid: string): string | undefined {
    return this.entries.get(podUid)?.pin?.vmiUid;
  }

  /** The VMI that the pod's living launcher is bound to. */
  boundTo(podUid: string): string | undefined {
    const pin = this.entries.get(podUid)?.pin;
    return pin?.isAlive ? pin.vmiUid : undefined;
  }

  /** Throws when the pod's living launcher is bound to another VMI. */
  checkBinding(pod: PodRef): void {
    const bound = this.boundTo(pod.podUid);
    if (bound !== undefined && bound !== pod.vmiUid) {
      throw refusal('check binding', `pod ${pod.podUid} runs another VMI`, 'pod.vmi_uid');
    }
  }

  /**
   * Throws when an attachment pod is not the launcher pod's: it belongs to another one whose launcher lives, or is a
   * launcher pod.
   */
  checkAttachment(podUid: string, attachmentPodUid: string): void {
    const refused = (reason: string) =>
      refusal('check binding', `pod ${attachmentPodUid} ${reason}`, 'attachment_pod_uid');
    if (this.entries.has(attachmentPodUid)) throw refused('is a launcher pod');
    for (const [owner, { pin, attachments }] of this.entries) {
      if (owner === podUid || !attachments.has(attachmentPodUid) || !pin?.isAlive) continue;
      throw refused('belongs to another launcher pod');
    }
  }

  /**
   * Runs `operation` on an attachment pod in its launcher pod's turn. It belongs to that launcher pod from then on,
   * until one of the two is gone; not if it is new and `operation` fails.
   */
  async withAttachment<T>(
    { podUid, attachmentPodUid }: { readonly podUid: string; readonly attachmentPodUid: string },
    operation: () => Promise<T>,
  ): Promise<T> {
    this.checkAttachment(podUid, attachmentPodUid);
    const attachments = this.entries.get(podUid)?.attachments ?? new Set();
    if (attachments.has(attachmentPodUid)) return operation();
    const { maxAttachmentPods } = this.options.policy;
    if (attachments.size >= maxAttachmentPods) {
      throw exhausted('bind attachment pod', `pod ${podUid} has ${maxAttachmentPods} attachment pods`);
    }
    attachments.add(attachmentPodUid);
    try {
      return await operation();
    } catch (error) {
      attachments.delete(attachmentPodUid);
      throw error;
    }
  }

  appliedNetwork(podUid: string): AppliedNetwork | undefined {
    return this.entries.get(podUid)?.network;
  }

  /** Notes what was set up; what an earlier set-up named and this one does not is still there. */
  noteNetwork(podUid: string, at: Date, plan: NetworkPlan): void {
    const entry = this.entries.get(podUid);
    if (entry === undefined) return;
    const named = new Set([...plan.attachments, ...plan.detachments].map(({ podInterface }) => podInterface));
    const before = entry.network?.plan;
    const kept = before?.attachments.filter(({ podInterface }) => !named.has(podInterface)) ?? [];
    entry.network = {
      at,
      plan: { ...before, ...plan, attachments: [...kept, ...plan.attachments], detachments: [] },
    };
  }

  /** Listeners for which there is a socket that the helper made. */
  listeners(podUid: string): readonly PodListener[] {
    return [...(this.entries.get(podUid)?.listeners.keys() ?? [])];
  }

  listener(podUid: string, listener: PodListener): MadeSocket | undefined {
    return this.entries.get(podUid)?.listeners.get(listener);
  }

  noteListener(podUid: string, listener: PodListener, socket: MadeSocket): void {
    this.entries.get(podUid)?.listeners.set(listener, socket);
  }

  forgetListener(podUid: string, listener: PodListener): void {
    this.entries.get(podUid)?.listeners.delete(listener);
  }

  /**
   * Lets go of the pod. While its launcher lives the bindings to the VMI and to attachment pods stay, or an
   * agent could name the pod for another VMI by releasing it in between. True when something was held.
   */
  release(podUid: string): boolean {
    const entry = this.entries.get(podUid);
    if (entry === undefined) return false;
    const held = entry.pin?.isUsable === true || entry.listeners.size > 0;
    entry.listeners.clear();
    entry.network = undefined;
    if (entry.pin?.isAlive) entry.pin.release();
    else this.entries.delete(podUid);
    return held;
  }

  /** The pod's directory is gone; its UID never comes back. A launcher that is still alive stays bound. */
  forget(podUid: string): void {
    for (const { attachments } of this.entries.values()) attachments.delete(podUid);
    const entry = this.entries.get(podUid);
    if (entry !== undefined && !entry.pin?.isAlive) this.entries.delete(podUid);
  }

  close(): void {
    for (const { pin } of this.entries.values()) pin?.abandon();
    this.entries.clear();
  }

  private serially<T>(pod: PodRef, task: () => Promise<T>): Promise<T> {
    return this.queue.run(pod.podUid, async () => {
      this.checkBinding(pod);
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
    const { native, podsDir, identify } = this.options;
    this.makeRoom(pod.podUid);
    const call = invocation.within(identify.caps, identify.deadlineMs);
    const launcher = await native.pinLauncher(call, podsDir, pod.podUid);
    try {
      this.checkUser(launcher, pod.podUid);
    } catch (error) {
      this.closeAll(launcher);
      throw error;
    }
    const pin = new Pin(native, launcher, pod.vmiUid, () => this.options.onExit(pod.podUid));
    const entry = this.entries.get(pod.podUid);
    entry?.pin?.abandon();
    this.entries.set(pod.podUid, {
      pin,
      listeners: entry?.listeners ?? new Map(),
      attachments: entry?.attachments ?? new Set(),
      network: undefined,
    });
    return pin;
  }

  private checkUser({ uid }: Launcher, podUid: string): void {
    if (uid === 0 || uid === this.options.policy.qemuUid) return;
    throw refusal('check launcher', `launcher of pod ${podUid} runs as uid ${uid}`);
  }

  private closeAll({ pidfd, mntns, netns }: Launcher): void {
    for (const fd of [pidfd, mntns, netns]) this.options.native.close(fd);
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
