/** A pod with its launcher and guest, as far as an agent can see them. */
import { create, type DescMethodUnary } from '@bufbuild/protobuf';
import { Code, ConnectError, type Transport } from '@connectrpc/connect';
import type { VmiRef } from '../../agent/api/vmi.js';
import type { PodState } from '../../agent/helper/pod-state.js';
import type { ModelTime } from './time.js';

export interface LauncherTraits {
  /** Seconds until the socket appears; undefined: never. */
  readonly socketAfter: number | undefined;
  /** Seconds that QEMU takes to start. */
  readonly qemuStart: number;
  readonly obeysAcpi: boolean;
  /** Seconds. */
  readonly gracePeriod: number;
  /** The first event does not name the VMI's UID yet. */
  readonly uidLate: boolean;
  /** The first calls of SyncVirtualMachine fail. */
  readonly syncFailures: number;
}

type Guest = 'none' | 'starting' | 'running' | 'paused' | 'shutting down' | 'off';

/** What happens to guests that the model has to know about. */
export interface LauncherHistory {
  started: boolean;
  /** Why the guest ended, in the order in which it happened. */
  readonly ends: string[];
}

const guestOffSeconds = 3;

export class ModelLauncher {
  alive = true;
  hung = false;
  /** The pod's directory exists. */
  directory = true;
  marker = false;
  guest: Guest = 'none';
  reason = 'Unknown';
  readonly history: LauncherHistory = { started: false, ends: [] };
  /** Calls by name. */
  readonly calls = new Map<string, number>();
  /** What was asked of a guest that nobody wanted stopped. */
  readonly violations: string[] = [];
  /** Set by the cluster: somebody wants this VM gone. */
  mayStop = false;
  #socket = false;
  #uidKnown: boolean;
  #undefined = false;
  #shutdownAt: string | undefined;
  #markedGraceful = false;
  #syncFailures: number;
  #resume: (() => void)[] = [];
  #events: { readonly type: string; readonly json: string; readonly since: number }[] = [];
  #sending = false;
  #listener: ((type: string, json: string) => boolean) | undefined;

  constructor(
    readonly podUid: string,
    readonly vmi: VmiRef,
    readonly traits: LauncherTraits,
    private readonly time: ModelTime,
    /** Tells the agent's side that the pod looks different. */
    private readonly changed: () => void,
  ) {
    this.#uidKnown = !traits.uidLate;
    this.#syncFailures = traits.syncFailures;
    if (traits.socketAfter !== undefined) {
      time.after(traits.socketAfter * 1000, () => {
        this.#socket = this.alive;
        this.changed();
      });
    }
  }

  get state(): PodState | undefined {
    if (!this.directory) return undefined;
    return {
      podUid: this.podUid,
      directory: true,
      launcherSocket: this.#socket ? 'present' : 'absent',
      unresponsiveMarker: this.marker,
      containerDisks: [],
      kernelBoot: false,
      containerDiskBinary: false,
      launcherExited: this.#socket && !this.alive,
    };
  }

  get guestAlive(): boolean {
    return ['starting', 'running', 'paused', 'shutting down'].includes(this.guest);
  }

  count(call: string): number {
    return this.calls.get(call) ?? 0;
  }

  // What happens to it

  /** The process is gone, its guest with it. */
  exit(why: string): void {
    if (!this.alive) return;
    if (this.guestAlive || !this.history.started || this.#hasUntoldEnd()) this.history.ends.push(why);
    this.alive = false;
    this.guest = 'none';
    this.#events = [];
    this.wake();
    this.changed();
  }

  removeDirectory(): void {
    this.exit('pod removed');
    this.directory = false;
    this.changed();
  }

  hang(): void {
    if (this.alive) this.hung = true;
  }

  wake(): void {
    this.hung = false;
    for (const resume of this.#resume.splice(0)) resume();
    void this.#send();
  }

  /** SIGTERM: the guest goes on until it is told to stop. */
  terminate(): void {
    if (!this.alive) return;
    this.#markedGraceful = true;
    if (this.guest === 'none' && !this.#undefined) this.exit('terminated');
    else this.#tell();
  }

  guestDoes(what: 'poweroff' | 'panic' | 'pause' | 'resume'): void {
    if (what === 'pause' && this.guest === 'running') this.#become('paused', 'User');
    else if (what === 'resume' && this.guest === 'paused') this.#become('running', 'Unknown');
    else if (what === 'poweroff' && this.guest === 'running') this.#end('poweroff', 'Shutdown');
    else if (what === 'panic' && this.guest === 'running') this.#end('panic', 'Crashed');
  }

  /** The agent listens in the pod, or no longer. `listener`: false when the event was not taken. */
  listen(listener: ((type: string, json: string) => boolean) | undefined): void {
    this.#listener = listener;
  }

  // What it answers

  readonly transport = {
    unary: async (
      method: DescMethodUnary,
      signal: AbortSignal | undefined,
      timeoutMs: number | undefined,
    ) => {
      this.calls.set(method.name, this.count(method.name) + 1);
      await this.#awake(timeoutMs ?? 20_000, signal);
      const answer = await this.#answer(method.name);
      if (!this.alive) throw new ConnectError('error reading from server: EOF', Code.Unavailable);
      const message = create(method.output, answer as never);
      return {
        stream: false,
        service: method.parent,
        method,
        header: new Headers(),
        trailer: new Headers(),
        message,
      };
    },
    stream: () => Promise.reject(new ConnectError('no streams', Code.Unimplemented)),
  } as unknown as Transport;

  async #awake(timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    if (!this.alive) throw new ConnectError('error reading from server: EOF', Code.Unavailable);
    if (!this.hung) return;
    await new Promise<void>((resolve, reject) => {
      const cancel = this.time.after(timeoutMs, () =>
        reject(new ConnectError('context deadline exceeded', Code.DeadlineExceeded)),
      );
      signal?.addEventListener('abort', () => reject(new ConnectError('canceled', Code.Canceled)));
      this.#resume.push(() => {
        cancel();
        resolve();
      });
    });
  }

