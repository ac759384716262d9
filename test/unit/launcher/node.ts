/** The agent's side of the wires, put together over a fake helper: what the composition root does. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import type { Domain } from '../../../agent/api/domain.js';
import type { Vmi, VmiRef } from '../../../agent/api/vmi.js';
import { GhostRecordStore } from '../../../agent/domains/ghost-records.js';
import { DomainStore } from '../../../agent/domains/store.js';
import { DomainWatcher } from '../../../agent/domains/watcher.js';
import { HelperClient } from '../../../agent/helper/helper-client.js';
import { LauncherPods } from '../../../agent/helper/launcher-pods.js';
import { samePodState, toPodState } from '../../../agent/helper/pod-state.js';
import { createHelperTransport } from '../../../agent/helper/transport.js';
import { systemTimers, type Timers } from '../../../agent/kube/timers.js';
import { LauncherClients } from '../../../agent/launcher/clients.js';
import { LauncherConnections } from '../../../agent/launcher/connections.js';
import { launcherSocketPath } from '../../../agent/launcher/sockets.js';
import { NotifyServer } from '../../../agent/notify/server.js';
import { PodStateSchema } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { eventually, FakeHelper, FakeLauncher, quietLog, type Reply } from './peers.js';

export class TestNode {
  readonly fake = new FakeHelper();
  readonly recordsDirectory = mkdtempSync(join(tmpdir(), 'ghost-records-'));
  readonly clock = { time: Date.parse('2026-01-01T00:00:00Z'), now: () => this.clock.time };
  readonly logLines: string[] = [];
  readonly log = quietLog(this.logLines);
  readonly changes: string[] = [];
  /** [key, domain] of each write, in order. */
  readonly writes: [string, Domain | undefined][] = [];
  readonly events: string[] = [];
  readonly refused: string[] = [];
  readonly vmis = new Map<string, Vmi>();
  readonly helper: HelperClient;
  readonly pods: LauncherPods;
  readonly records: GhostRecordStore;
  readonly store: DomainStore;
  readonly connections: LauncherConnections;
  readonly notify: NotifyServer;
  readonly clients: LauncherClients;
  readonly watcher: DomainWatcher;
  private readonly stopping = new AbortController();
  private readonly launchers = new Map<string, FakeLauncher>();
  private readonly silent: { server: Server; sockets: Socket[] }[] = [];
  private following: Promise<void> | undefined;

  /** `timers`: those of the domain watcher, instead of the system's with the time of `clock`. */
  constructor(options: { nodeName?: string; watchdogSeconds?: number; timers?: Timers } = {}) {
    const { log, clock } = this;
    this.helper = new HelperClient(createHelperTransport(this.fake.socketPath), this.fake);
    this.pods = new LauncherPods({ helper: this.helper, log, recheckIntervalMs: 60_000 });
    this.records = new GhostRecordStore(this.recordsDirectory, log);
    this.store = new DomainStore((key) => {
      this.changes.push(key);
      this.writes.push([key, this.store.get(key)]);
    });
    this.connections = new LauncherConnections(this.helper, this.pods);
    this.notify = new NotifyServer({
      helper: this.helper,
      sink: { domainEvent: (type, vmi, domain) => this.watcher.domainEvent(type, vmi, domain) },
      recorder: { event: (_, type, reason, message) => this.events.push(`${type} ${reason} ${message}`) },
      vmis: { get: (key) => this.vmis.get(key) },
      metrics: { eventRefused: (why) => this.refused.push(why) },
      clock,
      log,
    });
    this.clients = new LauncherClients({
      helper: this.helper,
      pods: this.pods,
      connections: this.connections,
      notify: this.notify,
      records: this.records,
      nodeName: options.nodeName ?? 'node01',
      clock,
      log,
    });
    this.watcher = new DomainWatcher({
      helper: this.helper,
      pods: this.pods,
      clients: this.clients,
      notify: this.notify,
      records: this.records,
      store: this.store,
      timers: options.timers ?? { ...systemTimers(), now: clock.now },
      log,
      resyncSeconds: 300,
      watchdogSeconds: options.watchdogSeconds ?? 30,
    });
  }

  get signal(): AbortSignal {
    return this.stopping.signal;
  }

  async start(): Promise<void> {
    await this.fake.start();
    this.follow();
    await this.pods.whenSynced(AbortSignal.timeout(5_000));
  }

  follow(): void {
    this.following = this.pods.run(this.signal);
  }

  async stop(): Promise<void> {
    this.stopping.abort();
    this.notify.stop();
    this.connections.closeAll();
    for (const launcher of this.launchers.values()) launcher.stop();
    for (const { server, sockets } of this.silent) {
      for (const socket of sockets) socket.destroy();
      server.close();
    }
    await this.fake.stop();
    await this.following;
    rmSync(this.recordsDirectory, { recursive: true, force: true });
  }

  advance(seconds: number): void {
    this.clock.time += seconds * 1000;
  }

  /** A launcher that listens in the pod. The helper tells about it. */
  async launch(podUid: string, reply: Reply, change = {}): Promise<FakeLauncher> {
    const launcher = new FakeLauncher(
      ['Ping', 'GetDomain', 'SyncVirtualMachine', 'KillVirtualMachine'],
      reply,
    );
    // Stopping one removes its socket file, so it goes first.
    this.launchers.get(podUid)?.stop();
    rmSync(this.fake.launcherSocket(podUid), { force: true });
    await launcher.listen(this.fake.launcherSocket(podUid));
    this.launchers.set(podUid, launcher);
    await this.pod(podUid, change);
    return launcher;
  }

  /** A launcher that accepts and says nothing, like a stopped one. Its connections, as they come. */
  async hang(podUid: string): Promise<Socket[]> {
    const sockets: Socket[] = [];
    const server = createServer({ pauseOnConnect: true }, (socket) => sockets.push(socket));
    this.silent.push({ server, sockets });
    await new Promise<void>((resolve) => server.listen(this.fake.launcherSocket(podUid), resolve));
    await this.pod(podUid, {});
    return sockets;
  }

  /** Changes what the helper sees and waits until the agent knows. */
  async pod(podUid: string, change: Parameters<FakeHelper['setPod']>[1]): Promise<void> {
    const wanted = toPodState(create(PodStateSchema, this.fake.setPod(podUid, change)));
    await eventually(() => {
      const known = this.pods.get(podUid);
      return known !== undefined && samePodState(known, wanted);
    }, `the agent knows ${podUid}`);
  }

  async gone(podUid: string): Promise<void> {
    this.fake.removePod(podUid);
    await eventually(() => this.pods.get(podUid) === undefined, `the agent knows that ${podUid} is gone`);
  }

  record(vmi: VmiRef, podUid: string): void {
    this.records.add({ ...vmi, socketFile: launcherSocketPath(podUid) });
  }

  recordFiles(): string[] {
    return readdirSync(this.recordsDirectory).sort();
  }
}

