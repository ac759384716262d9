/**
 * A launcher pod with everything that a call touches: a launcher with mount namespace, network namespace, links
 * and devices of its own, and a process with an image, of a container disk and for kernel boot.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  chownSync,
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { connect as connectSocket, type Socket } from 'node:net';
import { dirname, join } from 'node:path';
import { PodCgroups } from '../../harness/pods/cgroup.js';
import { readIfThere } from '../../harness/pods/proc.js';
import { waitFor } from '../../harness/pods/run.js';
import {
  type HelperProcess,
  launcherVolumes,
  qemuUser,
  TestPod,
} from '../../integration/privhelper-fixture.js';
import type { Target } from './line.js';

export type Behaviour = 'close' | 'echo' | 'mute' | 'drip' | 'flood' | 'linger';

const deadlineMs = 20_000;
const imageSockets = ['disk_0.sock', 'kernel-boot.sock'];
const program = new URL('pod-program.mjs', import.meta.url).pathname;

const joinCgroups = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift';
const asLauncher = `exec setpriv --reuid ${qemuUser} --regid ${qemuUser} --clear-groups "$@"`;
/** What others have mounted in /tmp comes and goes as they do. */
export const leaveForeignMounts =
  'awk \'$5 ~ /^\\/tmp\\// { print $5 }\' /proc/self/mountinfo | while read -r each; do umount -l "$each" 2>/dev/null || true; done';
/** $1 is the container-disks volume, $2 is hotplug-disks. */
const launcherNamespaces = `set -e; ${joinCgroups}
${leaveForeignMounts}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/kubevirt/container-disks /run/kubevirt/hotplug-disks
mount --bind "$1" /run/kubevirt/container-disks; shift
mount --bind "$1" /run/kubevirt/hotplug-disks; shift
mkdir -p /run/kubevirt-private/vmi-disks/data
mount -t tmpfs -o mode=755,size=1m tmpfs /run/kubevirt-private/vmi-disks/data
mount -t tmpfs -o mode=755 tmpfs /dev
mkdir /dev/net; mknod -m 600 /dev/blk b 7 0
mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9; mknod -m 600 /dev/net/tun c 10 200
for each in all default; do echo 0 >/proc/sys/net/ipv6/conf/$each/accept_dad; done
ip link add eth0 type veth peer name eth0p; ip link add net1 type veth peer name net1p
ip addr add 10.244.9.2/24 dev eth0; ip addr add 192.168.77.2/24 dev net1
for each in lo eth0 eth0p net1 net1p; do ip link set $each up; done
${asLauncher}`;
export const passtSocket = 'libvirt-runtime/qemu/run/passt/1-vm-net0.socket.repair';
const diskNamespaces = `set -e; ${joinCgroups}; ${asLauncher}`;

/** One process of a pod. */
export class PodProcess {
  private readonly words: string[][] = [];
  private rest = '';

  constructor(private readonly child: ChildProcess) {
    child.stdout?.on('data', (chunk: Buffer) => {
      const lines = (this.rest + chunk.toString()).split('\n');
      this.rest = lines.pop() ?? '';
      for (const line of lines) this.words.push(JSON.parse(line));
    });
  }

  get pid(): number {
    return this.child.pid ?? 0;
  }

  /** Connections that it has accepted on a path. */
  connections(path: string): number {
    return this.words.filter(([word, where]) => word === 'connection' && where === path).length;
  }

  /** What came of the sockets that it sent over connections to a path. */
  async lingering(path: string): Promise<string> {
    return waitFor(`pod process to send over ${path}`, deadlineMs, () => {
      const said = this.words.find(([word, where]) => word === 'lingering' && where === path);
      return said?.[2];
    });
  }

  async started(): Promise<void> {
    await this.hear('started');
  }

  async listen(path: string, behaviour: Behaviour = 'echo', backlog = 511): Promise<void> {
    const before = this.count('listening', path);
    this.child.stdin?.write(`${JSON.stringify(['listen', path, behaviour, backlog])}\n`);
    await waitFor(`listening on ${path}`, deadlineMs, () => {
      const failed = this.words.find(([word, where]) => word === 'error' && where === path);
      if (failed !== undefined) throw new Error(`listen ${path}: ${failed[2]}`);
      return this.count('listening', path) > before;
    });
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await waitFor('process to end', deadlineMs, () => this.hasEnded);
  }

  signal(name: NodeJS.Signals): void {
    this.child.kill(name);
  }

  private get hasEnded(): boolean {
    return this.child.signalCode !== null || this.child.exitCode !== null;
  }

  private count(word: string, path: string): number {
    return this.words.filter(([first, where]) => first === word && where === path).length;
  }

  private async hear(word: string): Promise<void> {
    await waitFor(`pod process to say ${word}`, deadlineMs, () => {
      if (this.hasEnded) throw new Error(`process of the pod ended with ${this.child.exitCode}`);
      return this.words.some(([first]) => first === word);
    });
  }
}

export class WholePod {
  private readonly pod: TestPod;
  private readonly attachment: TestPod;
  private readonly cgroups: PodCgroups;
  /** Descriptors of the volumes that calls leave something in. */
  private readonly held: readonly number[];
  private readonly processes: PodProcess[] = [];
  private launcherProcess: PodProcess | undefined;

