/**
 * Helper and agent as the containers of the rendered DaemonSets, run by crun: kubelet, CNI and container
 * runtime for the product's own pods.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ApiServer } from '../apiserver/api-server.js';
import { cgroupHierarchies } from '../pods/cgroup.js';
import { runVariable } from '../pods/leftovers.js';
import type { HarnessNode } from '../pods/node.js';
import { readIfThere, readlinkIfThere } from '../pods/proc.js';
import { removeTree } from '../pods/remove.js';
import { run, type Spawned, signal, start, waitFor } from '../pods/run.js';
import type { Component, ProgramName, ProgramPaths, Programs } from '../system/programs.js';
import type { Image } from './image.js';
import { type ContainerSpec, container, type PodSpec, type Volume } from './manifest.js';
import { ociConfig } from './oci.js';

const startMs = 20_000;
const namespace = 'kubevirt';
/** Numbers of /dev/net/tun. */
export const tunDevice = 'c 10:200';

export interface ContainersOptions {
  readonly image: Image;
  /** Pod with the container `virt-privhelper`. */
  readonly helperPod: PodSpec;
  /** Pod with the container `virt-handler`; the same object when it is the same pod. */
  readonly agentPod: PodSpec;
  /** What the runtime grants beyond its defaults (default: /dev/net/tun). */
  readonly grantedDevices?: readonly string[];
}

interface Running {
  readonly spec: PodSpec;
  readonly uid: string;
  readonly pause: Spawned;
  readonly api: { readonly host: string; readonly podIP: string };
}

export class Containers implements Programs {
  readonly paths: ProgramPaths;
  readonly #root: string;
  readonly #pods: Running[] = [];
  readonly #ids = new WeakMap<Spawned, string>();
  readonly #started: { readonly directory: string; readonly cgroupsPath: string }[] = [];
  #options: ContainersOptions;
  #api: ApiServer | undefined;

  private constructor(
    private readonly node: HarnessNode,
    options: ContainersOptions,
  ) {
    this.#options = options;
    this.#root = join(node.root, 'product-pods');
    this.paths = {
      socketDir: this.#hostPath('/run/virt-privsep'),
      privateDir: this.#hostPath('/var/run/kubevirt-private'),
      mountRecordDir: this.#hostPath('/var/run/kubevirt-private/container-disk-mount-state'),
      hotplugRecordDir: this.#hostPath('/var/run/kubevirt-private/hotplug-volume-mount-state'),
      pluggedDevicesDir: this.#hostPath('/var/run/kubevirt-private/plugged-block-devices'),
      auditFile: this.#hostPath('/var/log/virt-privsep/audit.jsonl'),
    };
  }

