/** The launcher's life: serve, wait for a domain, watch it, end (KubeVirt cmd/virt-launcher). */
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { addCmdServices } from './cmd-server.js';
import { DhcpServers } from './dhcp.js';
import { MachineDomainManager } from './domain-manager.js';
import { EventLoop } from './event-loop.js';
import type { Faults } from './faults.js';
import type { Machine, MachineListener } from './machine.js';
import { Notifier, type NotifierTimes } from './notifier.js';

/** Directories of the pod as the launcher sees them. */
export interface LauncherDirectories {
  /** `/var/run/kubevirt` */
  readonly share: string;
  /** `/var/run/kubevirt-private` */
  readonly privateDirectory: string;
  /** `/var/run/libvirt/qemu/run` */
  readonly run: string;
  /** `/sys/class/net` */
  readonly links: string;
}

export interface LauncherTimes {
  /** Until a domain exists. */
  readonly qemuTimeoutMs: number;
  /** From the request to stop until the machine is killed. */
  readonly gracePeriodMs: number;
  /** For the final notification, before and after one more kill. */
  readonly finalMs: readonly [number, number];
  readonly killEveryMs: number;
  readonly notifier: NotifierTimes;
}

export interface LauncherOptions {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  /** Compared with the target pod of SignalTargetPodCleanup. */
  readonly podName: string;
  readonly directories: LauncherDirectories;
  readonly times: LauncherTimes;
  readonly faults: Faults;
  readonly lateMetadata: boolean;
  readonly createMachine: (listener: MachineListener) => Machine;
  /** Absent where the launcher serves no DHCP (machines without network). */
  readonly dhcpProgram: string | undefined;
  readonly log: (line: string) => void;
}

/** Ends the launcher with a code other than 0, as a panic ends the real one. */
export class LauncherPanic extends Error {
  override readonly name = 'LauncherPanic';
}

export class Launcher {
  readonly #manager: MachineDomainManager;
  readonly #events: EventLoop;
  readonly #notifier: Notifier;
  readonly #dhcp: DhcpServers;
  readonly #watchers = new Set<() => void>();
  #deletionNotified = false;
  #stopRequested = false;
  #earlyExit = false;

