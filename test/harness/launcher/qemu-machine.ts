/** A QEMU process driven through QMP. It emulates (TCG). */
import { execFile } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import {
  type DomainState,
  internalError,
  invalidOperation,
  Lifecycle,
  PausedReason,
  ShutoffReason,
  State,
} from './libvirt.js';
import type {
  Machine,
  MachineConfig,
  MachineDisk,
  MachineListener,
  MachineNic,
  MachineStats,
} from './machine.js';
import type { DiskError } from './notifications.js';
import { Qmp, type QmpEvent } from './qmp.js';

const execFileAsync = promisify(execFile);
const startTimeoutMs = 20_000;
/** libvirt waits this long for a process that was asked to end. */
const destroyTimeoutMs = 15_000;
/** Where plugged disks go: the guest need not agree when they leave. */
const scsi = 'scsi0';
const emulator = '/usr/bin/qemu-system-x86_64';

export class QemuMachine implements Machine {
  machineType = 'q35';
  #state: DomainState = { state: State.shutoff, reason: ShutoffReason.unknown };
  #qmp: Qmp | undefined;
  #pidFile = '';
  #destroying = false;
  #shutdownSeen = false;
  #rebooting = false;
  #disks: readonly MachineDisk[] = [];
  #diskErrors: DiskError[] = [];
  /** Called when a device is gone, by its id. */
  readonly #deletions = new Map<string, () => void>();

  constructor(private readonly listener: MachineListener) {}

  state(): DomainState {
    return this.#state;
  }