export function vmiWithPods(ref: VmiRef, activePods: Record<string, string>): Vmi {
  return { metadata: { ...ref }, spec: { domain: { devices: {} } }, status: { activePods } };
}

/** A launcher's answer to GetDomain. */
export function domainReply(json: string): Buffer {
  const text = Buffer.from(json);
  const inner = Buffer.from([0x08, 0x01]);
  return Buffer.concat([
    Buffer.from([0x0a, inner.length]),
    inner,
    ...(json === '' ? [] : [Buffer.from([0x12]), varint(text.length), text]),
  ]);
}

export function domainJson(vmi: VmiRef, status = 'Running', reason = 'Unknown'): string {
  return JSON.stringify({
    kind: 'Domain',
    ObjectMeta: { name: vmi.name, namespace: vmi.namespace },
    Spec: { Name: `${vmi.namespace}_${vmi.name}`, Metadata: { KubeVirt: { UID: vmi.uid } } },
    Status: { Status: status, Reason: reason },
  });
}

/** Answers Ping with success and GetDomain with what `domain` gives. */
export function answering(domain: () => string): Reply {
  return ({ path }) => (path.endsWith('GetDomain') ? domainReply(domain()) : Buffer.from([0x08, 0x01]));
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  do {
    bytes.push((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    rest >>>= 7;
  } while (rest > 0);
  return Buffer.from(bytes);
}
