/** A node for a fuzz run: two launcher pods to be called about, a third one and a canary that nothing may touch. */
import { createHash, randomUUID } from 'node:crypto';
import {
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { startLauncher } from '../harness/launcher/start.js';
import { linkNames, runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { HelperProcess, TestPod } from '../integration/privhelper-fixture.js';
import type { Targets } from './values.js';

/** Bounds that keep a flood of calls from being refused before it is looked at. */
const policy = `version: 1
audit: { maxBytes: 1099511627776 }
limits:
  maxWaitingPerPod: 256
  maxConnections: 64
  maxCalls: 1024
  maxTickets: 1024
  ticketTtlMs: 1000
`;

/** A launcher that is asked to start nothing ends after this time; longer than any run. */
const qemuTimeoutSeconds = 86_400;

export class World {
  private restoring: Promise<void> = Promise.resolve();

  private constructor(
    readonly node: HarnessNode,
    readonly helper: HelperProcess,
    readonly pods: readonly Pod[],
    private readonly launchers: readonly number[],
    private readonly attachment: TestPod,
    private readonly stranger = randomUUID(),
    private readonly silent = { podUid: randomUUID(), vmiUid: randomUUID() },
  ) {}

  static async create(): Promise<World> {
    const node = await createNode();
    const helper = new HelperProcess(node.podsDir, {
      flags: { '--policy': join(node.root, 'policy.yaml') },
    });
    try {
      writeFileSync(join(node.root, 'policy.yaml'), policy, { mode: 0o600 });
      const image = join(node.root, 'disk.raw');
      writeFileSync(image, Buffer.alloc(4096, 7));
      const pods: Pod[] = [];
      const launchers: number[] = [];
      for (const [i, name] of ['alpha', 'bravo', 'bystander'].entries()) {
        const vmi = { namespace: 'default', name, vmiUid: randomUUID() };
        const pod = await node.createPod({
          name: `virt-launcher-${name}-abcde`,
          vmiUid: vmi.vmiUid,
          podIP: `10.244.2.${5 + i}`,
          containerDisks: [1, 2].map((index) => ({ index, image })),
          kernelBoot: { '/boot/vmlinuz': image },
        });
        await pod.addClaim('claim', ['-t', 'tmpfs', '-o', 'size=1m,mode=755', 'tmpfs']);
        const directory = join(node.root, `${name}-disks`);
        mkdirSync(directory);
        pod.addHostPath('node', directory);
        pod.addBlockDevice('blk', 7, 0);
        await runInNetns(pod.pausePid, 'ip', ['link', 'add', 'net1', 'type', 'veth', 'peer', 'name', 'far1']);
        launchers.push((await startLauncher(pod, { ...vmi, machine: 'fake', qemuTimeoutSeconds })).pid);
        pods.push(pod);
      }
      const attachment = new TestPod(helper, ['hotplug-disks']);
      await attachment.attachment();
      const world = new World(node, helper, pods, launchers, attachment);
      world.layTraps();
      await helper.start();
      return world;
    } catch (error) {
      await helper.destroy();
      await node.destroy();
      throw error;
    }
  }

  /** The third pod is not among them. */
  get targets(): Targets {
    const pods = this.pods.slice(0, 2).map(({ uid, vmiUid }) => ({ podUid: uid, vmiUid }));
    return {
      pods,
      silent: this.silent,
      attachment: this.attachment.podUid,
      others: [this.stranger, '00000000-0000-4000-8000-000000000000'],
    };
  }

  /** Everything that no call may change, as text: what differs afterwards was changed by one. */
  async untouchable(): Promise<string> {
    const [, , bystander] = this.pods;
    if (bystander === undefined) throw new Error('no bystander');
    const links = await linkNames(bystander.pausePid);
    return [
      ...describeTree(this.canary),
      ...describeTree(join(this.node.podsDir, this.stranger)),
      ...describeTree(join(bystander.directory, 'volumes')),
      ...describeTree(`/proc/${this.launchers[2]}/root/dev`),
      readFileSync(`/proc/${this.launchers[2]}/mountinfo`, 'utf8'),
      `links of the bystander: ${links.sort().join(' ')}`,
      `pods: ${readdirSync(this.node.podsDir).sort().join(' ')}`,
      `links of the node: ${(await linkNames(this.node.netnsPid)).sort().join(' ')}`,
      ...['/dev/null', '/dev/net/tun', '/dev/kvm'].map(ownerOf),
    ].join('\n');
  }

  /** Starts what ended when a pod's container disks were unmounted. Not while others are started. */
  restoreDisks(podUid: string): Promise<void> {
    const pod = this.pods.find(({ uid }) => uid === podUid);
    // A call may unmount them again meanwhile; the start that fails then is made up for by that call's own.
    this.restoring = this.restoring.then(() => pod?.startContainerDisks()).catch(() => undefined);
    return this.restoring;
  }

  /** Gives back their names and addresses to pod links whose bridge binding was undone. */
  async restoreLinks(): Promise<void> {
    for (const pod of this.pods.slice(0, 2)) {
      const restore = (link: string, ...more: string[]) =>
        `ip link show ${link} >&2 || { ip link set ${link}-nic down name ${link} && ip link set ${link} up; ${more.join(' ')} }`;
      const script = [
        restore(
          'eth0',
          `ip addr add ${pod.podIP}/${this.node.prefixLength} dev eth0;`,
          `ip route add default via ${this.node.gateway};`,
        ),
        restore('net1'),
      ];
      // While calls go on a link may just be somewhere else; then it is the next time's.
      await runInNetns(pod.pausePid, 'sh', ['-c', `exec 2>/dev/null; ${script.join('; ')}; true`]);
    }
  }

  /** Launchers that have ended. */
  get ended(): number[] {
    return this.launchers.filter((pid) => ownerOf(`/proc/${pid}`).endsWith('absent'));
  }

  async destroy(): Promise<void> {
    await this.helper.destroy();
    await this.attachment.destroy();
    for (const uid of [this.stranger, this.silent.podUid]) {
      rmSync(join(this.node.podsDir, uid), { recursive: true, force: true });
    }
    await this.node.destroy();
  }

  private get canary(): string {
    return join(this.node.root, 'canary');
  }

  /** Links out of the pods' volumes, a pod that is none of a launcher, and one whose launcher has not started. */
  private layTraps(): void {
    mkdirSync(this.canary);
    writeFileSync(join(this.canary, 'secret'), 'secret', { mode: 0o600 });
    for (const pod of this.pods.slice(0, 2)) {
      symlinkSync(join(this.canary, 'secret'), join(pod.emptyDir('private'), 'vif-cache-net2.json'));
      symlinkSync(join(this.canary, 'secret'), join(pod.emptyDir('container-disks'), 'disk_3.sock'));
      symlinkSync(this.canary, join(pod.emptyDir('container-disks'), 'disk_4.img'));
      const passt = join(pod.emptyDir('libvirt-runtime'), 'qemu/run/passt');
      mkdirSync(passt, { recursive: true });
      symlinkSync(join(this.canary, 'secret'), join(passt, '1.socket.repair'));
      const isos = join(pod.emptyDir('private'), 'config-map-disks');
      mkdirSync(isos);
      writeFileSync(join(isos, 'config.iso'), 'iso');
      symlinkSync(join(this.canary, 'secret'), join(isos, 'linked.iso'));
      const disks = join(pod.emptyDir('private'), 'vmi-disks');
      mkdirSync(join(disks, 'plain'));
      symlinkSync(this.canary, join(disks, 'linked'));
      const claim = join(pod.directory, 'volumes/kubernetes.io~csi/pvc-claim/mount');
      symlinkSync(join(this.canary, 'secret'), join(claim, 'linked.img'));
      mkdirSync(join(claim, 'directory'));
      symlinkSync(join(this.canary, 'secret'), join(pod.emptyDir('virtiofs-containers'), 'linked.sock'));
    }
    for (const volume of ['sockets', 'public', 'private', 'container-disks']) {
      const directory = join(
        this.node.podsDir,
        this.silent.podUid,
        'volumes/kubernetes.io~empty-dir',
        volume,
      );
      mkdirSync(directory, { recursive: true });
    }
    for (const volume of ['kubernetes.io~empty-dir/data', 'kubernetes.io~secret/token']) {
      const directory = join(this.node.podsDir, this.stranger, 'volumes', volume);
      mkdirSync(directory, { recursive: true });
      writeFileSync(join(directory, 'file'), 'secret', { mode: 0o600 });
    }
  }
}

function describeTree(path: string): string[] {
  const entry = lstatSync(path);
  const { mode, uid, gid, size, mtimeMs } = entry;
  const content = entry.isSymbolicLink()
    ? readlinkSync(path)
    : entry.isFile()
      ? createHash('sha256').update(readFileSync(path)).digest('hex')
      : '';
  const line = `${path} ${mode.toString(8)} ${uid}:${gid} ${size} ${mtimeMs} ${content}`;
  const inside = entry.isDirectory() ? readdirSync(path).sort() : [];
  return [line, ...inside.flatMap((name) => describeTree(join(path, name)))];
}

function ownerOf(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false });
  return `${path} ${stat === undefined ? 'absent' : `${stat.mode.toString(8)} ${stat.uid}:${stat.gid}`}`;
}