  static async create(node: HarnessNode, options: ContainersOptions): Promise<Containers> {
    const containers = new Containers(node, options);
    mkdirSync(containers.#root);
    try {
      const { helperPod, agentPod } = options;
      for (const spec of helperPod === agentPod ? [helperPod] : [helperPod, agentPod]) {
        containers.#pods.push(await containers.#createPod(spec));
      }
    } catch (error) {
      await containers.destroy();
      throw error;
    }
    return containers;
  }

  get apiHost(): string {
    return this.#podOf('agent').api.host;
  }

  connect(api: ApiServer): void {
    this.#api = api;
  }

  /** Later starts use these manifests. Pods, volumes and namespaces stay. */
  use(change: Pick<ContainersOptions, 'helperPod' | 'agentPod' | 'grantedDevices'>): void {
    this.#options = { ...this.#options, ...change };
  }

  /** The agent's start runs the pod's init containers before. */
  async start(which: ProgramName, extra: readonly string[], log: number): Promise<Component> {
    const pod = this.#podOf(which);
    const spec = which === 'helper' ? this.#options.helperPod : this.#options.agentPod;
    if (which === 'agent') {
      for (const init of spec.initContainers ?? []) {
        const { process } = await this.#launch(pod, spec, init, [], log);
        const { code } = await process.exited;
        if (code !== 0) throw new Error(`init container ${init.name} ended with ${code}`);
      }
    }
    const name = which === 'helper' ? 'virt-privhelper' : 'virt-handler';
    // Process 1 of a sandboxed machine may be out of reach; the harness runs in the host's namespace, too.
    const args =
      which === 'helper'
        ? [
            '--host-netns',
            `/proc/${process.pid}/ns/net`,
            '--host-cgroupns',
            `/proc/${process.pid}/ns/cgroup`,
            ...extra,
          ]
        : extra;
    return this.#launch(pod, spec, container(spec, name), args, log);
  }

  /** Runs a program in the container of a running program, as `kubectl exec` does. Resolves to its output. */
  exec({ process }: Component, ...command: readonly string[]): Promise<string> {
    const id = this.#ids.get(process);
    if (id === undefined) throw new Error('no such container');
    const crun = `exec crun --root ${this.#crunDirectory} --cgroup-manager=cgroupfs exec ${id} "$@"`;
    const script = ['set -e', ...cgroupView(), crun].join('\n');
    return run('unshare', ['--mount', '--propagation', 'slave', '--', 'sh', '-c', script, 'sh', ...command]);
  }

  async destroy(): Promise<void> {
    for (const { pause } of this.#pods) {
      signal(pause.pid, 'SIGKILL');
      await pause.exited;
    }
    for (const { cgroupsPath } of this.#started) await this.#removeCgroups(cgroupsPath);
    await removeTree(this.#root);
  }

  get #crunDirectory(): string {
    return join(this.#root, 'crun');
  }

  #podOf(which: ProgramName): Running {
    const pod = which === 'helper' ? this.#pods[0] : this.#pods.at(-1);
    if (pod === undefined) throw new Error('no pod');
    return pod;
  }

  /** The pod's network namespace, with a link to the host in place of a CNI network. */
  async #createPod(spec: PodSpec): Promise<Running> {
    const pause = start('unshare', ['--net', '--ipc', '--uts', '--', 'sleep', 'infinity'], {
      stdio: 'ignore',
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '', [runVariable]: this.node.runId },
    });
    const own = readlinkSync('/proc/self/ns/net');
    await waitFor('network namespace of the pod', startMs, () => {
      const link = readlinkIfThere(`/proc/${pause.pid}/ns/net`);
      return link !== undefined && link !== own;
    });
    const [a = 0, b = 0] = randomBytes(2);
    const address = (last: number) => `169.254.${a}.${(b & 0xfc) + last}`;
    const link = `vpp${randomBytes(4).toString('hex')}`;
    const pid = String(pause.pid);
    await run('ip', ['link', 'add', link, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', pid]);
    await run('ip', ['addr', 'add', `${address(1)}/30`, 'dev', link]);
    await run('ip', ['link', 'set', link, 'up']);
    const inside = (...args: string[]) => run('nsenter', [`--net=/proc/${pid}/ns/net`, 'ip', ...args]);
    await inside('addr', 'add', `${address(2)}/30`, 'dev', 'eth0');
    await inside('link', 'set', 'eth0', 'up');
    await inside('link', 'set', 'lo', 'up');
    return { spec, uid: randomUUID(), pause, api: { host: address(1), podIP: address(2) } };
  }

  async #launch(
    pod: Running,
    spec: PodSpec,
    one: ContainerSpec,
    extraArgs: readonly string[],
    log: number,
  ): Promise<Component> {
    const id = randomBytes(16).toString('hex');
    const directory = join(this.#root, id);
    const rootfs = join(directory, 'rootfs');
    mkdirSync(rootfs, { recursive: true, mode: 0o755 });
    const cgroupsPath = `/kubepods/besteffort/pod${pod.uid}/${id}`;
    const { hostname = '', port = '' } = this.#api === undefined ? {} : new URL(this.#api.url);
    const config = ociConfig(
      {
        spec,
        fields: {
          'spec.nodeName': this.node.name,
          'status.podIP': pod.api.podIP,
          'metadata.namespace': namespace,
        },
        env: {
          KUBERNETES_SERVICE_HOST: hostname,
          KUBERNETES_SERVICE_PORT: port,
          [runVariable]: this.node.runId,
        },
        pausePid: pod.pause.pid,
        cgroupsPath,
        grantedDevices: this.#options.grantedDevices ?? [tunDevice],
        volumePath: (name) => this.#volumePath(pod, spec, name),
      },
      one,
      extraArgs,
    );
    writeFileSync(join(directory, 'config.json'), JSON.stringify(config, undefined, 1));
    this.#started.push({ directory, cgroupsPath });
    const pidFile = join(directory, 'pid');
    const script = [
      'set -e',
      ...cgroupView(),
      ...this.#options.image.layOut(rootfs),
      `exec crun --root ${this.#crunDirectory} --cgroup-manager=cgroupfs run --bundle ${directory} --pid-file ${pidFile} ${id}`,
    ].join('\n');
    // Mounts of the host still arrive, those made here stay here.
    const process = start('unshare', ['--mount', '--propagation', 'slave', '--', 'sh', '-c', script], {
      cwd: '/',
      stdio: ['ignore', log, log],
    });
    this.#ids.set(process, id);
    let ended = false;
    void process.exited.then(() => {
      ended = true;
    });
    const pid = await waitFor(`container ${one.name}`, startMs, () => {
      const text = readIfThere(pidFile);
      return text !== '' ? Number(text) : ended ? process.pid : undefined;
    });
    return { pid, process };
  }

  #hostPath(path: string): string {
    return join(this.node.root, 'host', path);
  }

  /** What kubelet makes of a volume. Paths that belong to this node of the harness are below its directory. */
  #volumePath(pod: Running, spec: PodSpec, name: string): string {
    const volume = spec.volumes.find((one) => one.name === name);
    if (volume === undefined) throw new Error(`no volume ${name}`);
    if (volume.hostPath !== undefined) return this.#hostVolume(volume.hostPath);
    const directory = join(this.#root, pod.uid, name);
    if (existsSync(directory)) return directory;
    mkdirSync(directory, { recursive: true });
    chmodSync(directory, volume.emptyDir === undefined ? 0o755 : 0o777);
    this.#project(volume, directory);
    return directory;
  }

  #hostVolume({ path, type }: NonNullable<Volume['hostPath']>): string {
    if (type === 'CharDevice' || path === '/sys/fs/cgroup') return path;
    const host = path === '/var/lib/kubelet/pods' ? this.node.podsDir : this.#hostPath(path);
    if (!existsSync(host)) {
      if (type !== 'DirectoryOrCreate') throw new Error(`hostPath ${path} does not exist`);
      mkdirSync(host, { recursive: true, mode: 0o755 });
    }
    return host;
  }

