/**
 * A whole node with the product on it: API server, pods, helper and agent as processes of their own users,
 * and as much of virt-controller and kubelet as one VM's life needs.
 */
import { randomUUID } from 'node:crypto';
import { chmodSync, chownSync, closeSync, existsSync, mkdirSync, openSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Vmi } from '../../../agent/api/vmi.js';
import type { JsonValue } from '../../../agent/json/lossless.js';
import type { TimelineStep } from '../../../agent/timeline/timeline.js';
import { type ApiServer, startApiServer } from '../apiserver/api-server.js';
import { buildGuestDisk } from '../guest/disk.js';
import { guestVmi } from '../guest/vmi.js';
import { type LauncherHandle, type StartLauncherOptions, startLauncher } from '../launcher/start.js';
import { repositoryRoot } from '../pods/bundle.js';
import { createNode, type HarnessNode } from '../pods/node.js';
import type { Pod } from '../pods/pod.js';
import { readIfThere } from '../pods/proc.js';
import { run, type Spawned, signal, start, waitFor } from '../pods/run.js';

export const agentUser = 65531;
export const helperUser = 65530;
const startMs = 20_000;

export interface VmOptions {
  readonly name: string;
  readonly namespace?: string;
  readonly binding?: 'bridge' | 'masquerade';
  /** Boot script that the guest fetches over its network. */
  readonly bootUrl?: string;
  /** Whether the guest turns off at its power button (default true). */
  readonly obeysAcpi?: boolean;
  readonly terminationGracePeriodSeconds?: number;
  readonly machine?: 'qemu' | 'fake';
  readonly faults?: StartLauncherOptions['faults'];
  /** Where a step is to be waited for before the next: the launcher starts when this resolves. */
  readonly beforeLauncher?: Promise<void>;
}

/** A VM with its pod and launcher. */
export interface Vm {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly pod: Pod;
  readonly launcher: LauncherHandle;
}

/** A process of the product. */
export interface Component {
  readonly pid: number;
  readonly process: Spawned;
}

export class System {
  helper: Component | undefined;
  agent: Component | undefined;
  readonly #vms = new Set<Vm>();
  #nextAddress = 5;
  #stopped: Promise<void> | undefined;

  private constructor(
    readonly api: ApiServer,
    readonly node: HarnessNode,
    /** The repository as the agent's user can reach it. */
    private readonly product: string,
  ) {}

  /** Starts everything but the product's two processes. Needs root; the caller stops it. */
  static async create(): Promise<System> {
    const node = await createNode();
    const api = await startApiServer();
    try {
      const product = join(node.root, 'product');
      mkdirSync(product);
      await run('mount', ['--bind', repositoryRoot(), product]);
      const system = new System(api, node, product);
      await system.#prepare();
      return system;
    } catch (error) {
      await api.stop();
      await node.destroy();
      throw error;
    }
  }

  get socketDir(): string {
    return join(this.node.root, 'run');
  }

  get privateDir(): string {
    return join(this.node.root, 'private');
  }

  get auditFile(): string {
    return join(this.node.root, 'audit', 'audit.jsonl');
  }

  get mountRecordDir(): string {
    return join(this.node.root, 'mount-state');
  }