  async #answer(call: string): Promise<object> {
    switch (call) {
      case 'GetDomain':
        return { response: { success: true }, domain: this.guest === 'none' ? '' : this.#domain('') };
      case 'SyncVirtualMachine':
        return this.#sync();
      case 'ShutdownVirtualMachine':
        this.#asked('Shutdown');
        this.#shutDown();
        return ok;
      case 'KillVirtualMachine':
        this.#asked('Kill');
        if (this.guestAlive) this.#end('killed', 'Destroyed');
        return ok;
      case 'DeleteVirtualMachine':
        this.#asked('Delete');
        if (this.guest !== 'none') this.#undefine();
        return ok;
      default:
        return ok;
    }
  }

  #asked(what: string): void {
    if (this.guestAlive && !this.mayStop && this.guest !== 'shutting down') {
      this.violations.push(`${this.vmi.name}: ${what} of a guest that is ${this.guest}`);
    }
  }

  async #sync(): Promise<object> {
    this.#uidKnown = true;
    if (this.#syncFailures > 0) {
      this.#syncFailures--;
      return { success: false, message: 'libvirt is busy' };
    }
    if (this.guest !== 'none' || this.#undefined) return ok;
    this.guest = 'starting';
    this.#tell('ADDED');
    this.time.after(this.traits.qemuStart * 1000, () => {
      if (this.guest !== 'starting') return;
      this.history.started = true;
      this.#become('running', 'Unknown');
    });
    return ok;
  }

  #shutDown(): void {
    if (this.#shutdownAt === undefined) {
      this.#shutdownAt = new Date(this.time.now()).toISOString();
      this.#tell();
    }
    if (!this.traits.obeysAcpi || this.guest !== 'running') return;
    this.#become('shutting down', 'User');
    this.time.after(guestOffSeconds * 1000, () => {
      if (this.guest === 'shutting down') this.#end('shut down', 'Shutdown');
    });
  }

  #end(why: string, reason: string): void {
    this.history.ends.push(why);
    this.#become('off', reason);
    // The final notification is waited for, not for ever.
    this.time.after(45_000, () => this.#giveUp());
  }

  /** Nobody has undefined the guest. A process that is stopped does not end either. */
  #giveUp(): void {
    if (this.hung) {
      this.time.after(1_000, () => this.#giveUp());
      return;
    }
    this.exit('ended');
  }

  /** The guest ended, and the agent may not know. */
  #hasUntoldEnd(): boolean {
    return this.guest === 'off' && (this.#listener === undefined || this.#events.length > 0);
  }

  #undefine(): void {
    if (this.guestAlive) this.history.ends.push('undefined');
    this.guest = 'none';
    this.#undefined = true;
    this.#enqueue('MODIFIED', this.#domain(new Date(this.time.now()).toISOString()));
    this.time.after(1_000, () => this.exit('ended'));
  }

  #become(guest: Guest, reason: string): void {
    this.guest = guest;
    this.reason = reason;
    this.#tell();
  }

  #tell(type = 'MODIFIED'): void {
    if (this.guest !== 'none') this.#enqueue(type, this.#domain(''));
  }

  #enqueue(type: string, json: string): void {
    if (this.#events.length >= 10) return;
    this.#events.push({ type, json, since: this.time.now() });
    void this.#send();
  }

  /** One event at a time, tried every second for 20 s. */
  async #send(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    while (this.alive && !this.hung) {
      const [event] = this.#events;
      if (event === undefined) break;
      const taken = this.#listener?.(event.type, event.json) ?? false;
      if (taken || this.time.now() - event.since > 20_000) {
        if (this.#events[0] === event) this.#events.shift();
        await Promise.resolve();
      } else {
        await new Promise<void>((resolve) => this.time.after(1_000, resolve));
      }
    }
    this.#sending = false;
  }

  #domain(deletionTimestamp: string): string {
    const { namespace, name, uid } = this.vmi;
    const { gracePeriod } = this.traits;
    const grace = {
      DeletionGracePeriodSeconds: gracePeriod,
      ...(this.#shutdownAt === undefined ? {} : { DeletionTimestamp: this.#shutdownAt }),
      ...(this.#markedGraceful ? { MarkedForGracefulShutdown: true } : {}),
    };
    return JSON.stringify({
      kind: 'Domain',
      ObjectMeta: { namespace, name, ...(deletionTimestamp === '' ? {} : { deletionTimestamp }) },
      Spec: {
        Name: `${namespace}_${name}`,
        Features: { ACPI: {} },
        Metadata: { KubeVirt: { UID: this.#uidKnown ? uid : '', GracePeriod: grace } },
      },
      Status: { Status: deletionTimestamp === '' ? statuses[this.guest] : 'NoState', Reason: this.reason },
    });
  }
}

const ok = { success: true, message: '' };

const statuses: Readonly<Record<Guest, string>> = {
  none: 'NoState',
  starting: 'Shutoff',
  running: 'Running',
  paused: 'Paused',
  'shutting down': 'ShuttingDown',
  off: 'Shutoff',
};
