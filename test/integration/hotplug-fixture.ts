/** A launcher pod with an attachment pod beside it, and what is plugged from one into the other. */
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { HotplugService, PlugKind } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { createAttachment, type DeviceNumbers } from '../harness/pods/attachment.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { type HelperOptions, HelperProcess } from './privhelper-fixture.js';

export const vmi = { namespace: 'default', name: 'vm1', vmiUid: '3f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f30' };
export const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };

interface Pods {
  readonly pod: Pod;
  readonly launcher: LauncherHandle;
  readonly attachment: Pod;
}

export class PluggingNode {
  #pods: Pods | undefined;

  private constructor(
    readonly node: HarnessNode,
    readonly helper: HelperProcess,
    /** Directory of the claims. */
    readonly claims: string,
  ) {}

  static async start(options: HelperOptions = {}): Promise<PluggingNode> {
    const claims = mkdtempSync(join(tmpdir(), 'vp-claims-'));
    chmodSync(claims, 0o755);
    const node = await createNode();
    const at = new PluggingNode(node, new HelperProcess(node.podsDir, options), claims);
    for (const name of ['data', 'dump', 'more']) at.makeClaim(name);
    mkdirSync(at.claim('empty'));
    await at.helper.start();
    return at;
  }

  async stop(): Promise<void> {
    await this.helper.destroy();
    await this.node.destroy();
    rmSync(this.claims, { recursive: true, force: true });
  }

  /** @param devices that the attachment pod may use */
  async createPods(devices: readonly DeviceNumbers[] = []): Promise<void> {
    const pod = await this.node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.9',
    });
    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    const attachment = await createAttachment(this.node, {
      podIP: '10.244.2.10',
      claims: ['data', 'dump', 'empty'].map((name) => ({ name, directory: this.claim(name) })),
      devices,
    });
    this.#pods = { pod, launcher, attachment };
  }

  /** Resolves to what is left of the pods. */
  async destroyPods(): Promise<unknown[]> {
    if (this.#pods !== undefined) await this.client().unplugAll({ pod: this.ref() });
    this.#pods = undefined;
    await this.node.destroyPods();
    return this.node.leftovers();
  }

  get pod(): Pod {
    return this.#existing().pod;
  }

  get launcher(): LauncherHandle {
    return this.#existing().launcher;
  }

  get attachment(): Pod {
    return this.#existing().attachment;
  }

  #existing(): Pods {
    if (this.#pods === undefined) throw new Error('no pods');
    return this.#pods;
  }

  ref() {
    return { podUid: this.pod.uid, vmiUid: vmi.vmiUid };
  }

  client() {
    return this.helper.client(HotplugService);
  }

  async plug(volume: string, kind = PlugKind.DISK, from = this.attachment, into = this.ref()) {
    const request = { pod: into, attachmentPodUid: from.uid, volume, kind };
    return (await this.client().plugFilesystem(request)).outcome;
  }

  async unplug(volume: string, kind = PlugKind.DISK): Promise<boolean> {
    return (await this.client().unplug({ pod: this.ref(), volume, kind })).changed;
  }

  /** Volumes whose entries and devices there are, as the helper lists them. */
  async facts() {
    const { volumes } = await this.client().list({ pod: this.ref() });
    return volumes.map(({ volume, present, known }) => ({ volume, present, known }));
  }

  /** Volume, kind, plugged, recorded. */
  async list() {
    const { volumes } = await this.client().list({ pod: this.ref() });
    return volumes
      .map(({ volume, kind, plugged, recorded }) => [volume, PlugKind[kind], plugged, recorded])
      .sort();
  }

  claim(name: string): string {
    return join(this.claims, name);
  }

  /** A claim with a disk.img of the name's own content, owned by root. */
  makeClaim(name: string): void {
    mkdirSync(this.claim(name));
    chmodSync(this.claim(name), 0o755);
    writeFileSync(join(this.claim(name), 'disk.img'), `image of ${name}`);
  }

  hostPath(name: string): string {
    return join(this.pod.emptyDir('hotplug-disks'), name);
  }

  /** As the launcher has it. */
  seen(name: string): string {
    return `/proc/${this.launcher.pid}/root/run/kubevirt/hotplug-disks/${name}`;
  }

  record(): string {
    return join(this.helper.hotplugStateDir, vmi.vmiUid);
  }

  /** What the record says of a volume. */
  entry(name: string) {
    return { targetFile: this.hostPath(name) };
  }

  /** Of the launcher's mounts those of volumes. */
  mounts(): string[] {
    return readFileSync(`/proc/${this.launcher.pid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/hotplug-disks/'));
  }
}
