/** Starts the stand-in launcher in a pod, as kubelet would start the compute container. */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Container, Pod } from '../pods/pod.js';
import { childrenOf, readIfThere } from '../pods/proc.js';
import { type ProcessExit, signal, waitFor } from '../pods/run.js';

export interface StartLauncherOptions {
  readonly namespace: string;
  readonly name: string;
  readonly vmiUid: string;
  /** Of the VMI (default 30); the launcher is told 15 more. */
  readonly terminationGracePeriodSeconds?: number;
  /** Until the first SyncVirtualMachine (default 300). */
  readonly qemuTimeoutSeconds?: number;
  /** `qemu` (default), or `fake` for many VMs at once. */
  readonly machine?: 'qemu' | 'fake';
  /** Whether a fake machine turns off at its power button (default true). */
  readonly obeyAcpi?: boolean;
  /** Sends the first event before the UID is known. */
  readonly lateMetadata?: boolean;
  readonly faults?: {
    readonly hang?: boolean;
    readonly slowSyncSeconds?: number;
    /** The guest keeps NICs that are to be unplugged until `releaseNics` is called. */
    readonly holdNics?: boolean;
    /** How often HotplugHostDevices fails before it succeeds. */
    readonly hostDevices?: number;
    readonly versions?: readonly number[];
    readonly simulateCrash?: boolean;
  };
}

/** A running launcher, seen from the host. */
export interface LauncherHandle {
  readonly container: Container;
  /** The process that listens on launcher-sock. */
  readonly pid: number;
  /** Path to launcher-sock short enough for connect(2). */
  readonly socketPath: string;
  /** End of the container, with the exit code kubelet would see. */
  readonly exited: Promise<ProcessExit>;
  /** Log of monitor and launcher so far. */
  log(): string;
  /** Names of the commands that the launcher got so far, in order: `syncVirtualMachine`, ... */
  commands(): string[];
  /** Those of them that end a domain. */
  stopCommands(): string[];
  /** Serial console of the guest so far; empty before it starts. */
  console(): string;
  /** Process of QEMU on the host. */
  qemuPid(): number | undefined;
  /** The guest lets go of its NICs at the next sync. */
  releaseNics(): void;
  /** What kubelet does first to a pod that is deleted. */
  terminate(): void;
  /** Kills the launcher alone; the monitor then ends the container. */
  crash(): void;
  /** A hang: connections are accepted by the kernel, nothing answers. */
  freeze(): void;
  thaw(): void;
}

const deadlineMs = 20_000;
const endingCommands = ['shutdownVirtualMachine', 'killVirtualMachine', 'deleteVirtualMachine'];

function flags(options: StartLauncherOptions): string[] {
  const faults = options.faults ?? {};
  return [
    ...['--qemu-timeout', `${options.qemuTimeoutSeconds ?? 300}s`],
    ...['--name', options.name, '--uid', options.vmiUid, '--namespace', options.namespace],
    ...['--kubevirt-share-dir', '/var/run/kubevirt'],
    ...['--container-disk-dir', '/var/run/kubevirt/container-disks'],
    ...['--grace-period-seconds', String((options.terminationGracePeriodSeconds ?? 30) + 15)],
    ...['--run-as-nonroot', '--allow-emulation', '--machine', options.machine ?? 'qemu'],
    ...((options.obeyAcpi ?? true) ? [] : ['--ignore-acpi']),
    ...(options.lateMetadata === true ? ['--late-metadata'] : []),
    ...(faults.hang === true ? ['--fault-hang'] : []),
    ...(faults.slowSyncSeconds === undefined ? [] : ['--fault-slow-sync', `${faults.slowSyncSeconds}s`]),
    ...(faults.holdNics === true ? ['--fault-hold-nics'] : []),
    ...(faults.hostDevices === undefined ? [] : ['--fault-host-devices', String(faults.hostDevices)]),
    ...(faults.versions === undefined ? [] : ['--fault-version', faults.versions.join(',')]),
    ...(faults.simulateCrash === true ? ['--simulate-crash'] : []),
  ];
}

/** Starts monitor and launcher. Resolves when launcher-sock exists. */
export async function startLauncher(pod: Pod, options: StartLauncherOptions): Promise<LauncherHandle> {
  const container = await pod.startContainer({
    name: 'compute',
    env: {
      POD_NAME: pod.name,
      XDG_CACHE_HOME: '/var/run/kubevirt-private',
      XDG_CONFIG_HOME: '/var/run/kubevirt-private',
      XDG_RUNTIME_DIR: '/var/run',
    },
    setup: pod.computeSetup(),
    command: ['node', '/harness/monitor.mjs', ...flags(options)],
  });
  await pod.waitUnlessExited(container, 'launcher-sock', () =>
    existsSync(join(pod.emptyDir('sockets'), 'launcher-sock')),
  );
  const pid = await waitFor('launcher process', deadlineMs, () =>
    childrenOf(container.pid).find((child) =>
      readIfThere(`/proc/${child}/cmdline`).includes('/harness/launcher.mjs'),
    ),
  );
  const commands = () =>
    [...readIfThere(container.log).matchAll(/ launcher: command (\w+)$/gm)].map(([, name = '']) => name);
  return {
    container,
    pid,
    socketPath: `/proc/${pid}/root/run/kubevirt/sockets/launcher-sock`,
    exited: container.exited,
    log: () => readIfThere(container.log),
    commands,
    stopCommands: () => commands().filter((command) => endingCommands.includes(command)),
    console: () => readIfThere(join(pod.emptyDir('private'), options.vmiUid, 'virt-serial0-log')),
    qemuPid: () =>
      childrenOf(container.pid).find((child) => readIfThere(`/proc/${child}/comm`).startsWith('qemu-system')),
    releaseNics: () => writeFileSync(join(pod.emptyDir('private'), 'release-nics'), ''),
    terminate: () => signal(container.pid, 'SIGTERM'),
    crash: () => signal(pid, 'SIGKILL'),
    freeze: () => signal(pid, 'SIGSTOP'),
    thaw: () => signal(pid, 'SIGCONT'),
  };
}
