/** One life of an agent: the product's own parts, put together as its composition root does. */
import { create } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type { Domain } from '../../agent/api/domain.js';
import { type Vmi, type VmiRef, vmiKey } from '../../agent/api/vmi.js';
import { parseClusterConfig } from '../../agent/cluster/config.js';
import { GhostRecordStore } from '../../agent/domains/ghost-records.js';
import { DomainStore } from '../../agent/domains/store.js';
import { DomainWatcher } from '../../agent/domains/watcher.js';
import { HelperError } from '../../agent/helper/errors.js';
import { type PodState, samePodState } from '../../agent/helper/pod-state.js';
import { Expectations } from '../../agent/kube/expectations.js';
import { Informer } from '../../agent/kube/informer.js';
import { KubeEventRecorder } from '../../agent/kube/recorder.js';
import { vmiResource } from '../../agent/kube/resources.js';
import { isSlim, slimVmi } from '../../agent/kube/slim-vmi.js';
import { decodeVmi, sourceSelector, VmiClient } from '../../agent/kube/vmi-api.js';
import { runWorkers } from '../../agent/kube/workers.js';
import { WorkQueue } from '../../agent/kube/workqueue.js';
import { LauncherClients } from '../../agent/launcher/clients.js';
import type { Lease, Liveness } from '../../agent/launcher/connections.js';
import { RegistryLoopMetrics } from '../../agent/metrics/loop-metrics.js';
import { Registry } from '../../agent/metrics/registry.js';
import { domainMismatch, domainOfEvent } from '../../agent/notify/events.js';
import type { NotifyIdentity } from '../../agent/notify/server.js';
import { VmiController } from '../../agent/reconcile/controller.js';
import { CriticalNetworkError } from '../../agent/reconcile/ports.js';
import { FailureSchema } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { testLogger } from '../unit/kube/test-logger.js';
import type { ModelApi } from './api.js';
import { type ModelCluster, node } from './cluster.js';
import type { ModelLauncher } from './launcher.js';
import type { ModelTime } from './time.js';

/** What the helper did on the host; it stays when the agent dies. */
export class ModelHost {
  /** VMI UIDs with mounted disks, with networks. */
  readonly mounts = new Set<string>();
  readonly networks = new Set<string>();
  /** Calls that will fail, one each. */
  readonly failures: ('unmount' | 'network' | 'critical network')[] = [];

  fails(what: 'unmount' | 'network' | 'critical network'): boolean {
    const at = this.failures.indexOf(what);
    if (at === -1) return false;
    this.failures.splice(at, 1);
    return true;
  }
}

const dialSeconds = 2;
const podNewsMs = 300;
const maxPassesAtOnce = 1_000;

