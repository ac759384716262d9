/** Launcher pods as kubelet, container runtime and CNI leave them on a node. */

import { randomBytes, randomUUID } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { grantDevice, PodCgroups } from './cgroup.js';
import { type NamespaceOwner, runVariable } from './leftovers.js';
import { unmountBelow } from './mounts.js';
import { connectPod, disconnectPod, macOf, type PodLink } from './network.js';
import type { PodNode, PodOptions } from './pod-options.js';
import { childrenOf, isListening, readIfThere, uptime } from './proc.js';
import { type ProcessExit, run, type Spawned, signal, start, waitFor } from './run.js';

/** The user of launchers of non-root VMIs. */
export const qemuUser = 107;
const deadlineMs = 20_000;

/** emptyDirs of a launcher pod and where the compute container has them. */
const emptyDirs = {
  public: '/run/kubevirt',
  sockets: '/run/kubevirt/sockets',
  private: '/run/kubevirt-private',
  'libvirt-runtime': '/run/libvirt',
  'ephemeral-disks': '/run/kubevirt-ephemeral-disks',
  'container-disks': '/run/kubevirt/container-disks',
  'hotplug-disks': '/run/kubevirt/hotplug-disks',
  'virtiofs-containers': '/run/kubevirt/virtiofs-containers',
} as const;

/** Where the compute container has its volumes of disk images. */
const vmiDisks = '/run/kubevirt-private/vmi-disks';

/** Those that see what is mounted on the host later. */
const fromHost: readonly string[] = ['container-disks', 'hotplug-disks'];

export type EmptyDir = keyof typeof emptyDirs;

export interface ContainerOptions {
  readonly name: string;
  readonly command: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Mounts and devices, in the words of container.cc. */
  readonly setup: readonly string[];
  /** Host path of the directory that becomes the root; a new one when absent. */
  readonly rootfs?: string;
  /** Block devices that it may use. */
  readonly devices?: readonly { readonly major: number; readonly minor: number }[];
}

export interface Container {
  readonly name: string;
  readonly id: string;
  /** Process 1 of the container, as the host numbers it. */
  readonly pid: number;
  readonly exited: Promise<ProcessExit>;
  /** Path of stdout and stderr on the host. */
  readonly log: string;
  readonly cgroups: readonly string[];
}

export class Pod implements NamespaceOwner {
  readonly uid: string;
  readonly name: string;
  readonly vmiUid: string;
  readonly directory: string;
  readonly podIP: string;
  readonly mac: string;
  /** Name of the veth end in the node's namespace. */
  readonly hostLink: string;
  readonly containers = new Map<string, Container>();
  readonly #cgroups: PodCgroups;
  readonly #spawned: Spawned[] = [];
  readonly #namespaces = new Set<string>();
  readonly #disks: string[] = [];
  #pausePid = 0;
  #destroyed: Promise<void> | undefined;
  #endedAt: number | undefined;

  /** Use HarnessNode.createPod, which also starts it. */
  constructor(
    private readonly node: PodNode,
    private readonly options: PodOptions,
  ) {
    this.uid = options.uid ?? randomUUID();
    this.name = options.name;
    this.vmiUid = options.vmiUid;
    this.podIP = options.podIP;
    this.mac = options.mac ?? macOf(options.podIP);
    this.directory = join(node.podsDir, this.uid);
    this.hostLink = `veth${randomBytes(4).toString('hex')}`;
    this.#cgroups = new PodCgroups(this.uid, options.cgroupDriver ?? 'cgroupfs');
  }

  /** A process that holds the pod's network, IPC and UTS namespaces. */
  get pausePid(): number {
    return this.#pausePid;
  }

  /** Path of the pod's network namespace. */
  get netns(): string {
    return `/proc/${this.#pausePid}/ns/net`;
  }

  /** Host directory of an emptyDir. */
  emptyDir(volume: EmptyDir): string {
    return join(this.directory, 'volumes/kubernetes.io~empty-dir', volume);
  }

