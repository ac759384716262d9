/**
 * The helper on a host of its own (mount and network namespace), with a pod that is attacked or attacks, a
 * bystander pod and a tree outside of every pod. What is not the attacked pod's must never change.
 */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect } from 'vitest';
import { HelperService } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { run, waitFor } from '../../harness/pods/run.js';
import { HelperProcess } from '../../integration/privhelper-fixture.js';
import { descriptorsOf, mountsOf, networkOf, threadsOf, treeOf } from './host-snapshot.js';
import { type HostileMethod, methodNamed, methods } from './methods.js';
import { leaveForeignMounts, WholePod } from './pod.js';
import { type Answer, Wire } from './wire.js';

const deadlineMs = 10_000;

/** What is answered to methods that have nothing to work on in these pods. */
const unfit: ReadonlyMap<string, readonly string[]> = new Map([
  // A launcher that lives is not to be marked.
  ['PodService.MarkUnresponsive', ['permission_denied']],
  // The kernel need not have the address.
  ['SocketService.ListenVsock', ['', 'failed_precondition']],
  // There is no QEMU.
  ['ResourceService.ScheduleVcpus', ['not_found']],
  ['ResourceService.AffinePit', ['not_found']],
]);

export class World {
  /** Outside of every pod; has an entry of each type. */
  readonly outside = mkdtempSync(join(tmpdir(), 'canary-'));
  readonly image: string;
  private readonly canaries: Server[] = [];
  private contacts = 0;
  private readonly wires = new Map<HostileMethod['socket'], Wire>();
  private readonly pods: WholePod[] = [];
  private before = '';
  private canaryBefore: string[] = [];
  private descriptors: string[] = [];
  private threads = 0;

  private constructor(
    readonly helper: HelperProcess,
    private readonly policyDir: string,
  ) {
    this.image = join(helper.base, 'image.raw');
    writeFileSync(this.image, Buffer.alloc(4096, 7));
  }

  /** `limits`: of the policy. */
  static async create(limits: Readonly<Record<string, number>> = {}): Promise<World> {
    const file = join(mkdtempSync(join(tmpdir(), 'policy-')), 'policy.yaml');
    const lines = Object.entries(limits).map(([name, value]) => `  ${name}: ${value}\n`);
    writeFileSync(file, `version: 1\n${lines.length === 0 ? '' : `limits:\n${lines.join('')}`}`);
    const alone = ['unshare', '--mount', '--net', '--', 'sh', '-c', `${leaveForeignMounts}\nexec "$@"`, 'sh'];
    const helper = new HelperProcess(undefined, { flags: { '--policy': file }, prefix: alone });
    const world = new World(helper, dirname(file));
    try {
      await helper.start();
      await world.synced();
      world.descriptors = descriptorsOf(helper.pid);
      await world.plantCanaries();
      world.bystanderPod = await WholePod.create(helper, world.image);
      await world.warmUp();
    } catch (error) {
      await world.destroy();
      throw error;
    }
    return world;
  }

  async restartHelper(): Promise<void> {
    await this.helper.stop();
    await this.helper.start();
    this.wires.clear();
  }

  private bystanderPod: WholePod | undefined;

  get bystander(): WholePod {
    if (this.bystanderPod === undefined) throw new Error('the world has no bystander');
    return this.bystanderPod;
  }

  async pod(): Promise<WholePod> {
    const pod = await WholePod.create(this.helper, this.image);
    this.pods.push(pod);
    return pod;
  }

  /** A socket of a process outside every pod. */
  get canarySocket(): string {
    return join(this.outside, 'listener.sock');
  }

  get canaryFile(): string {
    return join(this.outside, 'file');
  }

  /**
   * That process listens at another path, too. A socket that stands in a pod's volume can only be told from the
   * pod's own by whose it is, and that is known when it is connected: nothing may be sent.
   */
  async listenAlso(path: string): Promise<void> {
    await this.listen(path, (socket) => {
      socket.on('data', ({ length }) => {
        this.contacts += length;
      });
    });
  }

  private async listen(path: string, onConnection: (socket: Socket) => void): Promise<void> {
    const server = createServer(onConnection);
    this.canaries.push(server);
    await new Promise<void>((resolve) => server.listen(path, resolve));
    chmodSync(path, 0o777);
  }

  /** Runs a program in the helper's mount namespace. */
  inMountNamespace(command: string, args: readonly string[]): Promise<string> {
    return run('nsenter', [`--mount=/proc/${this.helper.pid}/ns/mnt`, '--', command, ...args]);
  }

  /** Takes off what is mounted there in the helper's mount namespace, unless the helper has done so. */
  async unmount(path: string): Promise<void> {
    if (mountsOf(this.helper.pid).some((mounts) => mounts.includes(` ${path} `))) {
      await this.inMountNamespace('umount', ['-l', path]);
    }
  }

  private async plantCanaries(): Promise<void> {
    mkdirSync(join(this.outside, 'directory'));
    for (const name of ['file', 'directory/disk_0.img', 'directory/launcher-sock']) {
      writeFileSync(join(this.outside, name), 'canary', { mode: 0o600 });
    }
    symlinkSync('file', join(this.outside, 'link'));
    await run('mkfifo', ['-m', '600', join(this.outside, 'fifo')]);
    await run('mknod', ['-m', '600', join(this.outside, 'tun'), 'c', '10', '200']);
    await this.listen(this.canarySocket, () => {
      this.contacts += 1;
    });
  }

