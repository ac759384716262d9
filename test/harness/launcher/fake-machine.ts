/** A machine without an emulator, for tests with hundreds of VMs: it obeys at once. */
import {
  type DomainState,
  invalidOperation,
  Lifecycle,
  PausedReason,
  ShutoffReason,
  State,
} from './libvirt.js';
import type { Machine, MachineConfig, MachineListener, MachineStats } from './machine.js';
import type { DiskError } from './notifications.js';

export class FakeMachine implements Machine {
  readonly machineType = 'pc-q35-7.2';
  readonly pid = undefined;
  #state: DomainState = { state: State.shutoff, reason: ShutoffReason.unknown };

  /** `obeysAcpi`: whether the power button turns it off. */
  constructor(
    private readonly listener: MachineListener,
    private readonly obeysAcpi: boolean,
  ) {}

  state(): DomainState {
    return this.#state;
  }

  diskErrors(): readonly DiskError[] {
    return [];
  }

  async start(_config: MachineConfig, paused: boolean): Promise<void> {
    if (this.#state.state !== State.shutoff) throw invalidOperation('domain is already running');
    this.listener(undefined);
    if (paused) {
      this.#enter(State.paused, PausedReason.user);
      this.listener(Lifecycle.startedBooted);
      this.listener(Lifecycle.suspendedPaused);
      return;
    }
    this.#enter(State.running, 1);
    this.listener(Lifecycle.resumedUnpaused);
    this.listener(Lifecycle.startedBooted);
  }

  async suspend(): Promise<void> {
    this.#mustRun();
    this.#enter(State.paused, PausedReason.user);
    this.listener(Lifecycle.suspendedPaused);
  }

  async resume(): Promise<void> {
    this.#mustRun();
    this.#enter(State.running, 1);
    this.listener(Lifecycle.resumedUnpaused);
  }

  async plugDisk(): Promise<void> {
    this.#mustRun();
  }

  async unplugDisk(): Promise<void> {
    this.#mustRun();
  }

  async setNics(): Promise<void> {
    this.#mustRun();
  }

  async shutdown(): Promise<void> {
    this.#mustRun();
    if (!this.obeysAcpi) return;
    this.#enter(State.shutoff, ShutoffReason.shutdown);
    this.listener(Lifecycle.shutdownGuest);
    this.listener(Lifecycle.stoppedShutdown);
  }

  async destroy(): Promise<void> {
    if (this.#state.state === State.shutoff) return;
    this.#enter(State.shutoff, ShutoffReason.destroyed);
    this.listener(Lifecycle.shutdownHost);
    this.listener(Lifecycle.stoppedDestroyed);
  }

  async reset(): Promise<void> {
    this.#mustRun();
  }

  async reboot(): Promise<void> {
    this.#mustRun();
  }

  async stats(): Promise<MachineStats> {
    this.#mustRun();
    return { vcpuTimeNs: [0n] };
  }

  #enter(state: number, reason: number): void {
    this.#state = { state, reason };
  }

  #mustRun(): void {
    if (this.#state.state === State.shutoff) throw invalidOperation('domain is not running');
  }
}