  async #prepare(): Promise<void> {
    for (const directory of [this.socketDir, this.mountRecordDir, join(this.node.root, 'audit')])
      mkdirSync(directory);
    mkdirSync(this.privateDir, { mode: 0o755 });
    chownSync(this.privateDir, agentUser, agentUser);
    const kubeconfig = join(this.node.root, 'kubeconfig');
    writeFileSync(kubeconfig, this.api.kubeConfigText, { mode: 0o600 });
    chownSync(kubeconfig, agentUser, agentUser);
    for (const obeysAcpi of [true, false])
      await buildGuestDisk({ path: this.#diskPath(obeysAcpi), obeysAcpi });
    this.api.store.put('kubevirts', {
      apiVersion: 'kubevirt.io/v1',
      kind: 'KubeVirt',
      metadata: { namespace: 'kubevirt', name: 'kubevirt' },
      spec: { configuration: { developerConfiguration: { useEmulation: true } } },
    });
    this.api.store.put('nodes', { metadata: { name: this.node.name } });
  }

  /** Starts the helper; resolves when it accepts calls. */
  async startHelper(...extra: string[]): Promise<Component> {
    const process = this.#spawn('helper', 'dist/privhelper/main.js', undefined, [
      ...['--socket-dir', this.socketDir, '--kubelet-pods-dir', this.node.podsDir],
      ...['--state-dir', this.mountRecordDir, '--audit-file', this.auditFile],
      ...['--agent-uid', String(agentUser), '--agent-gid', String(agentUser)],
      ...['--uid', String(helperUser), '--gid', String(helperUser)],
      // Process 1 of a sandboxed machine may be out of reach; the harness runs in the host's namespace.
      ...['--host-netns', '/proc/self/ns/net'],
      ...extra,
    ]);
    this.helper = { pid: process.pid, process };
    await this.#waitForLog('helper', process, '"msg":"ready');
    return this.helper;
  }

  /** Starts the agent; resolves when its caches are complete. */
  async startAgent(...extra: string[]): Promise<Component> {
    const process = this.#spawn('agent', 'dist/agent/main.js', agentUser, [
      ...['--hostname-override', this.node.name, '--helper-dir', this.socketDir],
      ...['--kubevirt-private-dir', this.privateDir, '--kubeconfig', join(this.node.root, 'kubeconfig')],
      ...['--timeline-file', this.timelineFile, '-v', '4'],
      ...extra,
    ]);
    this.agent = { pid: process.pid, process };
    await this.#waitForLog('agent', process, 'virt-agent is ready');
    return this.agent;
  }

  async startProduct(): Promise<void> {
    await this.startHelper();
    await this.startAgent();
  }

  /** SIGKILL, and the end waited for. */
  async kill(which: 'helper' | 'agent'): Promise<void> {
    await this.#end(which, 'SIGKILL');
  }

  /** SIGTERM, and the end waited for. */
  async terminate(which: 'helper' | 'agent'): Promise<void> {
    await this.#end(which, 'SIGTERM');
  }

  async #end(which: 'helper' | 'agent', with_: NodeJS.Signals): Promise<void> {
    const component = this[which];
    if (component === undefined) return;
    this[which] = undefined;
    signal(component.pid, with_);
    await component.process.exited;
  }

  log(which: 'helper' | 'agent'): string {
    return readIfThere(this.#logPath(which));
  }

  get timelineFile(): string {
    return join(this.privateDir, 'timeline.jsonl');
  }

  /** Steps that the agents so far noted for a VMI, in order. */
  timeline(uid: string): TimelineStep[] {
    return readIfThere(this.timelineFile)
      .split('\n')
      .filter((line) => line.endsWith('}'))
      .map((line) => JSON.parse(line) as TimelineStep & { uid: string })
      .filter((step) => step.uid === uid);
  }

  audit(): Record<string, unknown>[] {
    return readIfThere(this.auditFile)
      .split('\n')
      .filter((line) => line.endsWith('}'))
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  }

  /** What virt-controller and kubelet do first: a pod, a VMI handed to this node, a running launcher. */
  async createVm(options: VmOptions): Promise<Vm> {
    const namespace = options.namespace ?? 'default';
    const uid = randomUUID();
    const pod = await this.node.createPod({
      name: `virt-launcher-${options.name}-${uid.slice(0, 5)}`,
      vmiUid: uid,
      podIP: this.#address(),
      ...(options.machine === 'fake'
        ? {}
        : {
            containerDisks: [
              { index: 0, image: this.#diskPath(options.obeysAcpi ?? true), name: 'disk.img' },
            ],
          }),
    });
    const vmi = guestVmi({
      namespace,
      name: options.name,
      uid,
      nodeName: this.node.name,
      activePods: { [pod.uid]: this.node.name },
      binding: options.binding ?? 'masquerade',
      ...(options.bootUrl === undefined ? {} : { bootUrl: options.bootUrl }),
      terminationGracePeriodSeconds: options.terminationGracePeriodSeconds ?? 30,
    });
    this.api.store.put('virtualmachineinstances', vmi as unknown as Record<string, JsonValue>);
    await options.beforeLauncher;
    const launcher = await startLauncher(pod, {
      namespace,
      name: options.name,
      vmiUid: uid,
      terminationGracePeriodSeconds: options.terminationGracePeriodSeconds ?? 30,
      ...(options.machine === undefined ? {} : { machine: options.machine }),
      ...(options.faults === undefined ? {} : { faults: options.faults }),
    });
    const vm: Vm = { namespace, name: options.name, uid, pod, launcher };
    this.#vms.add(vm);
    return vm;
  }

  vmi(vm: Pick<Vm, 'namespace' | 'name'>): Vmi | undefined {
    return this.api.store.get('virtualmachineinstances', vm.namespace, vm.name) as Vmi | undefined;
  }

  async waitForPhase(vm: Vm, phase: string, timeoutMs = 30_000): Promise<void> {
    await waitFor(`${vm.namespace}/${vm.name} in phase ${phase}`, timeoutMs, () => {
      const now = this.vmi(vm)?.status.phase;
      if (now !== phase && (now === 'Failed' || now === 'Succeeded'))
        throw new Error(`phase ${now}\n${this.tail()}`);
      return now === phase;
    }).catch((error: Error) => {
      throw new Error(`${error.message}\n${this.tail()}\n${vm.launcher.log().slice(-2000)}`);
    });
  }

  /** The last lines of both logs, for the message of a failed test. */
  tail(): string {
    return (['helper', 'agent'] as const)
      .map((which) => `--- ${which}\n${this.log(which).split('\n').slice(-25).join('\n')}`)
      .join('\n');
  }

  /** The user's `kubectl delete vmi`. */
  deleteVmi(vm: Vm): void {
    this.api.store.delete('virtualmachineinstances', vm.namespace, vm.name);
  }

  /** kubelet and virt-controller at the end: the launcher has gone, so the pod goes, then the VMI object. */
  async finishDeletion(vm: Vm, timeoutMs = 60_000): Promise<void> {
    await Promise.race([
      vm.launcher.exited,
      waitFor(`launcher of ${vm.name} to end`, timeoutMs, () => false as const).catch((error: Error) => {
        throw new Error(`${error.message}\n${this.tail()}`);
      }),
    ]);
    await vm.pod.destroy();
    const vmi = this.vmi(vm);
    if (vmi?.metadata.uid === vm.uid) {
      const { finalizers: _, ...metadata } = vmi.metadata;
      this.api.store.put('virtualmachineinstances', { ...vmi, metadata } as unknown as Record<
        string,
        JsonValue
      >);
      if (this.vmi(vm) !== undefined) this.api.store.delete('virtualmachineinstances', vm.namespace, vm.name);
    }
    this.#vms.delete(vm);
  }

  /** Ends everything. May be called at any time, more than once. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async #stop(): Promise<void> {
    await Promise.all([this.kill('agent'), this.kill('helper')]);
    await this.api.stop();
    await this.node.destroy();
  }

  #address(): string {
    const last = this.#nextAddress++;
    return this.node.gateway.replace(/\d+$/, String(last));
  }

  #diskPath(obeysAcpi: boolean): string {
    return join(this.node.root, obeysAcpi ? 'guest-acpi.img' : 'guest-deaf.img');
  }

  #logPath(which: 'helper' | 'agent'): string {
    return join(this.node.root, `${which}.log`);
  }

  #spawn(which: 'helper' | 'agent', entry: string, user: number | undefined, args: string[]): Spawned {
    const path = this.#logPath(which);
    const log = openSync(path, 'a', 0o644);
    if (existsSync(path)) chmodSync(path, 0o644);
    try {
      return start(globalThis.process.execPath, [join(this.product, entry), ...args], {
        cwd: '/',
        stdio: ['ignore', log, log],
        ...(user === undefined ? {} : { uid: user, gid: user }),
        env: {
          PATH: globalThis.process.env['PATH'] ?? '',
          MY_POD_IP: '10.244.2.2',
        },
      });
    } finally {
      closeSync(log);
    }
  }

  async #waitForLog(which: 'helper' | 'agent', process: Spawned, text: string): Promise<void> {
    let ended = false;
    void process.exited.then(() => {
      ended = true;
    });
    const before = this.#ready[which];
    const count = () => this.log(which).split(text).length - 1;
    await waitFor(`${which} to be ready`, startMs, () => {
      if (ended) throw new Error(`the ${which} ended\n${this.tail()}`);
      return count() > before;
    }).catch((error: Error) => {
      throw new Error(`${error.message}\n${this.tail()}`);
    });
    this.#ready[which] = count();
  }

  readonly #ready = { helper: 0, agent: 0 };
}