  constructor(private readonly options: LauncherOptions) {
    const { directories, log } = options;
    this.#notifier = new Notifier(
      join(directories.share, 'domain-notify-pipe.sock'),
      options.times.notifier,
      log,
    );
    this.#dhcp = new DhcpServers(options.dhcpProgram, directories, log);
    this.#manager = new MachineDomainManager({
      paths: {
        containerDisks: join(directories.share, 'container-disks'),
        hotplugDisks: join(directories.share, 'hotplug-disks'),
        run: directories.run,
        privateDirectory: directories.privateDirectory,
        links: directories.links,
      },
      createMachine: options.createMachine,
      onEvent: (lifecycle) => {
        this.#events.push({ lifecycle });
        this.#changed();
      },
      onMetadata: () => this.#events.push({}),
      now: () => new Date(),
      releasesNic: (network) => {
        if (!options.faults.holdNics) return true;
        if (existsSync(join(directories.privateDirectory, 'release-nics'))) return true;
        log(`the guest keeps NIC ${network}`);
        return false;
      },
      beforeStart: (vmi) => this.#dhcp.start(vmi),
      lateMetadata: options.lateMetadata,
    });
    this.#events = new EventLoop({
      name: { namespace: options.namespace, name: options.name },
      uid: options.uid,
      notifier: this.#notifier,
      observe: () => this.#manager.observe(),
      metadata: () => this.#manager.metadata,
      now: () => new Date(),
      onSignal: (type) => {
        if (type === 'MODIFIED') this.#deletionNotified = true;
        this.#changed();
      },
      log,
    });
  }

  /** Asks the launcher to end (SIGTERM of its pod). */
  requestStop(): void {
    if (this.#stopRequested) return;
    this.#stopRequested = true;
    this.options.log('stop requested');
    this.#manager.markForGracefulShutdown();
    this.#changed();
  }

  /** Runs until the end. Throws a LauncherPanic where the real launcher panics. */
  async run(): Promise<void> {
    const server = await this.#serve();
    try {
      await this.#waitForDomain();
      await this.#watchDomain();
      await this.#waitForFinalNotification();
    } finally {
      this.#events.stop();
      server.forceShutdown();
      this.#notifier.close();
      this.#dhcp.stop();
    }
  }

  async #serve(): Promise<Server> {
    const { directories, faults, podName } = this.options;
    mkdirSync(join(directories.privateDirectory, this.options.uid), { recursive: true, mode: 0o750 });
    mkdirSync(directories.run, { recursive: true, mode: 0o750 });
    const server = new Server();
    addCmdServices(server, {
      manager: this.#manager,
      faults,
      onTargetPodCleanup: (vmi) => {
        if (podName === '' || vmi.status.migrationState?.targetPod !== podName) return;
        this.#earlyExit = true;
        this.#changed();
      },
      onCommand: (method) => this.options.log(`command ${method}`),
    });
    const initSocket = join(directories.share, 'sockets/launcher-init-sock');
    rmSync(initSocket, { force: true });
    await new Promise<void>((resolve, reject) =>
      server.bindAsync(`unix:${initSocket}`, ServerCredentials.createInsecure(), (error) =>
        error === null ? resolve() : reject(error),
      ),
    );
    renameSync(initSocket, join(directories.share, 'sockets/launcher-sock'));
    this.options.log('serving');
    return server;
  }

  async #waitForDomain(): Promise<void> {
    const found = await this.#until(
      () => this.#manager.defined || this.#stopRequested || this.#earlyExit,
      this.options.times.qemuTimeoutMs,
    );
    if (this.#earlyExit) throw new LauncherPanic('the target pod is to be cleaned up');
    if (!found) throw new LauncherPanic(`no domain within ${this.options.times.qemuTimeoutMs} ms`);
  }

  /** Until the machine has ended, or nothing is there to end. */
  async #watchDomain(): Promise<void> {
    // A machine that never starts is given up like a domain that never comes.
    const { times } = this.options;
    await this.#until(
      () => this.#manager.running || this.#stopRequested || this.#earlyExit || !this.#manager.defined,
      times.qemuTimeoutMs,
    );
    await this.#until(() => this.#stopRequested || this.#ended(), undefined);
    if (this.#ended()) return;
    await this.#until(() => this.#ended(), times.gracePeriodMs);
    while (!this.#ended()) {
      this.options.log('grace period is over, killing the machine');
      await this.#manager
        .destroyMachine()
        .catch((error: Error) => this.options.log(`kill: ${error.message}`));
      await this.#until(() => this.#ended(), times.killEveryMs);
    }
  }

  #ended(): boolean {
    return !this.#manager.running || this.#earlyExit;
  }

  async #waitForFinalNotification(): Promise<void> {
    const [first, second] = this.options.times.finalMs;
    // Nothing was ever defined: nothing to tell.
    const done = () => this.#deletionNotified || this.#manager.metadata.UID === '';
    if (await this.#until(done, first)) return;
    this.options.log('no final notification yet, killing once more');
    await this.#manager.destroyMachine().catch((error: Error) => this.options.log(`kill: ${error.message}`));
    if (!(await this.#until(done, second))) this.options.log('ending without the final notification');
  }

  #changed(): void {
    for (const watcher of [...this.#watchers]) watcher();
  }

  /** False when `condition` did not hold within `timeoutMs`. */
  #until(condition: () => boolean, timeoutMs: number | undefined): Promise<boolean> {
    if (condition()) return Promise.resolve(true);
    return new Promise((resolve) => {
      const finish = (value: boolean) => {
        clearTimeout(timer);
        this.#watchers.delete(watcher);
        resolve(value);
      };
      const watcher = () => {
        if (condition()) finish(true);
      };
      const timer = timeoutMs === undefined ? undefined : setTimeout(() => finish(condition()), timeoutMs);
      this.#watchers.add(watcher);
    });
  }
}