  #project(volume: Volume, directory: string): void {
    const write = (path: string, text: string) => writeFileSync(join(directory, path), text, { mode: 0o444 });
    for (const { serviceAccountToken, configMap, downwardAPI } of volume.projected?.sources ?? []) {
      if (serviceAccountToken !== undefined) write(serviceAccountToken.path, this.#api?.token ?? '');
      for (const { path } of configMap?.items ?? []) write(path, this.#api?.ca ?? '');
      for (const { path } of downwardAPI?.items ?? []) write(path, namespace);
    }
  }

  async #removeCgroups(cgroupsPath: string): Promise<void> {
    for (const { base } of cgroupHierarchies()) {
      const directory = join(base, cgroupsPath);
      for (const line of readIfThere(join(directory, 'cgroup.procs')).split('\n')) {
        if (line !== '') signal(Number(line), 'SIGKILL');
      }
      // The pod's, then those that all pods share: each goes with its last child.
      await run('sh', [
        '-c',
        'for i in 1 2 3 4; do rmdir "$1" 2>/dev/null || [ ! -e "$1" ] || exit 0; set -- "$(dirname "$1")"; done',
        'sh',
        directory,
      ]);
    }
  }
}

/**
 * Commands that show a runtime the harness's own cgroups as the root, and on a machine with both cgroup
 * versions only version 1, since crun knows one or the other.
 */
function cgroupView(): string[] {
  const hierarchies = cgroupHierarchies();
  const version1 = hierarchies.filter(({ controllers }) => controllers.length > 0);
  return [
    ...hierarchies
      .filter(({ controllers }) => version1.length > 0 && controllers.length === 0)
      .map(({ mountPoint }) => `umount ${mountPoint}`),
    ...version1
      .filter(({ base, mountPoint }) => base !== mountPoint && base !== `${mountPoint}/`)
      .map(({ base, mountPoint }) => `mount --bind ${base} ${mountPoint}`),
  ];
}
