/**
 * A whole node with the product on it: API server, pods, helper and agent as processes of their own users,
 * and as much of virt-controller and kubelet as one VM's life needs.
 */
import { randomUUID } from 'node:crypto';
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import type { Vmi } from '../../../agent/api/vmi.js';
import type { JsonValue } from '../../../agent/json/lossless.js';
import type { TimelineStep } from '../../../agent/timeline/timeline.js';
import { type ApiServer, startApiServer } from '../apiserver/api-server.js';
import { buildGuestDisk } from '../guest/disk.js';
import { claimVolume, type GuestVmiOptions, guestVmi } from '../guest/vmi.js';
import { type LauncherHandle, type StartLauncherOptions, startLauncher } from '../launcher/start.js';
import { createNode, type HarnessNode } from '../pods/node.js';
import type { Pod } from '../pods/pod.js';
import type { PodOptions } from '../pods/pod-options.js';
import { readdirIfThere, readFrom, readIfThere, sizeIfThere } from '../pods/proc.js';
import { type Spawned, signal, waitFor } from '../pods/run.js';
import { ChildProcesses } from './child-processes.js';
import type { Component, MakePrograms, ProgramName, Programs } from './programs.js';

export { agentUser, helperUser } from './programs.js';

const startMs = 20_000;

/** What a claim is bound to, as mount(8) is told: a file system whose root is root's. */
const emptyFileSystem = ['-t', 'tmpfs', '-o', 'size=16m,mode=755', 'tmpfs'];

export interface VmOptions {
  readonly name: string;
  /** A random one when absent. */
  readonly uid?: string;
  readonly namespace?: string;
  readonly binding?: 'bridge' | 'masquerade';
  readonly cpu?: GuestVmiOptions['cpu'];
  /** Boot script that the guest fetches over its network. */
  readonly bootUrl?: string;
  /** Whether the guest turns off at its power button (default true). */
  readonly obeysAcpi?: boolean;
  readonly terminationGracePeriodSeconds?: number;
  readonly machine?: 'qemu' | 'fake';
  /** Whether the pod has a container disk to be mounted (default: for `qemu`). */
  readonly containerDisk?: boolean;
  /** Given: the container disk's container starts when this resolves. */
  readonly beforeContainerDisk?: Promise<void>;
  /** Size of a claim without an image that is the guest's second disk, for instance `4Mi` (default: none). */
  readonly claim?: string;
  /** More of the pod, or in the place of what it is otherwise. */
  readonly podOptions?: Partial<Pick<PodOptions, 'containerDisks' | 'kernelBoot'>>;
  /** The VMI object as it is created, from the one that it is otherwise. */
  readonly adapt?: (vmi: Vmi) => Vmi;
  readonly faults?: StartLauncherOptions['faults'];
  /** Where a step is to be waited for before the next: the launcher starts when this resolves. */
  readonly beforeLauncher?: Promise<void>;
  /** Given: the launcher comes first. Called when it is there; the VMI is created when this resolves. */
  readonly beforeVmi?: (pod: Pod, launcher: LauncherHandle) => Promise<void>;
}