  /** The helper has looked at every pod, does nothing by itself any more and has no connection. */
  private async synced(): Promise<void> {
    const sockets = () => descriptorsOf(this.helper.pid).filter((what) => what === 'socket').length;
    const listening = sockets();
    const abort = new AbortController();
    for await (const { event } of this.helper.client(PodService).watch({}, { signal: abort.signal })) {
      if (event.case === 'synced') break;
    }
    abort.abort();
    await this.disconnect();
    await waitFor('connection to be closed', deadlineMs, () => sockets() === listening);
  }

  /** Makes every call once, so that what is made once is there before anything is counted. */
  private async warmUp(): Promise<void> {
    const pod = await this.pod();
    for (const hostile of methods) {
      const { code, text } = await this.callFor(hostile, pod);
      const expected = unfit.get(hostile.name) ?? [''];
      expect(expected, `${hostile.name} for a pod that behaves: ${text}`).toContain(code);
    }
    const { podUid, vmiUid } = this.bystander.target;
    await this.helper.client(PodService).identify({ pod: { podUid, vmiUid } });
    await this.removePods();
    await this.disconnect();
    // At the start, and the pin of the bystander: its process and two namespaces.
    this.descriptors = [...this.descriptors, 'anon_inode:[pidfd]', 'anon_inode:[pidfd]', 'mnt', 'net'].sort();
    this.threads = threadsOf(this.helper.pid);
  }

  wire(socket: HostileMethod['socket']): Wire {
    const open = this.wires.get(socket);
    if (open !== undefined && !open.session.closed && !open.session.destroyed) return open;
    const made = new Wire(this.helper, socket);
    this.wires.set(socket, made);
    return made;
  }

  call(hostile: HostileMethod, bytes: Uint8Array): Promise<Answer> {
    return this.wire(hostile.socket).call(hostile.method, bytes);
  }

  /** A right request of a method for a pod. */
  callFor(hostile: HostileMethod, pod: WholePod): Promise<Answer> {
    return this.call(hostile, hostile.encode(pod.target));
  }

  async disconnect(): Promise<void> {
    await Promise.all([...this.wires.values()].map((wire) => wire.close()));
    this.wires.clear();
    this.helper.disconnect();
  }

  /** Remembers the host as it is. */
  async remember(): Promise<void> {
    this.contacts = 0;
    this.before = await this.state();
    this.canaryBefore = treeOf(this.outside);
  }

  /** The host is as it was remembered, and nobody outside the attacked pod was contacted. */
  async expectUnchanged(what = ''): Promise<void> {
    expect(await this.state(), what).toBe(this.before);
    expect(this.contacts, `connections to the canary ${what}`).toBe(0);
  }

  /** Also ends the attacked pods; afterwards the helper holds no more than at the start, and answers. */
  async expectHealthy(): Promise<void> {
    await this.removePods();
    await this.disconnect();
    const { pid } = this.helper;
    await waitUntilEqual('descriptors', () => descriptorsOf(pid), this.descriptors);
    await waitUntilEqual('threads', () => threadsOf(pid), this.threads);
    await this.helper.client(HelperService).health({});
    await this.disconnect();
  }

  async removePods(): Promise<void> {
    await Promise.all(this.pods.splice(0).map((pod) => pod.destroy()));
  }

  /** Only of the tree outside and of the connections: quick, for each of many attacks. */
  expectCanaryUnchanged(what: string): void {
    expect(treeOf(this.outside), what).toEqual(this.canaryBefore);
    expect(this.contacts, `connections to the canary: ${what}`).toBe(0);
  }

  private async state(): Promise<string> {
    const { pid } = this.helper;
    return [
      ...mountsOf(pid),
      await networkOf(pid),
      await networkOf(this.bystander.launcher.pid),
      ...mountsOf(this.bystander.launcher.pid),
      ...treeOf(this.outside),
      ...treeOf(this.bystander.directory),
    ].join('\n');
  }

  async destroy(): Promise<void> {
    await this.removePods();
    for (const server of this.canaries) server.close();
    await this.disconnect();
    await this.bystanderPod?.destroy();
    await this.helper.destroy();
    for (const directory of [this.outside, this.policyDir]) rmSync(directory, { recursive: true });
  }

  /**
   * Waits until the audit log has that many refusals since a line, written or counted. What was only counted
   * goes with the next one that is written, so refusals are made for that.
   */
  async expectRefusals(count: number, since: number): Promise<void> {
    let expected = count;
    await waitFor(`audit of ${count} refusals`, deadlineMs, async () => {
      if (this.refusals(since) === expected) return true;
      const before = this.refusals(since);
      if (before > expected) throw new Error(`${before} refusals, not ${expected}`);
      // On the operators' socket, which what the agent does leaves free.
      const { code } = await this.call(methodNamed('InspectService.GetCgroup'), new Uint8Array());
      if (code === 'invalid_argument') expected += 1;
      return false;
    }).catch((error: Error) => {
      throw new Error(`${error.message}: ${this.refusals(since)} of ${expected}`);
    });
  }

  /** Refusals in the audit log, also those that were only counted. */
  private refusals(since: number): number {
    const lines = this.helper.audit().slice(since);
    const written = lines.filter(({ event, decision }) => event !== 'suppressed' && decision === 'refused');
    return written.length + lines.reduce((sum, line) => sum + Number(line['suppressed'] ?? 0), 0);
  }
}

/** Waits for it; what is different is told when it does not come. Later the helper may look at pods again. */
async function waitUntilEqual<T>(what: string, current: () => T, expected: T): Promise<void> {
  const wanted = JSON.stringify(expected);
  let last = current();
  await waitFor(what, deadlineMs, () => {
    last = current();
    return JSON.stringify(last) === wanted;
  }).catch(() => expect(last, what).toEqual(expected));
}
