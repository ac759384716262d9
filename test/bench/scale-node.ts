/** Hundreds of light launchers in this process, an API server, and an agent in a process of its own. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type ApiServer, startApiServer } from '../harness/apiserver/api-server.js';
import { FakeMachine } from '../harness/launcher/fake-machine.js';
import { noFaults } from '../harness/launcher/faults.js';
import { Launcher } from '../harness/launcher/launcher.js';
import type { Machine } from '../harness/launcher/machine.js';
import { launcherTimes } from '../harness/launcher/notifier.js';
import type { LoopDelay, MemoryReport, Question } from './node-agent.js';
import { ScaleHelper } from './scale-helper.js';

const nodeName = 'node01';
const startDeadlineMs = 300_000;

export interface ScaleVm {
  readonly name: string;
  readonly machine: () => Machine;
}

/** Phases and Paused conditions as the API server holds them. */
type VmiView = {
  readonly status?: { readonly phase?: string; readonly conditions?: { readonly type: string }[] };
};

export class ScaleNode {
  readonly #vms: { readonly launcher: Launcher; readonly ended: Promise<void> }[] = [];
  #agent: ChildProcess | undefined;

  private constructor(
    readonly api: ApiServer,
    private readonly helper: ScaleHelper,
    private readonly directory: string,
  ) {}

  static async create(): Promise<ScaleNode> {
    const directory = mkdtempSync(join(tmpdir(), 'vps-'));
    for (const name of ['run', 'pods', 'private']) mkdirSync(join(directory, name));
    const api = await startApiServer();
    writeFileSync(join(directory, 'kubeconfig'), api.kubeConfigText);
    const helper = new ScaleHelper(join(directory, 'pods'));
    await helper.start(join(directory, 'run', 'helper.sock'));
    return new ScaleNode(api, helper, directory);
  }

  /** A VMI in phase Scheduled, its pod, and its launcher, which is ready. */
  async addVm(number: number, hangs = false): Promise<ScaleVm> {
    const [name, uid, podUid] = [`vm-${number}`, `vmi-${number}`, `pod-${number}`];
    const share = join(this.directory, 'pods', podUid);
    mkdirSync(join(share, 'sockets'), { recursive: true });
    let machine: FakeMachine | undefined;
    const launcher = new Launcher({
      ...{ namespace: 'default', name, uid, podName: name },
      directories: {
        share,
        privateDirectory: join(share, 'private'),
        run: join(share, 'libvirt'),
        links: '/sys/class/net',
      },
      times: {
        qemuTimeoutMs: 3_600_000,
        gracePeriodMs: 45_000,
        finalMs: [1_000, 1_000],
        killEveryMs: 1_000,
        notifier: launcherTimes,
      },
      faults: { ...noFaults, hang: hangs },
      lateMetadata: false,
      createMachine: (listener) => {
        machine = new FakeMachine(listener, true);
        return machine;
      },
      dhcpProgram: undefined,
      log: () => {},
    });
    const ended = launcher.run().catch(() => undefined);
    this.#vms.push({ launcher, ended });
    this.helper.addPod(podUid);
    this.api.store.put('virtualmachineinstances', vmiObject(name, uid, podUid));
    return {
      name,
      machine: () => {
        if (machine === undefined) throw new Error(`${name} has no machine`);
        return machine;
      },
    };
  }

  view(name: string): VmiView {
    return (this.api.store.get('virtualmachineinstances', 'default', name) ?? {}) as VmiView;
  }

  /** Resolves when the VMI looks right. */
  async until(name: string, right: (vmi: VmiView) => boolean, timeoutMs = startDeadlineMs): Promise<void> {
    await this.api.store.until(
      'virtualmachineinstances',
      'default',
      name,
      (vmi) => right((vmi ?? {}) as VmiView),
      timeoutMs,
    );
  }

  get agentPid(): number {
    if (this.#agent?.pid === undefined) throw new Error('no agent runs');
    return this.#agent.pid;
  }

  /** Resolves when its caches are complete. */
  async startAgent(resyncSeconds: number): Promise<void> {
    const log = openSync(join(this.directory, 'agent.log'), 'a');
    this.#agent = fork(
      fileURLToPath(new URL('./node-agent.js', import.meta.url)),
      [
        ...['--hostname-override', nodeName, '--helper-dir', join(this.directory, 'run')],
        ...['--kubevirt-private-dir', join(this.directory, 'private')],
        ...['--kubeconfig', join(this.directory, 'kubeconfig')],
        // The limit of a real node would be all that is measured.
        ...['--kube-api-qps', '5000', '--kube-api-burst', '5000'],
        ...['--domain-resync-period-seconds', String(resyncSeconds)],
      ],
      { execArgv: ['--expose-gc'], stdio: ['ignore', log, log, 'ipc'] },
    );
    const ended = once(this.#agent, 'exit').then(([code]) => {
      throw new Error(`the agent ended with ${code}`);
    });
    await Promise.race([once(this.#agent, 'message'), ended]);
    ended.catch(() => undefined);
  }

  async memory(): Promise<MemoryReport> {
    return (await this.ask('memory')) as MemoryReport;
  }

  async watchLoop(): Promise<void> {
    await this.ask('watch loop');
  }

  /** Since {@link watchLoop}. */
  async loopDelay(): Promise<LoopDelay> {
    return (await this.ask('loop delay')) as LoopDelay;
  }

  private async ask(question: Question): Promise<unknown> {
    const agent = this.#agent;
    if (agent === undefined) throw new Error('no agent runs');
    const answer = once(agent, 'message');
    agent.send(question);
    const [report] = await answer;
    return report;
  }

  /** Throws when the agent has asked the helper for what it does not have here. */
  checkHelper(): void {
    const { unknown } = this.helper;
    if (unknown.length > 0) throw new Error(`the helper of this benchmark lacks ${unknown.join(', ')}`);
  }

  async stopAgent(): Promise<void> {
    const agent = this.#agent;
    this.#agent = undefined;
    if (agent === undefined || agent.exitCode !== null) return;
    const ended = once(agent, 'exit');
    agent.kill('SIGTERM');
    await ended;
  }

  async stop(): Promise<void> {
    this.#agent?.kill('SIGKILL');
    for (const { launcher } of this.#vms) launcher.requestStop();
    await this.api.stop();
    await this.helper.stop();
    await Promise.all(this.#vms.map(({ ended }) => ended));
    rmSync(this.directory, { recursive: true, force: true });
  }
}

function vmiObject(name: string, uid: string, podUid: string) {
  return {
    apiVersion: 'kubevirt.io/v1',
    kind: 'VirtualMachineInstance',
    metadata: {
      ...{ namespace: 'default', name, uid },
      labels: { 'kubevirt.io/nodeName': nodeName },
      annotations: { 'kubevirt.io/latest-observed-api-version': 'v1' },
    },
    spec: {
      terminationGracePeriodSeconds: 30,
      domain: { memory: { guest: '64Mi' }, devices: { autoattachPodInterface: false } },
    },
    status: { phase: 'Scheduled', nodeName, activePods: { [podUid]: nodeName } },
  };
}