/** A VM with its pod and launcher. */
export interface Vm {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly pod: Pod;
  readonly launcher: LauncherHandle;
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
    private readonly programs: Programs,
  ) {}

  /** Starts everything but the product's two processes. Needs root; the caller stops it. */
  static async create(makePrograms: MakePrograms = ChildProcesses.create): Promise<System> {
    const node = await createNode();
    let programs: Programs | undefined;
    let api: ApiServer | undefined;
    try {
      programs = await makePrograms(node);
      api = await startApiServer({ host: programs.apiHost });
      programs.connect(api);
      const system = new System(api, node, programs);
      await system.#prepare();
      return system;
    } catch (error) {
      await api?.stop();
      await programs?.destroy();
      await node.destroy();
      throw error;
    }
  }

  get socketDir(): string {
    return this.programs.paths.socketDir;
  }

  get privateDir(): string {
    return this.programs.paths.privateDir;
  }

  get auditFile(): string {
    return this.programs.paths.auditFile;
  }

  get mountRecordDir(): string {
    return this.programs.paths.mountRecordDir;
  }

  async #prepare(): Promise<void> {
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
    const from = this.logSize('helper');
    this.helper = await this.#launch('helper', extra);
    await this.#waitForLog('helper', this.helper.process, '"msg":"ready', from);
    return this.helper;
  }

  /** Starts the agent; resolves when its caches are complete. */
  async startAgent(...extra: string[]): Promise<Component> {
    const from = this.logSize('agent');
    this.agent = await this.#launch('agent', extra);
    await this.#waitForLog('agent', this.agent.process, 'virt-agent is ready', from);
    return this.agent;
  }

  async startProduct(): Promise<void> {
    await this.startHelper();
    await this.startAgent();
  }

  /** SIGKILL, and the end waited for. */
  async kill(which: ProgramName): Promise<void> {
    await this.#end(which, 'SIGKILL');
  }

  /** SIGTERM, and the end waited for. */
  async terminate(which: ProgramName): Promise<void> {
    await this.#end(which, 'SIGTERM');
  }

  /** SIGKILL, and a new one at once; resolves when that is ready. */
  async restart(which: ProgramName, ...extra: string[]): Promise<void> {
    await this.kill(which);
    await (which === 'helper' ? this.startHelper(...extra) : this.startAgent(...extra));
  }

  async #end(which: ProgramName, with_: NodeJS.Signals): Promise<void> {
    const component = this[which];
    if (component === undefined) return;
    this[which] = undefined;
    signal(component.pid, with_);
    await component.process.exited;
  }

  log(which: ProgramName): string {
    return readIfThere(this.logPath(which));
  }

  /** Bytes. */
  logSize(which: ProgramName): number {
    return sizeIfThere(this.logPath(which));
  }

  /** Waits until lines that match were logged `count` times since the log had `from` bytes. */
  async logged(which: ProgramName, line: RegExp, count: number, timeoutMs: number, from = 0): Promise<void> {
    await waitFor(`${count} times ${line} in the log of the ${which}`, timeoutMs, () => {
      const lines = readFrom(this.logPath(which), from).split('\n');
      return lines.filter((text) => line.test(text)).length >= count;
    }).catch((error: Error) => {
      throw new Error(`${error.message}\n${this.tail()}`);
    });
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
    const uid = options.uid ?? randomUUID();
    const pod = await this.node.createPod({
      name: `virt-launcher-${options.name}-${uid.slice(0, 5)}`,
      vmiUid: uid,
      podIP: this.#address(),
      lateContainerDisks: options.beforeContainerDisk !== undefined,
      ...((options.containerDisk ?? options.machine !== 'fake')
        ? {
            containerDisks: [
              { index: 0, image: this.#diskPath(options.obeysAcpi ?? true), name: 'disk.img' },
            ],
          }
        : {}),
      ...options.podOptions,
    });
    if (options.claim !== undefined) await pod.addClaim(claimVolume, emptyFileSystem);
    const guest = guestVmi({
      namespace,
      name: options.name,
      uid,
      nodeName: this.node.name,
      activePods: { [pod.uid]: this.node.name },
      binding: options.binding ?? 'masquerade',
      ...(options.bootUrl === undefined ? {} : { bootUrl: options.bootUrl }),
      ...(options.claim === undefined ? {} : { claim: options.claim }),
      ...(options.cpu === undefined ? {} : { cpu: options.cpu }),
      terminationGracePeriodSeconds: options.terminationGracePeriodSeconds ?? 30,
    });
    const vmi = options.adapt?.(guest) ?? guest;
    const createVmi = () =>
      this.api.store.put('virtualmachineinstances', vmi as unknown as Record<string, JsonValue>);
    if (options.beforeVmi === undefined) createVmi();
    void options.beforeContainerDisk?.then(() => pod.startContainerDisks());
    await options.beforeLauncher;
    const launcher = await startLauncher(pod, {
      namespace,
      name: options.name,
      vmiUid: uid,
      terminationGracePeriodSeconds: options.terminationGracePeriodSeconds ?? 30,
      obeyAcpi: options.obeysAcpi ?? true,
      ...(options.machine === undefined ? {} : { machine: options.machine }),
      ...(options.faults === undefined ? {} : { faults: options.faults }),
    });
    if (options.beforeVmi !== undefined) {
      await options.beforeVmi(pod, launcher);
      createVmi();
    }
    const vm: Vm = { namespace, name: options.name, uid, pod, launcher };
    this.#vms.add(vm);
    return vm;
  }

  vmi(vm: Pick<Vm, 'namespace' | 'name'>): Vmi | undefined {
    return this.api.store.get('virtualmachineinstances', vm.namespace, vm.name) as Vmi | undefined;
  }

  async waitForPhase(vm: Vm, phase: string, timeoutMs = 30_000): Promise<void> {
    await this.waitForVmi(
      vm,
      `phase ${phase}`,
      ({ status }) => {
        const now = status.phase;
        if (now !== phase && (now === 'Failed' || now === 'Succeeded')) throw new Error(`phase ${now}`);
        return now === phase;
      },
      timeoutMs,
    );
  }

  /** Waits until the VMI exists and is as described. */
  async waitForVmi(
    vm: Vm,
    what: string,
    isSo: (vmi: Vmi) => boolean | undefined,
    timeoutMs = 30_000,
  ): Promise<void> {
    await waitFor(`${vm.namespace}/${vm.name}: ${what}`, timeoutMs, () => {
      const vmi = this.vmi(vm);
      return vmi !== undefined && isSo(vmi);
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
    let ended = false;
    void vm.launcher.exited.then(() => {
      ended = true;
    });
    await waitFor(`launcher of ${vm.name} to end`, timeoutMs, () => ended).catch((error: Error) => {
      throw new Error(`${error.message}\n${this.tail()}\n${vm.launcher.log().slice(-2000)}`);
    });
    await vm.pod.destroy();
    this.forgetVmi(vm);
    this.#vms.delete(vm);
  }

  /** Removes the VMI object, as when its finalizer has been taken away. */
  forgetVmi(vm: Vm): void {
    const vmi = this.vmi(vm);
    if (vmi?.metadata.uid !== vm.uid) return;
    const { finalizers: _, ...metadata } = vmi.metadata;
    this.api.store.put('virtualmachineinstances', { ...vmi, metadata } as unknown as Record<
      string,
      JsonValue
    >);
    if (this.vmi(vm) !== undefined) this.deleteVmi(vm);
  }

  /** What agent and helper keep on disk about VMs: ghost records, network states, mount records, plugged devices. */
  state(): string[] {
    const directories = ['ghost-records', 'network-info-cache'].map((name) => join(this.privateDir, name));
    const { hotplugRecordDir, pluggedDevicesDir } = this.programs.paths;
    return [...directories, this.mountRecordDir, hotplugRecordDir, pluggedDevicesDir].flatMap((directory) =>
      readdirIfThere(directory).map((name) => join(directory, name)),
    );
  }

  /** Ends everything. May be called at any time, more than once. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async #stop(): Promise<void> {
    await Promise.all([this.kill('agent'), this.kill('helper')]);
    await this.api.stop();
    await this.programs.destroy();
    await this.node.destroy();
  }

  #address(): string {
    const last = this.#nextAddress++;
    return this.node.gateway.replace(/\d+$/, String(last));
  }

  #diskPath(obeysAcpi: boolean): string {
    return join(this.node.root, obeysAcpi ? 'guest-acpi.img' : 'guest-deaf.img');
  }

  logPath(which: ProgramName): string {
    return join(this.node.root, `${which}.log`);
  }

  async #launch(which: ProgramName, extra: readonly string[]): Promise<Component> {
    const log = openSync(this.logPath(which), 'a', 0o644);
    try {
      return await this.programs.start(which, extra, log);
    } finally {
      closeSync(log);
    }
  }

  /** `from`: bytes that the log had before. */
  async #waitForLog(which: ProgramName, process: Spawned, text: string, from: number): Promise<void> {
    let ended = false;
    void process.exited.then(() => {
      ended = true;
    });
    await waitFor(`${which} to be ready`, startMs, () => {
      if (ended) throw new Error(`the ${which} ended\n${this.tail()}`);
      return readFrom(this.logPath(which), from).includes(text);
    }).catch((error: Error) => {
      throw new Error(`${error.message}\n${this.tail()}`);
    });
  }
}
