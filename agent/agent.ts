/** The agent put together: who gets what, in which order it starts and stops. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { KubeConfig } from '@kubernetes/client-node';
import type { Native } from '../native/binding.js';
import { NoBackupTrackers, NoDownwardMetrics, NoMigrationProxy, NoNodeHooks } from './absent/areas.js';
import { type VmiRef, vmiKey } from './api/vmi.js';
import { CaBundle, type CaConfigMap, caConfigMapName, decodeCaConfigMap } from './cluster/ca-bundle.js';
import { isGateOn } from './cluster/config.js';
import { ClusterConfigWatch } from './cluster/watch.js';
import { HelperDevicePolicy } from './devices/device-policy.js';
import { HelperDeviceOwnership } from './devices/ownership.js';
import { GhostRecordStore } from './domains/ghost-records.js';
import { DomainStore } from './domains/store.js';
import { DomainWatcher } from './domains/watcher.js';
import type { Flags } from './flags.js';
import type { DescriptorChannel } from './helper/descriptors.js';
import { HelperClient } from './helper/helper-client.js';
import { LauncherPods } from './helper/launcher-pods.js';
import { createHelperTransport } from './helper/transport.js';
import { InspectServer } from './inspect/server.js';
import { inspectSocketName } from './inspect/timeline-command.js';
import { ClientRateLimiter } from './kube/client-rate-limiter.js';
import { Expectations } from './kube/expectations.js';
import { Informer, resyncPeriodMs } from './kube/informer.js';
import { loadKubeConfig } from './kube/kube-config.js';
import { checkObject, type KubeObject } from './kube/objects.js';
import { KubeEventRecorder } from './kube/recorder.js';
import { configMapResource, kubeVirtResource, vmiResource } from './kube/resources.js';
import { RestClient } from './kube/rest.js';
import { isSlim, slimVmi } from './kube/slim-vmi.js';
import { systemTimers } from './kube/timers.js';
import { decodeVmi, sourceSelector, VmiClient } from './kube/vmi-api.js';
import { runWorkers } from './kube/workers.js';
import { WorkQueue } from './kube/workqueue.js';
import { LauncherClients } from './launcher/clients.js';
import { LauncherConnections } from './launcher/connections.js';
import { PodFacts } from './launcher/pod-facts.js';
import { podUidOfSocket } from './launcher/sockets.js';
import type { Logger } from './log/log.js';
import { RegistryLoopMetrics } from './metrics/loop-metrics.js';
import { RegistryNotifyMetrics } from './metrics/notify-metrics.js';
import { QueueMetrics } from './metrics/queue-metrics.js';
import { Registry } from './metrics/registry.js';
import { PodNetStat } from './network/pod-netstat.js';
import { HelperPodNetworks } from './network/pod-networks.js';
import { NetworkStateStore } from './network/state.js';
import { NotifyServer } from './notify/server.js';
import { VmiController } from './reconcile/controller.js';
import { HelperHypervisor } from './resources/hypervisor.js';
import { stopInTime } from './stop.js';
import { ImageChecksums } from './storage/checksums.js';
import { HelperContainerDisks } from './storage/container-disks.js';
import { HelperHotplugVolumes } from './storage/hotplug.js';
import { TimelineReport } from './timeline/report.js';
import { TimelineRecorder, type TimelineStep, type VmiTimeline } from './timeline/timeline.js';
import { VsockService } from './vsock/vsock-service.js';

const workers = 10;
const podRecheckMs = 30_000;
const defaultNamespace = 'kubevirt';

export interface AgentOptions {
  readonly flags: Flags;
  readonly env: NodeJS.ProcessEnv;
  /** Where the helper's descriptors come in. */
  readonly descriptors: DescriptorChannel;
  /** For sockets that Node cannot use. */
  readonly relay: Pick<Native, 'acceptRelayed' | 'close'>;
  readonly log: Logger;
  /** The log verbosity that the cluster asks for; undefined: none in particular. */
  readonly setVerbosity: (verbosity: number | undefined) => void;
  /** Told every step of every VMI. */
  readonly onStep: (timeline: VmiTimeline, step: TimelineStep) => void;
}

/**
 * Runs until the signal aborts, then lets the passes under way finish, within a time, and closes everything. VMs
 * are not touched by a stop.
 */