  /** Namespace links (`net:[4026532]`) that the pod's processes had. */
  get namespaces(): ReadonlySet<string> {
    return this.#namespaces;
  }

  /** Seconds since boot; undefined until it was destroyed. */
  get endedAt(): number | undefined {
    return this.#endedAt;
  }

  /** Live processes in the pod's cgroups. */
  pids(): number[] {
    return this.#cgroups.pids();
  }

  cgroupDirectories(): string[] {
    return this.#cgroups.directories();
  }

  async create(): Promise<void> {
    this.#layOutDirectories();
    await this.#startPause();
    const link: PodLink = {
      podIP: this.podIP,
      prefixLength: this.node.prefixLength,
      gateway: this.node.gateway,
      mac: this.mac,
      mtu: this.node.mtu,
    };
    await connectPod(this.node.netnsPid, this.#pausePid, this.hostLink, link);
    if (this.options.lateContainerDisks !== true) await this.startContainerDisks();
  }

  async startContainerDisks(): Promise<void> {
    for (const { index, image, name, rootfs } of this.options.containerDisks ?? []) {
      const files = image === undefined ? {} : { [`/disk/${name ?? basename(image)}`]: image };
      await this.startImage(`volumedisk${index}`, `disk_${index}`, files, rootfs);
    }
    const { kernelBoot } = this.options;
    if (kernelBoot !== undefined) await this.startImage('kernel-boot-volume', 'kernel-boot', kernelBoot);
  }

  /** Starts a container with the given files (host paths by their paths in it) that tells of itself at `<socket>.sock`. */
  async startImage(
    name: string,
    socket: string,
    files: Readonly<Record<string, string>>,
    rootfs?: string,
  ): Promise<Container> {
    const dataDirectory = `/run/kubevirt-ephemeral-disks/container-disk-data/${this.vmiUid}`;
    const container = await this.startContainer({
      name,
      ...(rootfs !== undefined && { rootfs }),
      setup: [
        ...Object.entries(files).flatMap(([path, source]) => ['copy', source, path]),
        ...['volume', this.emptyDir('container-disks'), dataDirectory],
      ],
      command: ['/harness/container-disk', '--copy-path', `/var${dataDirectory}/${socket}`],
    });
    await this.waitForListener(container, `${socket}.sock`);
    return container;
  }

  #layOutDirectories(): void {
    mkdirSync(this.directory, { mode: 0o750 });
    mkdirSync(join(this.directory, 'containers'), { mode: 0o750 });
    mkdirSync(join(this.directory, 'volumes'), { mode: 0o750 });
    mkdirSync(join(this.directory, 'volumes/kubernetes.io~empty-dir'), { mode: 0o750 });
    const all = Object.keys(emptyDirs) as EmptyDir[];
    for (const volume of this.options.emptyDirs ?? all) {
      const directory = this.emptyDir(volume);
      mkdirSync(directory);
      chownSync(directory, 0, qemuUser);
      chmodSync(directory, 0o2777);
    }
    const { containerDisks, kernelBoot, bindMountedContainerDisks = true } = this.options;
    if (bindMountedContainerDisks && (containerDisks !== undefined || kernelBoot !== undefined)) {
      mkdirSync(join(this.directory, 'containers/container-disk-binary'), { mode: 0o750 });
    }
  }

