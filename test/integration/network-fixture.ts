/** A launcher pod whose network a locked-down helper process sets up, and what the pod's network looks like. */

import type { AttachmentPlan, NetworkPlan, NetworkState } from '../../native/binding.js';
import { type LauncherHandle, startLauncher } from '../harness/launcher/start.js';
import { runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { succeeds } from '../harness/pods/run.js';
import { caps, NativeChild } from './native-child.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f11' };
const identify = { caps: caps('DAC_OVERRIDE', 'SYS_PTRACE'), deadlineMs: 5000 };
const observe = { caps: caps('SYS_ADMIN', 'SYS_PTRACE'), deadlineMs: 5000 };
const change = {
  caps: caps('CHOWN', 'DAC_OVERRIDE', 'NET_ADMIN', 'SYS_ADMIN', 'SYS_PTRACE'),
  deadlineMs: 15_000,
};

export const masquerade: AttachmentPlan = {
  podInterface: 'eth0',
  primary: true,
  index: 0,
  queues: 0,
  binding: {
    kind: 'masquerade',
    ipv4: { network: '10.0.2.0', prefixLength: 24 },
    ipv6: { network: 'fd10:0:2::', prefixLength: 120 },
    ports: [],
    istio: false,
    migrationOverTcp: false,
  },
};
export const bridge: AttachmentPlan = { ...masquerade, binding: { kind: 'bridge' } };

export function planOf(...attachments: AttachmentPlan[]): NetworkPlan {
  return { attachments, detachments: [], uid: 107, gid: 107 };
}

/** Not every kernel has dummy links. */
export function kernelHasDummy(): Promise<boolean> {
  return succeeds('unshare', ['--net', '--', 'ip', 'link', 'add', 'probe', 'type', 'dummy']);
}

export interface Forbidden {
  readonly dev: bigint;
  readonly ino: bigint;
}

/** A pod with its pinned launcher. */
export class NetworkPod {
  constructor(
    readonly pod: Pod,
    readonly child: NativeChild,
    readonly launcher: unknown,
  ) {}

  apply(plan: NetworkPlan, forbidden: readonly Forbidden[] = []): Promise<boolean> {
    return this.child.call('applyNetwork', change, this.launcher, forbidden, plan, false);
  }

  /** `selinuxEnforces` counts where taps are to have labels. */
  failure(plan: NetworkPlan, forbidden: readonly Forbidden[] = [], selinuxEnforces = false) {
    return this.child.failure('applyNetwork', change, this.launcher, forbidden, plan, selinuxEnforces);
  }

  observe(): Promise<NetworkState> {
    return this.child.call('observeNetwork', observe, this.launcher, []);
  }

  observeFailure(forbidden: readonly Forbidden[]) {
    return this.child.failure('observeNetwork', observe, this.launcher, forbidden);
  }

  run(command: string, ...args: string[]): Promise<string> {
    return runInNetns(this.pod.pausePid, command, args);
  }

  shell(script: string): Promise<string> {
    return this.run('sh', '-c', script);
  }

  async json<T>(command: string, ...args: string[]): Promise<T> {
    return JSON.parse(await this.run(command, ...args)) as T;
  }
}

/** A node with a helper process. Pods are made one by one. */
export class NetworkNode {
  readonly #launchers: LauncherHandle[] = [];
  #nextAddress = 5;

  private constructor(
    readonly node: HarnessNode,
    readonly child: NativeChild,
    private readonly podsFd: number,
  ) {}

  /** `selinux`: the helper process acts as on a node where SELinux is active. */
  static async create({ selinux = false } = {}): Promise<NetworkNode> {
    const node = await createNode();
    const child = await NativeChild.start([node.podsDir], 4, selinux);
    const [podsFd = -1] = await child.call<number[]>('directories');
    return new NetworkNode(node, child, podsFd);
  }

  async createPod(): Promise<NetworkPod> {
    const pod = await this.node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: `10.244.2.${this.#nextAddress++}`,
      mac: '0a:58:0a:f4:02:05',
    });
    this.#launchers.push(await startLauncher(pod, { ...vmi, machine: 'fake' }));
    const launcher = await this.child.call('pinLauncher', identify, this.podsFd, pod.uid);
    return new NetworkPod(pod, this.child, launcher);
  }

  async destroyPods(): Promise<void> {
    this.#launchers.length = 0;
    await this.node.destroyPods();
  }

  async destroy(): Promise<void> {
    await this.child.stop();
    await this.node.destroy();
  }
}