  get pid(): number | undefined {
    if (this.#qmp === undefined) return undefined;
    const pid = Number(readIfThere(this.#pidFile));
    return pid > 0 ? pid : undefined;
  }

  diskErrors(): readonly DiskError[] {
    return this.#diskErrors;
  }

  async start(config: MachineConfig, paused: boolean): Promise<void> {
    if (this.#qmp !== undefined) throw invalidOperation('domain is already running');
    mkdirSync(config.runDirectory, { recursive: true, mode: 0o750 });
    mkdirSync(config.consoleDirectory, { recursive: true, mode: 0o750 });
    this.#pidFile = join(config.runDirectory, `${config.name}.pid`);
    const monitor = join(config.runDirectory, 'monitor.sock');
    rmSync(this.#pidFile, { force: true });
    rmSync(monitor, { force: true });
    this.#destroying = false;
    this.#shutdownSeen = false;
    this.#disks = config.disks;
    this.#diskErrors = [];
    this.#state = { state: State.paused, reason: PausedReason.startingUp };
    try {
      await execFileAsync(emulator, qemuArguments(config, monitor, this.#pidFile), {
        timeout: startTimeoutMs,
      });
      this.#qmp = await Qmp.connect(monitor, (event) => this.#onEvent(event));
    } catch (error) {
      this.#state = { state: State.shutoff, reason: ShutoffReason.failed };
      const said = (error as { stderr?: string }).stderr?.trim();
      throw internalError(`process exited while connecting to monitor: ${said ?? (error as Error).message}`);
    }
    void this.#qmp.closed.then(() => this.#onClosed());
    const machine = (await this.#qmp.execute('query-machines')) as { name: string; alias?: string }[];
    this.machineType = machine.find((each) => each.alias === 'q35')?.name ?? 'q35';
    this.listener(undefined);
    if (paused) {
      this.#state = { state: State.paused, reason: PausedReason.user };
      this.listener(Lifecycle.startedBooted);
      this.listener(Lifecycle.suspendedPaused);
      return;
    }
    await this.#qmp.execute('cont');
    this.listener(Lifecycle.startedBooted);
  }

  async suspend(): Promise<void> {
    await this.#running().execute('stop');
  }

  async resume(): Promise<void> {
    await this.#running().execute('cont');
  }

  async shutdown(): Promise<void> {
    await this.#running().execute('system_powerdown');
  }

  async destroy(): Promise<void> {
    const pid = this.pid;
    if (pid === undefined) return;
    this.#destroying = true;
    process.kill(pid, 'SIGTERM');
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () =>
          reject(internalError(`Failed to terminate process ${pid} with SIGTERM: Device or resource busy`)),
        destroyTimeoutMs,
      );
    });
    await Promise.race([this.#qmp?.closed, late]).finally(() => clearTimeout(timer));
  }

  async plugDisk({ volume, path, plugged }: MachineDisk): Promise<void> {
    const qmp = this.#running();
    const file = { driver: plugged === 'block' ? 'host_device' : 'file', filename: path };
    await qmp.execute('blockdev-add', { 'node-name': volume, driver: 'raw', file });
    try {
      const device = { driver: 'scsi-hd', id: deviceId(volume), bus: `${scsi}.0`, drive: volume };
      await qmp.execute('device_add', device);
    } catch (error) {
      await qmp.execute('blockdev-del', { 'node-name': volume });
      throw error;
    }
  }

  async unplugDisk({ volume }: MachineDisk): Promise<void> {
    const qmp = this.#running();
    const deleted = new Promise<void>((resolve) => {
      this.#deletions.set(deviceId(volume), resolve);
    });
    await qmp.execute('device_del', { id: deviceId(volume) });
    await Promise.race([deleted, qmp.closed]);
    await qmp.execute('blockdev-del', { 'node-name': volume });
  }

  async setNics(): Promise<void> {
    throw invalidOperation('NICs of this machine cannot be changed while it runs');
  }

  async reset(): Promise<void> {
    await this.#running().execute('system_reset');
  }

  /** The guest sees its power button; what would be its power-off becomes a reset. */
  async reboot(): Promise<void> {
    const qmp = this.#running();
    await qmp.execute('set-action', { shutdown: 'pause' });
    this.#rebooting = true;
    await qmp.execute('system_powerdown');
  }

  async stats(): Promise<MachineStats> {
    const cpus = (await this.#running().execute('query-cpus-fast')) as { 'thread-id': number }[];
    const pid = this.pid;
    return { vcpuTimeNs: cpus.map((cpu) => threadTimeNs(pid, cpu['thread-id'])) };
  }

  #running(): Qmp {
    if (this.#qmp === undefined) throw invalidOperation('domain is not running');
    return this.#qmp;
  }

  #onEvent({ event, data }: QmpEvent): void {
    switch (event) {
      case 'DEVICE_DELETED': {
        const id = String(data?.['device']);
        this.#deletions.get(id)?.();
        this.#deletions.delete(id);
        return;
      }
      case 'STOP':
        if (this.#rebooting || this.#state.state === State.shuttingDown) return;
        if (this.#state.state !== State.paused) {
          this.#state = { state: State.paused, reason: PausedReason.user };
          this.listener(Lifecycle.suspendedPaused);
        }
        return;
      case 'RESUME':
        this.#diskErrors = [];
        this.#state = { state: State.running, reason: 1 };
        this.listener(Lifecycle.resumedUnpaused);
        return;
      case 'BLOCK_IO_ERROR':
        if (data?.['action'] !== 'stop') return;
        this.#rememberDiskError(data);
        this.#state = { state: State.paused, reason: PausedReason.ioError };
        this.listener(Lifecycle.suspendedIoError);
        return;
      case 'WATCHDOG':
        if (data?.['action'] !== 'pause') return;
        this.#state = { state: State.paused, reason: PausedReason.watchdog };
        this.listener(Lifecycle.suspendedWatchdog);
        return;
      case 'GUEST_PANICKED':
        this.#state = { state: State.crashed, reason: 1 };
        this.listener(Lifecycle.crashedPanicked);
        return;
      case 'SHUTDOWN':
        if (this.#rebooting) void this.#finishReboot();
        else this.#onShutdown(data?.['guest'] === true);
        return;
      default:
    }
  }

  #rememberDiskError(data: Record<string, unknown>): void {
    const disk = this.#disks[Number(/^drive(\d+)$/.exec(String(data['device']))?.[1])];
    if (disk !== undefined)
      this.#diskErrors.push({ volume: disk.volume, code: data['nospace'] === true ? 2 : 1 });
  }

  #onShutdown(byGuest: boolean): void {
    this.#shutdownSeen = true;
    this.#state = { state: State.shuttingDown, reason: byGuest ? 1 : 0 };
    this.listener(byGuest ? Lifecycle.shutdownGuest : Lifecycle.shutdownHost);
  }

  async #finishReboot(): Promise<void> {
    this.#rebooting = false;
    const qmp = this.#qmp;
    await qmp?.execute('system_reset');
    await qmp?.execute('set-action', { shutdown: 'poweroff' });
    await qmp?.execute('cont');
  }

  /** The control socket ends with the process; without a SHUTDOWN event before, it did not end by itself. */
  #onClosed(): void {
    this.#qmp = undefined;
    if (this.#destroying) {
      this.#state = { state: State.shutoff, reason: ShutoffReason.destroyed };
      this.listener(Lifecycle.stoppedDestroyed);
    } else if (this.#shutdownSeen) {
      this.#state = { state: State.shutoff, reason: ShutoffReason.shutdown };
      this.listener(Lifecycle.stoppedShutdown);
    } else {
      this.#state = { state: State.shutoff, reason: ShutoffReason.crashed };
      this.listener(Lifecycle.stoppedFailed);
    }
  }
}

function deviceId(volume: string): string {
  return `plugged-${volume}`;
}

function qemuArguments(config: MachineConfig, monitor: string, pidFile: string): string[] {
  const serial = join(config.consoleDirectory, 'virt-serial0');
  const vnc = join(config.consoleDirectory, 'virt-vnc');
  rmSync(serial, { force: true });
  rmSync(vnc, { force: true });
  return [
    ...['-name', `guest=${config.name},process=qemu-system-x86`, '-uuid', config.uuid, '-daemonize', '-S'],
    // Firmware messages go to the serial console, as there is nobody in front of a screen. Emulated everywhere:
    // where KVM is nested, firmware in real mode may take minutes.
    ...['-machine', `q35,graphics=off,acpi=${config.acpi ? 'on' : 'off'},accel=tcg`],
    ...['-m', `${config.memoryMiB}M`],
    ...['-smp', String(config.cpus), '-nodefaults', '-no-user-config', '-pidfile', pidFile],
    ...['-qmp', `unix:${monitor},server=on,wait=off`],
    ...['-chardev', `socket,id=serial0,path=${serial},server=on,wait=off,logfile=${serial}-log,logappend=on`],
    ...['-device', 'isa-serial,chardev=serial0'],
    ...['-display', `vnc=unix:${vnc}`, '-device', 'VGA'],
    ...['-device', 'ich9-ahci,id=sata', '-device', `virtio-scsi-pci,id=${scsi}`],
    ...config.disks.flatMap(diskArguments),
    ...config.nics.flatMap(nicArguments),
  ];
}

function diskArguments(disk: MachineDisk, index: number): string[] {
  const drive = `drive${index}`;
  const boot = disk.bootOrder === undefined ? '' : `,bootindex=${disk.bootOrder}`;
  const device =
    disk.device === 'cdrom'
      ? `ide-cd,drive=${drive},bus=sata.${index}${boot}`
      : disk.bus === 'sata'
        ? `ide-hd,drive=${drive},bus=sata.${index}${boot}`
        : `virtio-blk-pci,drive=${drive}${boot}`;
  return [
    '-drive',
    `file=${disk.path},format=raw,if=none,id=${drive},readonly=${disk.writable ? 'off' : 'on'},werror=stop,rerror=stop`,
    '-device',
    device,
  ];
}

function nicArguments(nic: MachineNic, index: number): string[] {
  const boot = nic.bootOrder === undefined ? '' : `,bootindex=${nic.bootOrder}`;
  const model = nic.model === 'e1000' || nic.model === 'e1000e' ? nic.model : 'virtio-net-pci';
  return [
    '-netdev',
    `tap,id=net${index},ifname=${nic.tap},script=no,downscript=no`,
    '-device',
    // KubeVirt switches option ROMs off unless the interface has a boot order.
    `${model},netdev=net${index},mac=${nic.mac}${boot}${nic.bootOrder === undefined ? ',romfile=' : ''}`,
  ];
}

/** Processor time of a thread in nanoseconds (first field of schedstat); 0 when it has gone. */
function threadTimeNs(pid: number | undefined, thread: number): bigint {
  const text = readIfThere(`/proc/${pid}/task/${thread}/schedstat`).split(' ')[0];
  return text === undefined || text === '' ? 0n : BigInt(text);
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
