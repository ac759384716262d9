import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { connect, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { createConnectTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { GhostRecordStore } from '../../agent/domains/ghost-records.js';
import { DomainStore } from '../../agent/domains/store.js';
import { DomainWatcher } from '../../agent/domains/watcher.js';
import { HelperClient } from '../../agent/helper/helper-client.js';
import { LauncherPods } from '../../agent/helper/launcher-pods.js';
import { systemTimers } from '../../agent/kube/timers.js';
import { LauncherClients } from '../../agent/launcher/clients.js';
import { LauncherConnections } from '../../agent/launcher/connections.js';
import { PodFacts } from '../../agent/launcher/pod-facts.js';
import { createLogger } from '../../agent/log/log.js';
import { NotifyServer } from '../../agent/notify/server.js';
import { VirtualMachineOptionsSchema } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { PodListener, PodSocket } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { waitFor } from '../harness/pods/run.js';
import { agentUser, asUser, HelperProcess } from './privhelper-fixture.js';

const ref = { namespace: 'default', name: 'vm1', uid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
const deadlineMs = 20_000;

describe.runIf(process.getuid?.() === 0)('helper, launcher and the agent’s side of the wires', () => {
  const recordsDirectory = mkdtempSync(join(tmpdir(), 'vp-records-'));
  const stopping = new AbortController();
  const clock = { now: () => Date.now() };
  const lines: string[] = [];
  const log = createLogger({
    component: 'virt-handler',
    level: 'debug',
    write: (l) => lines.push(l),
    now: () => new Date(),
  });
  let node: HarnessNode;
  let process_: HelperProcess;
  let pod: Pod;
  let vmi: Vmi;
  let helper: HelperClient;
  let pods: LauncherPods;
  let store: DomainStore;
  let records: GhostRecordStore;
  let notify: NotifyServer;
  let clients: LauncherClients;
  let watcher: DomainWatcher;
  let following: Promise<void>;

  beforeAll(async () => {
    node = await createNode();
    process_ = new HelperProcess(node.podsDir);
    await process_.start();
    const path = join(process_.socketDir, 'helper.sock');
    const baseUrl = 'http://localhost';
    const createConnection = () => asUser(agentUser, () => connect(path));
    const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection });
    helper = new HelperClient(createConnectTransport({ baseUrl, httpVersion: '2', sessionManager }), {
      connected: async (ticket) =>
        new Socket({ fd: await process_.claim(ticket), readable: true, writable: true }),
      listening: async (ticket) => ({ fd: await process_.claim(ticket) }) as object,
      file: (ticket) => process_.claim(ticket),
    });
    pods = new LauncherPods({ helper, log, recheckIntervalMs: 60_000 });
    following = pods.run(stopping.signal);
    records = new GhostRecordStore(recordsDirectory, log);
    store = new DomainStore(() => undefined);
    const connections = new LauncherConnections(helper, pods);
    notify = new NotifyServer({
      helper,
      sink: { domainEvent: (...event) => watcher.domainEvent(...event) },
      recorder: { event: () => undefined },
      vmis: { get: () => vmi },
      metrics: { eventRefused: () => undefined },
      clock,
      log,
    });
    helper.on('restarted', () => void notify.remake());
    clients = new LauncherClients({
      helper,
      pods,
      connections,
      notify,
      records,
      nodeName: 'node01',
      clock,
      log,
    });
    const common = { helper, pods, clients, notify, records, store, clock, log };
    watcher = new DomainWatcher({
      ...common,
      timers: systemTimers(),
      resyncSeconds: 300,
      watchdogSeconds: 30,
    });
    await watcher.start(AbortSignal.timeout(deadlineMs));

    const image = join(node.root, 'disk.raw');
    writeFileSync(image, 'image');
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: ref.uid,
      podIP: '10.244.2.5',
      containerDisks: [{ index: 0, image }],
    });
    await startLauncher(pod, { namespace: ref.namespace, name: ref.name, vmiUid: ref.uid, machine: 'fake' });
    vmi = {
      kind: 'VirtualMachineInstance',
      apiVersion: 'kubevirt.io/v1',
      metadata: { ...ref },
      spec: { domain: { devices: {}, memory: { guest: '128Mi' } } },
      status: { phase: 'Scheduled', activePods: { [pod.uid]: 'node01' } },
    };
  });
  afterAll(async () => {
    stopping.abort();
    notify?.stop();
    await process_?.destroy();
    await following;
    await node?.destroy();
    rmSync(recordsDirectory, { recursive: true, force: true });
  });

  it('WIRE-008 connects, makes the pipe, and the launcher’s events arrive through it', async () => {
    await waitFor('launcher socket', deadlineMs, () => pods.get(pod.uid)?.launcherSocket === 'present');
    expect(await clients.isUnresponsive(vmi)).toEqual({ unresponsive: false, initialized: true });
    const client = await clients.getVerified(vmi);
    expect(await client.getDomain()).toBeUndefined();
    const pipe = statSync(
      join(node.podsDir, pod.uid, 'volumes/kubernetes.io~empty-dir/public/domain-notify-pipe.sock'),
    );
    expect([pipe.isSocket(), pipe.uid, pipe.gid, pipe.mode & 0o777]).toEqual([true, 107, 107, 0o755]);
    await client.syncVirtualMachine(vmi, create(VirtualMachineOptionsSchema));
    await waitFor('Running', deadlineMs, () => store.get('default/vm1')?.Status.Status === 'Running');
    expect((await client.getDomain())?.Spec.Metadata.KubeVirt.UID).toBe(ref.uid);
  });

  it('sockets, listeners and images of the pod come to the agent as descriptors', async () => {
    const named = { podUid: pod.uid, vmiUid: ref.uid };
    const disk = await helper.connect({ pod: named, socket: PodSocket.CONTAINER_DISK, index: 0 });
    // The container-disk process takes a connection and ends it.
    disk.resume();
    await once(disk, 'close');
    await expect(helper.connectAttachment(named, ref.uid)).rejects.toMatchObject({ errnoName: 'ENOENT' });

    const listener = PodListener.MIGRATION_CONTROL;
    const path = join(pod.emptyDir('public'), `migrationproxy/${ref.uid}-source.sock`);
    const { fd } = (await helper.listen(named, listener)) as { fd: number };
    expect(statSync(path).isSocket()).toBe(true);
    expect(await helper.closeListener(named, listener)).toBe(true);
    expect(existsSync(path)).toBe(false);
    closeSync(fd);

    const file = await helper.openContainerDisk(named, 0, '');
    expect(readFileSync(file, 'utf8')).toBe('image');
    closeSync(file);
  });

  it('REC-036 the size of an ISO image is the one that the launcher made it of', async () => {
    const facts = new PodFacts(helper);
    const iso = { case: 'secretVolume', value: 'vol' } as const;
    await expect(facts.isoSize(vmi, pod.uid, iso)).rejects.toMatchObject({ errnoName: 'ENOENT' });
    const directory = join(pod.emptyDir('private'), 'secret-disks');
    mkdirSync(directory, { mode: 0o700 });
    writeFileSync(join(directory, 'vol.iso'), Buffer.alloc(378_880), { mode: 0o600 });
    expect(await facts.isoSize(vmi, pod.uid, iso)).toBe(378_880);
  });

  it('REC-047 a killed helper disturbs nothing, and after its return all pipes are made again', async () => {
    const client = await clients.get(vmi);
    const path = join(
      node.podsDir,
      pod.uid,
      'volumes/kubernetes.io~empty-dir/public/domain-notify-pipe.sock',
    );
    const { ino } = statSync(path);
    await process_.stop('SIGKILL');
    await client.ping();
    await process_.start();
    await waitFor('another pipe', deadlineMs, () => {
      try {
        return statSync(path).ino !== ino;
      } catch {
        return false;
      }
    });
    expect(notify.podUids()).toEqual([pod.uid]);
    await client.killVirtualMachine(ref);
    await waitFor('Shutoff', deadlineMs, () => store.get('default/vm1')?.Status.Status === 'Shutoff');
  });

  it('WIRE-009 closes and forgets without remains', async () => {
    await clients.close(ref);
    await clients.forget(ref);
    expect(records.list()).toEqual([]);
    expect(notify.podUids()).toEqual([]);
    const path = join(
      node.podsDir,
      pod.uid,
      'volumes/kubernetes.io~empty-dir/public/domain-notify-pipe.sock',
    );
    expect(() => statSync(path)).toThrow('ENOENT');
  });
});