export class ModelAgent {
  readonly queue: WorkQueue;
  readonly registry = new Registry();
  readonly expectations: Expectations;
  readonly domains: DomainStore;
  readonly records: GhostRecordStore;
  readonly clients: LauncherClients;
  readonly #logLines: string[] = [];
  readonly #stopping = new AbortController();
  readonly #localVmis: Informer<Vmi>;
  readonly #globalVmis: Informer<Vmi>;
  readonly #events: KubeEventRecorder;
  readonly #watcher: DomainWatcher;
  readonly #controller: VmiController;
  readonly #listening = new Set<string>();
  /** As far as the agent has heard. */
  readonly #pods = new Map<string, PodState>();
  #passes = 0;
  #passesAt = 0;
  #dead = false;
  #running: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly api: ModelApi,
    private readonly cluster: ModelCluster,
    private readonly host: ModelHost,
    private readonly time: ModelTime,
    recordsDirectory: string,
  ) {
    const log = testLogger(this.#logLines);
    const timers = time;
    this.queue = new WorkQueue(timers, {
      added: () => {},
      started: (key) => this.#countPass(key),
      done: () => {},
      retried: () => {},
    });
    const basics = { rest: api, timers, logger: log, random: () => 0.5, resource: vmiResource };
    this.#localVmis = new Informer({ ...basics, labelSelector: sourceSelector(node), decode: decodeVmi });
    this.#globalVmis = new Informer({ ...basics, decode: decodeVmi, transform: slimVmi(node) });
    this.#events = new KubeEventRecorder({
      rest: api,
      timers,
      logger: log,
      component: 'virt-handler',
      host: node,
    });
    this.expectations = new Expectations(timers);
    this.records = new GhostRecordStore(recordsDirectory, log);
    this.domains = new DomainStore((key) => this.queue.add(key));
    const pods = {
      synced: true,
      whenSynced: async () => {},
      get: (podUid: string) => this.#pods.get(podUid),
      refresh: async (podUid: string) => this.#look(podUid),
    };
    const notify = {
      ensure: async (identity: NotifyIdentity) => this.#listen(identity),
      close: async (podUid: string) => this.#unlisten(podUid),
    };
    this.clients = new LauncherClients({
      helper: { identify: async () => true as never, release: async () => true as never },
      pods,
      connections: {
        acquire: ({ podUid }) => this.#acquire(podUid),
        close: () => {},
        liveness: async ({ podUid }) => this.#liveness(podUid),
      },
      notify,
      records: this.records,
      nodeName: node,
      clock: timers,
      log,
    });
    this.#watcher = new DomainWatcher({
      helper: { markUnresponsive: async ({ podUid }) => this.#mark(podUid) as never },
      pods,
      clients: this.clients,
      notify,
      records: this.records,
      store: this.domains,
      timers,
      log,
      resyncSeconds: 300,
      watchdogSeconds: 30,
    });
    this.#controller = this.#makeController(log);
    const touch = (vmi: { readonly metadata: VmiRef }) => {
      const key = vmiKey(vmi.metadata);
      this.expectations.set(key, 0, 0);
      this.queue.add(key);
    };
    this.#localVmis.addHandler({ add: touch, update: (_before, after) => touch(after), delete: touch });
    this.#globalVmis.addHandler({
      add: () => {},
      update: () => {},
      delete: (vmi) => {
        if (!isSlim(vmi)) this.queue.add(vmiKey(vmi.metadata));
      },
    });
  }

  async start(): Promise<void> {
    const { signal } = this.#stopping;
    this.records.load();
    for (const { launcher } of this.cluster.vms) this.#look(launcher.podUid);
    this.#localVmis.start();
    this.#globalVmis.start();
    const ready = Promise.all([
      this.#localVmis.whenSynced(),
      this.#globalVmis.whenSynced(),
      this.#watcher.start(signal),
    ]);
    this.#running = ready.then(() => {
      if (this.#dead) return undefined;
      const passes = runWorkers(10, this.queue, testLogger(this.#logLines), (key) =>
        this.#controller.execute(key),
      );
      for (const key of this.domains.keys()) if (this.#localVmis.get(key) === undefined) this.queue.add(key);
      return Promise.all([this.#watcher.run(signal), passes]);
    });
    // What a killed agent leaves unfinished interests nobody.
    this.#running.catch((error) => process.stderr.write(`${error.message}\n`));
  }

  /** SIGKILL: no further effect, on nothing. */
  kill(): void {
    this.#dead = true;
    this.#stopping.abort(new Error('killed'));
    void this.queue.shutDown();
    void this.#localVmis.stop();
    void this.#globalVmis.stop();
    void this.#events.stop();
    for (const podUid of this.#listening) this.cluster.launcherOf(podUid)?.listen(undefined);
  }

  /** Word of it takes a moment. */
  podChanged(podUid: string): void {
    this.time.after(podNewsMs, () => {
      if (!this.#dead) this.#look(podUid);
    });
  }

  #look(podUid: string): PodState | undefined {
    const before = this.#pods.get(podUid);
    const state = this.#launcher(podUid)?.state;
    if (state === undefined ? before === undefined : before !== undefined && samePodState(before, state)) {
      return state;
    }
    if (state === undefined) this.#pods.delete(podUid);
    else this.#pods.set(podUid, state);
    for (const vmi of this.#localVmis.list()) {
      if (vmi.status.activePods?.[podUid] !== undefined) this.queue.add(vmiKey(vmi.metadata));
    }
    return state;
  }

  get log(): string {
    return this.#logLines.join('');
  }

  /** What is kept for VMIs in memory, by name of the map; all must be empty when none is left. */
  remains(): Record<string, number> {
    return {
      domains: this.domains.keys().length,
      clients: this.clients['entries'].size,
      expectations: this.expectations['expected'].size,
      'waiting keys': this.queue.length,
      'delayed keys': this.queue['delayed'].size,
      'failing keys': this.queue['limiter']['failures'].size,
      'dead launchers': this.#watcher['deadSince'].size,
      'unknown launchers': this.#watcher['unknown'].size,
      'cached VMIs': this.#localVmis.list().length + this.#globalVmis.list().length,
      listeners: this.#listening.size,
      'metric series': this.registry
        .text()
        .split('\n')
        .filter((line) => line.startsWith('kubevirt_vmi_sync')).length,
      'remembered by the loop': this.#controller.remembered,
    };
  }

  /** Passes without time passing: a loop that only ends when the process does. */
  #countPass(key: string): void {
    const now = this.time.now();
    this.#passes = now === this.#passesAt ? this.#passes + 1 : 1;
    this.#passesAt = now;
    if (this.#passes > maxPassesAtOnce) throw new Error(`hot loop over ${key}`);
  }

  #launcher(podUid: string): ModelLauncher | undefined {
    return this.cluster.launcherOf(podUid);
  }

  async #acquire(podUid: string): Promise<Lease> {
    this.#alive();
    const launcher = this.#launcher(podUid);
    const state = launcher?.state;
    if (launcher === undefined || state?.launcherSocket !== 'present') throw errno('ENOENT');
    if (!launcher.alive) throw errno('ECONNREFUSED');
    if (launcher.hung) {
      await new Promise<void>((resolve) => this.time.after(dialSeconds * 1000, resolve));
      if (launcher.hung) throw new Error('context deadline exceeded');
    }
    const isDead = () => this.#dead;
    const { transport } = launcher;
    return {
      connection: {
        get alive() {
          return launcher.alive && launcher.directory;
        },
        transport: {
          ...transport,
          unary: async (...call) => {
            if (isDead()) return never();
            const answer = await transport.unary(...call);
            return isDead() ? never() : answer;
          },
        },
      },
      release: () => {},
    };
  }

  #liveness(podUid: string): Liveness {
    const launcher = this.#launcher(podUid);
    const state = launcher?.state;
    if (launcher === undefined || state === undefined) return 'dead';
    if (!launcher.alive || state.launcherSocket === 'absent') return 'dead';
    return launcher.hung ? 'hung' : 'alive';
  }

  #mark(podUid: string): void {
    const launcher = this.#launcher(podUid);
    if (launcher?.directory !== true) throw errno('ENOENT');
    launcher.marker = true;
    if (launcher.alive) launcher.violations.push(`${podUid} was declared dead while it lives`);
  }

  #listen({ podUid, vmi }: NotifyIdentity): void {
    this.#alive();
    const launcher = this.#launcher(podUid);
    if (launcher?.directory !== true) throw errno('ENOENT');
    this.#listening.add(podUid);
    launcher.listen((type, json) => {
      if (this.#dead) return false;
      const domain: Domain = domainOfEvent(Buffer.from(json));
      if (domainMismatch(domain, vmi) === undefined) this.#watcher.domainEvent(type as 'ADDED', vmi, domain);
      return true;
    });
  }

  #unlisten(podUid: string): void {
    if (!this.#listening.delete(podUid) || this.#dead) return;
    this.#launcher(podUid)?.listen(undefined);
  }

  /** A dead agent's call never comes back, and has no effect. */
  #alive(): void {
    if (this.#dead) throw new Error('killed');
  }

  #makeController(log: ReturnType<typeof testLogger>): VmiController {
    const { host } = this;
    const nothing = async () => {};
    const onHost = async (act: () => void): Promise<void> => {
      if (this.#dead) await never();
      act();
    };
    return new VmiController({
      node: { name: node, architecture: 'amd64', cpuModel: () => '', topology: () => undefined },
      clusterConfig: () => parseClusterConfig(undefined),
      pluginsJson: () => new Uint8Array(),
      localVmis: this.#localVmis,
      globalVmis: this.#globalVmis,
      domains: this.domains,
      ghostRecords: this.records,
      localState: this.clients,
      expectations: this.expectations,
      queue: this.queue,
      clients: this.clients,
      pods: this.clients,
      containerDisks: {
        ready: async () => true,
        mountAndVerify: ({ metadata }) => onHost(() => host.mounts.add(metadata.uid)),
        unmount: ({ uid }) =>
          onHost(() => {
            if (host.fails('unmount')) throw new Error('device is busy');
            host.mounts.delete(uid);
          }),
        computeChecksums: () => ({ containerDisks: new Map() }),
      },
      hotplug: { mount: nothing, unmount: nothing, unmountAll: nothing, isMounted: async () => false },
      networks: {
        setup: nothing,
        teardown: ({ uid }) => onHost(() => host.networks.delete(uid)),
      },
      netStat: { updateStatus: nothing, teardown: () => {} },
      devices: {
        claim: async ({ metadata }) => {
          await onHost(() => {
            if (host.fails('critical network')) {
              this.cluster.failedBySetup(metadata.uid);
              throw new CriticalNetworkError('Critical network error: no tun');
            }
            if (host.fails('network')) throw new Error('try again');
            host.networks.add(metadata.uid);
          });
          return true;
        },
      },
      hypervisor: { adjustResources: nothing, handleHousekeeping: nothing },
      downwardMetrics: { startServer: nothing, stopServer: () => {} },
      migrationProxy: { stopTargetListener: () => {}, stopSourceListener: () => {} },
      hooks: { present: false, call: nothing },
      facts: { selinuxContext: async () => 'none', isoSize: () => Promise.reject(new Error('no ISO here')) },
      backupTrackers: { list: () => [], requireRedefinition: nothing },
      api: new VmiClient({
        update: (resource, namespace, name, body) =>
          this.#dead ? never() : this.api.update(resource, namespace, name, body),
      }),
      events: this.#events,
      metrics: new RegistryLoopMetrics(this.registry),
      clock: this.time,
      log,
    });
  }
}

function never(): Promise<never> {
  return new Promise(() => {});
}

function errno(errnoName: string): HelperError {
  return new HelperError('', Code.FailedPrecondition, errnoName, create(FailureSchema, { errnoName }));
}