  async #startPause(): Promise<void> {
    const cgroups = this.#cgroups.create(randomBytes(32).toString('hex'));
    const pause = this.#spawn(cgroups, 'pause', [
      'unshare',
      '--net',
      '--ipc',
      '--uts',
      '--',
      'sh',
      '-c',
      // The container runtime lets unprivileged processes open low ports (the launcher's DHCP server needs 67).
      'cd /proc/sys; echo "$1" >kernel/hostname; echo 0 >net/ipv4/ip_unprivileged_port_start; cd /; echo ready; exec sleep infinity',
      'sh',
      this.name.slice(0, 63),
    ]);
    this.#pausePid = pause.pid;
    await waitFor(`pause process of pod ${this.name}`, deadlineMs, () =>
      readFileSync(this.#logPath('pause'), 'utf8').includes('ready'),
    );
    this.#rememberNamespaces(pause.pid);
  }

  /** Waits until somebody listens on a socket of that file name; fails with the container's log when it ends before. */
  async waitForListener(container: Container, socket: string): Promise<void> {
    await this.waitUnlessExited(container, socket, () => isListening(this.#pausePid, socket));
  }

  /** Waits for a condition that a container is to bring about; fails with its log when it ends before. */
  async waitUnlessExited<T>(
    container: Container,
    what: string,
    condition: () => T | undefined | false,
  ): Promise<T> {
    let ended = false;
    void container.exited.then(() => {
      ended = true;
    });
    return await waitFor(`${what} of pod ${this.name}`, deadlineMs, () => {
      const value = condition();
      if (value !== undefined && value !== false) return value;
      if (ended)
        throw new Error(`${what}: container ${container.name} ended: ${readFileSync(container.log, 'utf8')}`);
      return undefined;
    });
  }

  /**
   * A claim of the pod: kubelet's mount of a file system, which the compute container gets as a volume of disk
   * images. Before that is started. Resolves to its directory on the host.
   */
  async addClaim(volume: string, mountArguments: readonly string[]): Promise<string> {
    const directory = join(this.directory, 'volumes/kubernetes.io~csi', `pvc-${volume}`, 'mount');
    mkdirSync(directory, { recursive: true, mode: 0o750 });
    await run('mount', [...mountArguments, directory]);
    this.addHostPath(volume, directory);
    return directory;
  }

  /** A directory of the host that the compute container gets as a volume of disk images. */
  addHostPath(volume: string, directory: string): void {
    this.#disks.push('volume', directory, `${vmiDisks}/${volume}`);
  }

  /** A block claim: its device node in the compute container, closed to all but root. */
  addBlockDevice(volume: string, major: number, minor: number): void {
    this.#disks.push('device', 'b', String(major), String(minor), '600', volume);
  }

  /** Mounts and devices of a compute container, in the words of container.cc. */
  computeSetup(): string[] {
    const volumes = (Object.keys(emptyDirs) as EmptyDir[])
      // Parents before what is mounted in them.
      .sort((a, b) => emptyDirs[a].length - emptyDirs[b].length)
      .flatMap((volume) => [
        fromHost.includes(volume) && this.options.withoutPropagation !== true ? 'hostToContainer' : 'volume',
        this.emptyDir(volume),
        emptyDirs[volume],
      ]);
    // Owned by root and closed to others until the node agent gives them to the launcher.
    const optional = [
      ['kvm', '10', '232'],
      ['vhost-net', '10', '238'],
    ]
      .filter(([name]) => existsSync(`/dev/${name}`))
      .flatMap(([name = '', major = '', minor = '']) => ['device', 'c', major, minor, '600', name]);
    return [...volumes, ...this.#disks, 'device', 'c', '10', '200', '600', 'net/tun', ...optional];
  }

  /** Starts a container: own mount and PID namespace, the pod's others, uid 107, no capabilities. */
  async startContainer(options: ContainerOptions): Promise<Container> {
    const id = randomBytes(32).toString('hex');
    const root = join(this.node.workDir, this.uid, `${options.name}-root`);
    mkdirSync(root, { recursive: true });
    mkdirSync(join(this.directory, 'containers', options.name), { mode: 0o750, recursive: true });
    const basics = ['null 1 3', 'zero 1 5', 'full 1 7', 'random 1 8', 'urandom 1 9', 'tty 5 0'].flatMap(
      (device) => {
        const [name = '', major = '', minor = ''] = device.split(' ');
        return ['device', 'c', major, minor, '666', name];
      },
    );
    const cgroups = this.#cgroups.create(id);
    for (const device of options.devices ?? []) grantDevice(cgroups, device);
    const spawned = this.#spawn(
      cgroups,
      options.name,
      [
        ...['nsenter', `--net=${this.netns}`, `--ipc=/proc/${this.#pausePid}/ns/ipc`],
        ...[`--uts=/proc/${this.#pausePid}/ns/uts`, '--'],
        ...['unshare', '--mount', '--pid', '--fork', '--kill-child', '--propagation', 'slave', '--'],
        ...[join(this.node.programsDir, 'container'), root, String(qemuUser)],
        options.rootfs ?? '',
        ...['readOnly', this.node.programsDir, '/harness'],
        ...basics,
        ...options.setup,
        '--',
        ...options.command,
      ],
      options.env,
    );
    const log = this.#logPath(options.name);
    let ended = false;
    void spawned.exited.then(() => {
      ended = true;
    });
    // The first child of unshare is process 1; it is the container's own program once it runs as its user.
    const pid = await waitFor(`container ${options.name} of pod ${this.name}`, deadlineMs, () => {
      if (ended)
        throw new Error(`container ${options.name} ended at its start: ${readFileSync(log, 'utf8')}`);
      const [child] = childrenOf(spawned.pid);
      if (child === undefined) return undefined;
      return /^Uid:\t107\t/m.test(readIfThere(`/proc/${child}/status`)) ? child : undefined;
    });
    // What waits for the container is the runtime's, and in none of its cgroups.
    for (const directory of cgroups) writeFileSync(join(directory, '../cgroup.procs'), String(spawned.pid));
    this.#rememberNamespaces(pid);
    const container: Container = {
      name: options.name,
      id,
      pid,
      exited: spawned.exited,
      log,
      cgroups,
    };
    this.containers.set(options.name, container);
    return container;
  }

  /** Spawns a program inside the cgroup of a container. */
  #spawn(
    cgroups: readonly string[],
    name: string,
    command: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Spawned {
    mkdirSync(join(this.node.workDir, this.uid), { recursive: true });
    const log = openSync(this.#logPath(name), 'a', 0o644);
    const spawned = start(
      'sh',
      [
        '-c',
        'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 71; shift; done; shift; exec "$@"',
        'sh',
        ...cgroups,
        '--',
        ...command,
      ],
      {
        stdio: ['ignore', log, log],
        cwd: '/',
        env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', [runVariable]: this.node.runId, ...env },
      },
    );
    closeSync(log);
    this.#spawned.push(spawned);
    return spawned;
  }

  #logPath(name: string): string {
    return join(this.node.workDir, this.uid, `${name}.log`);
  }

  #rememberNamespaces(pid: number): void {
    for (const kind of ['net', 'ipc', 'uts', 'mnt', 'pid']) {
      const link = readlinkSync(`/proc/${pid}/ns/${kind}`);
      if (link !== readlinkSync(`/proc/self/ns/${kind}`)) this.#namespaces.add(link);
    }
  }

  /** Kills process 1 of each container and lets its parent collect it, so that no zombie keeps a namespace. */
  async #killContainers(): Promise<void> {
    const left = new Set(this.#spawned);
    for (const spawned of left) void spawned.exited.then(() => left.delete(spawned));
    await waitFor(`containers of pod ${this.name} to end`, deadlineMs, () => {
      for (const { pid } of left) {
        const children = childrenOf(pid);
        for (const each of children.length > 0 ? children : [pid]) signal(each, 'SIGKILL');
      }
      return left.size === 0;
    });
  }

  /** Ends everything of the pod and removes its traces. May be called at any time, more than once. */
  destroy(): Promise<void> {
    this.#destroyed ??= this.#destroy();
    return this.#destroyed;
  }

  async #destroy(): Promise<void> {
    await this.#killContainers();
    await this.#cgroups.destroy(deadlineMs);
    this.#endedAt = uptime();
    await disconnectPod(this.node.netnsPid, this.hostLink);
    await unmountBelow(this.directory);
    rmSync(this.directory, { recursive: true, force: true });
    rmSync(join(this.node.workDir, this.uid), { recursive: true, force: true });
  }
}