  private constructor(
    helper: HelperProcess,
    private readonly image: string,
  ) {
    this.pod = new TestPod(helper, [...launcherVolumes, 'virtiofs-containers']);
    this.attachment = new TestPod(helper, ['hotplug-disks']);
    mkdirSync(this.path('private/config-map-disks'));
    writeFileSync(this.path('private/config-map-disks/config.iso'), 'iso');
    mkdirSync(this.path(dirname(passtSocket)), { recursive: true });
    chownSync(this.path(dirname(passtSocket)), qemuUser, qemuUser);
    this.cgroups = new PodCgroups(this.pod.podUid, 'cgroupfs');
    this.held = ['container-disks', 'sockets'].map((volume) => openSync(this.path(volume), 'r'));
  }

  static async create(helper: HelperProcess, image: string): Promise<WholePod> {
    const pod = new WholePod(helper, image);
    try {
      await Promise.all([pod.startLauncher(), pod.startDisk(), pod.startAttachment(), pod.startPasst()]);
    } catch (error) {
      await pod.destroy();
      throw error;
    }
    return pod;
  }

  get target(): Target {
    return { ...this.pod.ref, attachmentPodUid: this.attachment.podUid, image: this.image };
  }

  get directory(): string {
    return this.pod.directory;
  }

  get launcher(): PodProcess {
    if (this.launcherProcess === undefined) throw new Error('the pod has no launcher');
    return this.launcherProcess;
  }

  /** Path of an entry of a volume: `sockets/launcher-sock`. */
  path(entry: string): string {
    return join(this.pod.volume('.'), entry);
  }

  /** A launcher that listens, in the place of one that was killed. */
  async startLauncher(): Promise<void> {
    const volumes = ['container-disks', 'hotplug-disks'].map((name) => this.pod.volume(name));
    this.launcherProcess = await this.start(['--net', '--mount'], launcherNamespaces, volumes);
    await this.launcherProcess.listen('sockets/launcher-sock');
    await this.launcherProcess.listen('virtiofs-containers/fs.sock');
  }

  private async startDisk(): Promise<void> {
    const disk = await this.start(['--mount'], diskNamespaces, []);
    for (const socket of imageSockets) {
      await disk.listen(`container-disks/${socket}`);
      linkSync(this.path(`container-disks/${socket}`), this.path(`container-disks/kept-${socket}`));
    }
  }

  /** One that has nothing to repair. */
  private async startPasst(): Promise<void> {
    const passt = await this.start([], diskNamespaces, []);
    await passt.listen(passtSocket, 'close');
  }

  private async startAttachment(): Promise<void> {
    await this.attachment.attachment();
  }

  /** Puts back what calls have removed or left, in the pod's own volumes whatever is at their place now. */
  restore(): void {
    const [disks, sockets] = this.held;
    for (const socket of imageSockets) {
      try {
        linkSync(`/proc/self/fd/${disks}/kept-${socket}`, `/proc/self/fd/${disks}/${socket}`);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
    }
    rmSync(`/proc/self/fd/${sockets}/launcher-unresponsive`, { force: true });
  }

  /** Puts a listener of the launcher in the place of launcher-sock. */
  moveListener(entry: string): void {
    renameSync(this.path(entry), this.path('sockets/launcher-sock'));
  }

  private async start(namespaces: string[], script: string, words: string[]): Promise<PodProcess> {
    const container = `${this.processes.length}`;
    const command = ['-c', script, 'sh', ...this.cgroups.create(container), '--', ...words];
    const child = spawn('unshare', [...namespaces, '--', 'sh', ...command, process.execPath, program], {
      // Paths of sockets are short, and a launcher sees its volumes only.
      cwd: this.pod.volume('.'),
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const made = new PodProcess(child);
    this.processes.push(made);
    await made.started();
    return made;
  }

  /** Stops the launcher and fills the backlog of launcher-sock. Resolves to what undoes it. */
  async fillBacklog(): Promise<() => Promise<void>> {
    const { pid } = this.launcher;
    this.launcher.signal('SIGSTOP');
    await waitFor('launcher to stop', deadlineMs, () =>
      /^State:\tT/m.test(readIfThere(`/proc/${pid}/status`)),
    );
    // Addresses of sockets are short.
    const path = `/proc/self/fd/${this.held[1]}/launcher-sock`;
    const held: Socket[] = [];
    for (let failure: string | undefined; failure !== 'EAGAIN'; ) {
      failure = await new Promise<string | undefined>((resolve) => {
        const socket = connectSocket(path, () => resolve(undefined));
        socket.on('error', ({ code }: NodeJS.ErrnoException) => resolve(code));
        held.push(socket);
      });
      if (failure !== undefined && failure !== 'EAGAIN') throw new Error(`connect launcher-sock: ${failure}`);
    }
    return async () => {
      for (const socket of held) socket.destroy();
      this.launcher.signal('SIGCONT');
    };
  }

  async destroy(): Promise<void> {
    for (const fd of this.held) closeSync(fd);
    await this.cgroups.destroy(deadlineMs);
    await this.pod.destroy();
    await this.attachment.destroy();
  }
}
