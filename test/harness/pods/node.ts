/** A node of the harness: kubelet's directory, a pod network, and the pods on it. */

import { randomBytes } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { providePrograms } from './bundle.js';
import { heldByProcesses, type NamespaceOwner, runVariable } from './leftovers.js';
import { makeShared, mountsBelow, unmountBelow } from './mounts.js';
import { linkNames, runInNetns, setUpNodeNetwork } from './network.js';
import { Pod } from './pod.js';
import type { PodNode, PodOptions } from './pod-options.js';
import { readlinkIfThere, uptime } from './proc.js';
import { removeTree } from './remove.js';
import { type Spawned, signal, start, succeeds, waitFor } from './run.js';

const deadlineMs = 20_000;
/** For a helper or agent to close what it held of a pod. */
const letGoMs = 5000;

export interface NodeOptions {
  /** Node name (default `node01`). */
  readonly name?: string;
  /** Address of the pods' gateway (default 10.244.2.1). */
  readonly gateway?: string;
  readonly prefixLength?: number;
  /** MTU of pod links (default 1450). */
  readonly mtu?: number;
}

export class HarnessNode implements PodNode, NamespaceOwner {
  readonly name: string;
  readonly runId = randomBytes(8).toString('hex');
  /** Everything of this node on disk is below it. */
  readonly root: string;
  /** kubelet's root directory, a shared mount. */
  readonly kubeletRoot: string;
  readonly podsDir: string;
  readonly workDir: string;
  readonly programsDir: string;
  readonly gateway: string;
  readonly prefixLength: number;
  readonly mtu: number;
  readonly #pods = new Set<Pod>();
  readonly namespaces = new Set<string>();
  #holder: Spawned | undefined;
  #destroyed: Promise<void> | undefined;
  #endedAt: number | undefined;

  /** Use createNode. */
  constructor(options: NodeOptions) {
    this.name = options.name ?? 'node01';
    this.gateway = options.gateway ?? '10.244.2.1';
    this.prefixLength = options.prefixLength ?? 24;
    this.mtu = options.mtu ?? 1450;
    this.root = mkdtempSync(join(tmpdir(), 'vp-'));
    chmodSync(this.root, 0o755);
    this.kubeletRoot = join(this.root, 'kubelet');
    this.podsDir = join(this.kubeletRoot, 'pods');
    this.workDir = join(this.root, 'work');
    this.programsDir = join(this.root, 'programs');
  }

  /** Seconds since boot; undefined until it was destroyed. */
  get endedAt(): number | undefined {
    return this.#endedAt;
  }

  /** A process in the node's network namespace. */
  get netnsPid(): number {
    if (this.#holder === undefined) throw new Error(`node ${this.name} has no network namespace yet`);
    return this.#holder.pid;
  }

  async create(): Promise<void> {
    mkdirSync(this.kubeletRoot, { mode: 0o755 });
    mkdirSync(this.workDir, { mode: 0o755 });
    mkdirSync(this.programsDir, { mode: 0o755 });
    await makeShared(this.kubeletRoot);
    mkdirSync(this.podsDir, { mode: 0o750 });
    await providePrograms(this.programsDir);
    const own = readlinkSync('/proc/self/ns/net');
    const holder = start('unshare', ['--net', '--', 'sleep', 'infinity'], {
      stdio: 'ignore',
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '', [runVariable]: this.runId },
    });
    this.#holder = holder;
    const netns = await waitFor('network namespace of the node', deadlineMs, () => {
      const link = readlinkIfThere(`/proc/${holder.pid}/ns/net`);
      return link !== undefined && link !== own && link;
    });
    this.namespaces.add(netns);
    await setUpNodeNetwork(holder.pid, this.gateway, this.prefixLength, this.mtu);
  }

  /** Creates a pod and starts its pause and container-disk containers; removes it again when that fails. */
  async createPod(options: PodOptions): Promise<Pod> {
    const pod = new Pod(this, options);
    this.#pods.add(pod);
    try {
      await pod.create();
    } catch (error) {
      await pod.destroy();
      throw error;
    }
    return pod;
  }

  /** True when `ip` answers an echo request that is sent from the node. */
  ping(ip: string): Promise<boolean> {
    return succeeds('nsenter', [
      `--net=/proc/${this.netnsPid}/ns/net`,
      '--',
      '/usr/bin/python3',
      join(this.programsDir, 'ping.py'),
      ip,
    ]);
  }

  /** Runs a program in the node's network namespace. */
  runInNetwork(command: string, args: readonly string[]): Promise<string> {
    return runInNetns(this.netnsPid, command, args);
  }

  /** What is `present()` after a while in which others may notice that a pod has ended, and let go of it. */
  async leftovers(): Promise<string[]> {
    let found: string[] = [];
    await waitFor('nothing to be left', letGoMs, async () => {
      found = await this.present();
      return found.length === 0;
    }).catch(() => undefined);
    return found;
  }

  /**
   * Everything that belongs to pods of this node, one line each: processes, namespaces held by
   * anyone, mounts, links, cgroups, directories. Empty after all pods were destroyed; the node's own
   * things are not listed until it is destroyed too.
   */
  async present(): Promise<string[]> {
    const alive = this.#destroyed === undefined;
    const pods = [...this.#pods];
    const found = alive
      ? heldByProcesses(this.runId, pods, new Set([this.netnsPid]))
      : heldByProcesses(this.runId, [...pods, this], new Set());
    for (const directory of alive ? [this.podsDir, this.workDir] : [this.root]) {
      found.push(...mountsBelow(directory).map((mount) => `mount ${mount}`));
    }
    if (alive) {
      const links = (await linkNames(this.netnsPid)).filter((name) => name.startsWith('veth'));
      found.push(...links.map((name) => `link ${name}`));
      found.push(...readdirSync(this.podsDir).map((name) => `directory ${join(this.podsDir, name)}`));
    } else if (existsSync(this.root)) {
      found.push(`directory ${this.root}`);
    }
    found.push(...pods.flatMap((pod) => pod.cgroupDirectories().map((cgroup) => `cgroup ${cgroup}`)));
    return found;
  }

  /** Destroys all pods. */
  async destroyPods(): Promise<void> {
    await Promise.all([...this.#pods].map((pod) => pod.destroy()));
  }

  /** Destroys all pods and the node itself. May be called at any time, more than once. */
  destroy(): Promise<void> {
    this.#destroyed ??= this.#destroy();
    return this.#destroyed;
  }

  async #destroy(): Promise<void> {
    await this.destroyPods();
    if (this.#holder !== undefined) {
      signal(this.#holder.pid, 'SIGKILL');
      await this.#holder.exited;
    }
    this.#endedAt = uptime();
    await unmountBelow(this.root);
    await removeTree(this.root);
  }
}

/** Makes a node. The caller destroys it. Needs root. */
export async function createNode(options: NodeOptions = {}): Promise<HarnessNode> {
  const node = new HarnessNode(options);
  try {
    await node.create();
  } catch (error) {
    await node.destroy();
    throw error;
  }
  return node;
}