export async function runAgent(options: AgentOptions, stop: AbortSignal): Promise<void> {
  const { flags, env, descriptors, log } = options;
  const timers = systemTimers();
  const metrics = new Registry();
  const queue = new WorkQueue(timers, new QueueMetrics(metrics, timers).of('virt-handler-vm'));
  const report = new TimelineReport(metrics, log);
  const timeline = new TimelineRecorder(
    { now: () => Date.now(), monotonic: () => performance.now() },
    (of, step) => {
      report.step(of, step);
      options.onStep(of, step);
    },
  );

  // Kubernetes
  const limiter = new ClientRateLimiter(timers, { qps: flags.kubeApiQps, burst: flags.kubeApiBurst });
  const kubeConfig = loadKubeConfig(flags.kubeconfig, env);
  const rest = new RestClient({
    kubeConfig,
    timers,
    limiter,
    userAgent: 'virt-handler',
  });
  const informerBasics = { rest, timers, logger: log, random: Math.random };
  const localVmis = new Informer({
    ...informerBasics,
    resource: vmiResource,
    labelSelector: sourceSelector(flags.nodeName),
    decode: decodeVmi,
    resyncMs: resyncPeriodMs(Math.random),
  });
  const globalVmis = new Informer({
    ...informerBasics,
    resource: vmiResource,
    decode: decodeVmi,
    transform: slimVmi(flags.nodeName),
  });
  const kubeVirts = new Informer<KubeObject>({
    ...informerBasics,
    resource: kubeVirtResource,
    decode: (value) => checkObject(value) as unknown as KubeObject,
  });
  const caConfigMaps = new Informer<CaConfigMap>({
    ...informerBasics,
    resource: configMapResource,
    namespace: installNamespace(kubeConfig),
    fieldSelector: `metadata.name=${caConfigMapName}`,
    decode: decodeCaConfigMap,
  });
  const caBundle = new CaBundle(log);
  caConfigMaps.addHandler(caBundle);
  const events = new KubeEventRecorder({
    rest,
    timers,
    logger: log,
    component: 'virt-handler',
    host: flags.nodeName,
  });
  const expectations = new Expectations(timers);
  const cluster = new ClusterConfigWatch(log, () => {
    const { apiRateLimit, logVerbosity } = cluster.current();
    limiter.set({
      qps: apiRateLimit.qps ?? flags.kubeApiQps,
      burst: apiRateLimit.burst ?? flags.kubeApiBurst,
    });
    options.setVerbosity(logVerbosity.nodes.get(flags.nodeName) || logVerbosity.virtHandler);
    vsock.set(isGateOn(cluster.current(), 'VSOCK'));
    for (const vmi of localVmis.list()) queue.add(vmiKey(vmi.metadata));
  });
  kubeVirts.addHandler(cluster);

  // The helper and, through it, the launchers
  const helper = new HelperClient(createHelperTransport(join(flags.helperDir, 'helper.sock')), descriptors);
  const vsock = new VsockService({
    helper,
    relay: options.relay,
    caBundle: () => caBundle.current(),
    timers,
    log,
  });
  const pods = new LauncherPods({ helper, log, recheckIntervalMs: podRecheckMs });
  const connections = new LauncherConnections(helper, pods);
  const records = new GhostRecordStore(stateDirectory(flags, 'ghost-records'), log);
  const domains = new DomainStore((key) => queue.add(key));
  const notify: NotifyServer = new NotifyServer({
    helper,
    sink: { domainEvent: (type, vmi, domain) => watcher.domainEvent(type, vmi, domain) },
    recorder: events,
    vmis: globalVmis,
    metrics: new RegistryNotifyMetrics(metrics),
    clock: timers,
    log,
  });
  const clients = new LauncherClients({
    helper,
    pods,
    connections,
    notify,
    records,
    nodeName: flags.nodeName,
    clock: timers,
    log,
  });
  const watcher = new DomainWatcher({
    helper,
    pods,
    clients,
    notify,
    records,
    store: domains,
    timers,
    log,
    resyncSeconds: flags.domainResyncPeriodSeconds,
    watchdogSeconds: flags.watchdogTimeoutSeconds,
  });
  helper.on('restarted', () => {
    log.info('the helper was restarted: making the notify sockets again');
    void notify.remake();
  });

  // What a pass does
  const facts = new PodFacts(helper);
  const networkState = new NetworkStateStore(stateDirectory(flags, 'network-info-cache'), log);
  const devicePolicy = new HelperDevicePolicy({
    helper,
    pods: clients,
    vmis: localVmis,
    node: flags.nodeName,
    timers,
    log,
  });
  const checksums = new ImageChecksums({
    open: (pod, volumeIndex, imagePath) => helper.openContainerDisk(pod, volumeIndex, imagePath),
    done: (vmi) => queue.add(vmiKey(vmi)),
    clock: timers,
    log,
  });
  const controller = new VmiController({
    node: {
      name: flags.nodeName,
      architecture: goArchitecture(),
      cpuModel: () => '',
      topology: () => undefined,
    },
    clusterConfig: () => cluster.current(),
    pluginsJson: () => new Uint8Array(),
    localVmis,
    globalVmis,
    domains,
    ghostRecords: records,
    localState: clients,
    expectations,
    queue,
    clients,
    pods: clients,
    containerDisks: new HelperContainerDisks({
      helper,
      podState: (podUid) => pods.get(podUid),
      podsOf: (vmi) => recordedPods(records, vmi),
      checksums,
      imageVolume: () => isGateOn(cluster.current(), 'ImageVolume'),
      clock: timers,
      log,
    }),
    hotplug: new HelperHotplugVolumes({
      helper,
      devices: devicePolicy,
      node: flags.nodeName,
      hasVolumes: (podUid) => pods.get(podUid)?.directory === true,
      podsOf: (vmi) => recordedPods(records, vmi),
      log,
    }),
    networks: new HelperPodNetworks({
      helper,
      pods: clients,
      state: networkState,
      node: flags.nodeName,
      agentPodIp: env['MY_POD_IP'],
      config: () => ({
        plugins: cluster.current().networkBindings,
        portRanges: isGateOn(cluster.current(), 'PortRangesSpec'),
      }),
      log,
    }),
    netStat: new PodNetStat(networkState),
    devices: new HelperDeviceOwnership({
      helper,
      pods: clients,
      config: () => cluster.current(),
      events,
      clock: timers,
      log,
    }),
    hypervisor: new HelperHypervisor({
      helper,
      pods: clients,
      overhead: () => ({
        architecture: goArchitecture(),
        hypervisor: cluster.current().hypervisor,
        ratio: cluster.current().additionalGuestMemoryOverheadRatio,
      }),
      log,
    }),
    downwardMetrics: new NoDownwardMetrics(),
    migrationProxy: new NoMigrationProxy(),
    hooks: new NoNodeHooks(),
    facts,
    backupTrackers: new NoBackupTrackers(),
    api: new VmiClient(rest),
    events,
    metrics: new RegistryLoopMetrics(metrics),
    timeline,
    clock: timers,
    log,
  });

  metrics
    .gauge('virt_privsep_remembered_entries', 'What the reconcile loop remembers of VMIs beside its caches.')
    .follow(() => controller.remembered);

  // Events in
  const touch = (vmi: { readonly metadata: VmiRef }) => {
    const key = vmiKey(vmi.metadata);
    expectations.set(key, 0, 0);
    queue.add(key);
  };
  const see = (vmi: { readonly metadata: VmiRef }) => {
    timeline.mark(vmi.metadata, 'seen', 'agent');
    touch(vmi);
  };
  localVmis.addHandler({ add: see, update: (_before, after) => see(after), delete: touch });
  // The two caches do not hear of a deletion at the same moment; whoever acted on the later one looks again.
  globalVmis.addHandler({
    add: () => {},
    update: () => {},
    delete: (vmi) => {
      if (!isSlim(vmi)) queue.add(vmiKey(vmi.metadata));
    },
  });
  pods.on('change', (podUid, state) => {
    if (state === undefined) facts.forget(podUid);
    for (const vmi of localVmis.list()) {
      if (vmi.status.activePods?.[podUid] !== undefined) queue.add(vmiKey(vmi.metadata));
    }
  });

  const inspect = new InspectServer({
    path: join(flags.privateDir, inspectSocketName),
    metrics,
    timelines: timeline,
    log,
  });

  // Start: first what exists is known, then passes begin.
  await inspect.start().catch((error) => {
    log.warning('nobody can ask this agent for timelines and metrics', error);
  });
  const background = [pods.run(stop)];
  records.load();
  const informers = [kubeVirts, globalVmis, localVmis, caConfigMaps];
  for (const informer of informers) informer.start();
  const ready = Promise.all([
    kubeVirts.whenSynced(),
    globalVmis.whenSynced(),
    localVmis.whenSynced(),
    watcher.start(stop),
  ]);
  const started = await Promise.race([ready.then(() => true), aborted(stop).then(() => false)]);
  if (started) {
    log.info('virt-agent is ready: caches are complete');
    background.push(watcher.run(stop), devicePolicy.run(stop));
    for (const key of domains.keys()) if (localVmis.get(key) === undefined) queue.add(key);
    background.push(runWorkers(workers, queue, log, (key) => controller.execute(key)));
    await aborted(stop);
  }

  log.info('virt-agent is stopping: running VMs go on');
  await stopInTime(
    { timers, log },
    () => queue.shutDown(),
    () => {
      notify.stop();
      connections.closeAll();
      const services = [vsock.stop(), checksums.stop(), events.stop(), inspect.stop()];
      return [...informers.map((informer) => informer.stop()), ...background, ...services];
    },
  );
  rest.close();
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}

/** Owned by the agent alone; nothing of it lies inside a pod. */
function stateDirectory(flags: Flags, name: string): string {
  const directory = join(flags.privateDir, name);
  mkdirSync(directory, { recursive: true, mode: 0o755 });
  return directory;
}

/** Where the agent's own pod is; with a kubeconfig what that says. */
function installNamespace(kubeConfig: KubeConfig): string {
  return kubeConfig.getContextObject(kubeConfig.getCurrentContext())?.namespace || defaultNamespace;
}

function recordedPods(records: GhostRecordStore, vmi: VmiRef): string[] {
  const record = records.get(vmiKey(vmi));
  const podUid = record?.uid === vmi.uid ? podUidOfSocket(record.socketFile) : undefined;
  return podUid === undefined ? [] : [podUid];
}

/** Go's name of the machine's architecture, as KubeVirt writes it. */
function goArchitecture(): string {
  return process.arch === 'x64' ? 'amd64' : process.arch;
}
