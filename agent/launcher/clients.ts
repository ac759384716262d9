import type { Domain } from '../api/domain.js';
import type { PodFinder, PodRef } from '../api/pod-ref.js';
import { type Vmi, type VmiRef, vmiKey } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { Clock } from '../clock.js';
import {
  DifferingSocket,
  DifferingUid,
  type GhostRecord,
  type GhostRecordStore,
  recordRef,
} from '../domains/ghost-records.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { LauncherPods } from '../helper/launcher-pods.js';
import type { Logger } from '../log/log.js';
import type { NotifyServer } from '../notify/server.js';
import {
  ConnectHeldBack,
  GhostRecordConflict,
  type LauncherClient,
  type LauncherClients as LauncherClientsPort,
  type LauncherPods as LauncherPodsPort,
  type LauncherProbe,
  type LocalState,
} from '../reconcile/ports.js';
import { ConnectBackoff } from './backoff.js';
import { CmdClient } from './cmd-client.js';
import type { LauncherConnections, Lease, Liveness } from './connections.js';
import {
  findSocket,
  hasPodDirectory,
  isPodUid,
  isSocketUnresponsive,
  launcherSocketPath,
  podUidOfSocket,
  type SocketSearch,
} from './sockets.js';

/** A pod whose socket does not appear within this time has no launcher any more. */
const initializationLimitMs = 180_000;
/** Pods of one VMI that are looked at; two during a migration on one node. */
const maxPodsOfVmi = 16;
/** The helper's first list of pods after a start. */
const syncTimeoutMs = 5_000;

interface Connected {
  readonly client: CmdClient;
  readonly lease: Lease;
  readonly podUid: string;
}

/** What is known of one VMI's launcher. */
interface Entry {
  notInitializedSince: number;
  /** The pod whose socket was found; it is not looked for again. */
  readyPodUid: string | undefined;
  connected: Connected | undefined;
  connecting: Promise<LauncherClient> | undefined;
  closed: boolean;
  readonly backoff: ConnectBackoff;
}

export interface LauncherClientsOptions {
  readonly helper: Pick<HelperClient, 'identify' | 'release'>;
  readonly pods: Pick<LauncherPods, 'get' | 'refresh' | 'synced' | 'whenSynced'>;
  readonly connections: Pick<LauncherConnections, 'acquire' | 'close' | 'liveness'>;
  readonly notify: Pick<NotifyServer, 'ensure' | 'close'>;
  readonly records: GhostRecordStore;
  /** Pods of other nodes are skipped; empty: pods of any node count. */
  readonly nodeName: string;
  readonly clock: Clock;
  readonly log: Logger;
}

/** The launcher clients of this node, one entry for each VMI UID (KubeVirt pkg/virt-handler/launcher-clients). */
export class LauncherClients implements LauncherClientsPort, LauncherPodsPort, LocalState, PodFinder {
  private readonly entries = new Map<string, Entry>();

  constructor(private readonly options: LauncherClientsOptions) {}

  async isUnresponsive(vmi: Vmi | VmiRef): Promise<LauncherProbe> {
    await this.whenPodsKnown();
    const { uid } = refOf(vmi);
    // Nothing is kept for a VMI whose UID nobody knows: it would never be forgotten.
    if (uid === '') return { unresponsive: true, initialized: true };
    const entry = this.entries.get(uid) ?? this.createEntry(uid);
    const verdict = this.judge(vmi, entry);
    if (!verdict.unresponsive) return verdict;
    // The helper's events may be behind, or lost with a helper that restarts: nobody is declared dead by hearsay.
    const podUids = entry.readyPodUid === undefined ? Object.keys(this.activePods(vmi)) : [entry.readyPodUid];
    for (const podUid of podUids.filter(isPodUid).slice(0, maxPodsOfVmi))
      await this.options.pods.refresh(podUid);
    return this.judge(vmi, entry);
  }

  private judge(vmi: Vmi | VmiRef, entry: Entry): LauncherProbe {
    const { pods, clock } = this.options;
    if (entry.readyPodUid === undefined) {
      const search = this.search(vmi);
      if (search.kind !== 'found') {
        const directory = hasPodDirectory(this.activePods(vmi), (podUid) => pods.get(podUid));
        const tooLong = clock.now() - entry.notInitializedSince > initializationLimitMs;
        const gone = !directory || tooLong;
        return { unresponsive: gone, initialized: gone };
      }
      entry.readyPodUid = search.podUid;
    }
    return { unresponsive: isSocketUnresponsive(pods.get(entry.readyPodUid)), initialized: true };
  }

  async get(vmi: Vmi | VmiRef): Promise<LauncherClient> {
    const ref = refOf(vmi);
    const { uid } = ref;
    if (uid === '') throw socketError({ kind: 'none' }, ref);
    const entry = this.entries.get(uid) ?? this.createEntry(uid);
    if (entry.connected !== undefined) {
      if (entry.connected.lease.connection.alive) return entry.connected.client;
      entry.connected = undefined;
    }
    entry.connecting ??= this.connect(vmi, entry).finally(() => {
      entry.connecting = undefined;
    });
    return entry.connecting;
  }

  async getVerified(vmi: Vmi | VmiRef): Promise<LauncherClient> {
    const client = await this.get(vmi);
    await client.ping();
    return client;
  }

  async close(vmi: VmiRef): Promise<void> {
    const entry = this.entries.get(vmi.uid);
    if (vmi.uid === '' || entry === undefined) return;
    this.entries.delete(vmi.uid);
    entry.closed = true;
    entry.connected?.lease.release();
    const podUid = entry.connected?.podUid ?? entry.readyPodUid ?? this.recordedPodUid(vmi);
    if (podUid === undefined) return;
    this.options.connections.close(podUid);
    await this.options.notify.close(podUid);
  }

  async forget(vmi: VmiRef): Promise<void> {
    await this.close(vmi);
    const key = vmiKey(vmi);
    const record = this.options.records.get(key);
    if (record === undefined || record.uid !== vmi.uid) return;
    const podUid = podUidOfSocket(record.socketFile);
    if (podUid !== undefined) {
      this.options.connections.close(podUid);
      await this.options.notify.close(podUid);
      await this.releasePod({ podUid, vmiUid: vmi.uid });
    }
    this.options.records.delete(key);
  }

  /** The ghost record stays until everything else of the VMI is gone, so it stands for mounts and links too. */
  async holds(vmi: VmiRef): Promise<boolean> {
    return this.entries.has(vmi.uid) || this.options.records.lastKnownUid(vmiKey(vmi)) === vmi.uid;
  }

  notInitializedSince(uid: string): number | undefined {
    return this.entries.get(uid)?.notInitializedSince;
  }

  /**
   * The launcher's process found, checked and held by the helper. A connection is made to that process
   * only and ends with it, so while there is one nothing has to be asked.
   */
  async identify(vmi: Vmi): Promise<void> {
    const connected = this.entries.get(vmi.metadata.uid)?.connected;
    if (connected?.lease.connection.alive) return;
    await this.options.helper.identify(await this.find(vmi));
  }

  async find(vmi: Vmi): Promise<PodRef> {
    await this.whenPodsKnown();
    const { uid } = vmi.metadata;
    const podUid = this.entries.get(uid)?.connected?.podUid;
    if (podUid !== undefined) return { podUid, vmiUid: uid };
    const search = this.search(vmi);
    if (search.kind === 'found') return { podUid: search.podUid, vmiUid: uid };
    throw socketError(search, refOf(vmi));
  }

  /** Asks the launcher of a ghost record, over the connection that exists or one made for this answer. */
  async domainOf(record: GhostRecord): Promise<Domain | undefined> {
    const podUid = podUidOfSocket(record.socketFile);
    if (podUid === undefined) throw new Error(`${record.socketFile} is not a launcher's socket`);
    const lease = await this.options.connections.acquire({ podUid, vmiUid: record.uid });
    try {
      return await new CmdClient(lease.connection.transport, recordRef(record)).getDomain();
    } finally {
      lease.release();
    }
  }

  async livenessOf(record: GhostRecord): Promise<Liveness> {
    const podUid = podUidOfSocket(record.socketFile);
    if (podUid === undefined) return 'dead';
    return this.options.connections.liveness({ podUid, vmiUid: record.uid });
  }

  private async connect(vmi: Vmi | VmiRef, entry: Entry): Promise<LauncherClient> {
    await this.whenPodsKnown();
    const { clock, log } = this.options;
    const ref = refOf(vmi);
    const circumstances = this.circumstances(vmi);
    const pending = entry.backoff.pending(clock.now(), circumstances);
    if (pending !== undefined) throw new ConnectHeldBack(pending.error.message, pending.retryAfterMs);
    try {
      const connected = await this.connectNow(vmi, ref);
      if (entry.closed) {
        connected.lease.release();
        throw new Error('the launcher client was closed while it connected');
      }
      entry.backoff.succeeded();
      entry.connected = connected;
      entry.readyPodUid = connected.podUid;
      entry.notInitializedSince = clock.now();
      return connected.client;
    } catch (reason) {
      if (reason instanceof GhostRecordConflict) throw reason;
      const error = asError(reason);
      entry.backoff.failed(clock.now(), circumstances, error);
      log.object(ref).debug(`launcher not connected: ${explain(error)}`);
      throw error;
    }
  }

  private async connectNow(vmi: Vmi | VmiRef, ref: VmiRef): Promise<Connected> {
    const { connections, notify } = this.options;
    const podUid = await this.choosePod(vmi, ref);
    await this.remember({ ...ref, socketFile: launcherSocketPath(podUid) });
    // From here on the record stays whatever happens: the VM may be running.
    const [leased, listening] = await Promise.allSettled([
      connections.acquire({ podUid, vmiUid: ref.uid }),
      notify.ensure({ podUid, vmi: ref }),
    ]);
    if (leased.status === 'rejected') throw leased.reason;
    const lease = leased.value;
    if (listening.status === 'rejected') {
      lease.release();
      throw listening.reason;
    }
    return { client: new CmdClient(lease.connection.transport, ref), lease, podUid };
  }

  private async choosePod(vmi: Vmi | VmiRef, ref: VmiRef): Promise<string> {
    const search = this.search(vmi);
    if (search.kind === 'found') return search.podUid;
    if (search.kind === 'none') throw socketError(search, ref);
    // Two pods of one VM and no record: the one that has its domain is the one to manage.
    const answers = await Promise.all(
      search.podUids.map(async (podUid) => {
        const record = { ...ref, socketFile: launcherSocketPath(podUid) };
        const domain = await this.domainOf(record).catch(() => undefined);
        return domain?.Spec.Metadata.KubeVirt.UID === ref.uid ? podUid : undefined;
      }),
    );
    const [podUid, ...others] = answers.filter((answer) => answer !== undefined);
    if (podUid === undefined || others.length > 0) throw socketError(search, ref);
    return podUid;
  }

  private async remember(record: GhostRecord): Promise<void> {
    const { records } = this.options;
    try {
      records.add(record);
    } catch (error) {
      if (error instanceof DifferingUid) {
        const alive = (await this.livenessOf(error.existing)) !== 'dead';
        throw new GhostRecordConflict(error.message, recordRef(error.existing), alive);
      }
      if (!(error instanceof DifferingSocket) || (await this.livenessOf(error.existing)) !== 'dead')
        throw error;
      records.replace(record);
    }
  }

  private createEntry(uid: string): Entry {
    const entry: Entry = {
      notInitializedSince: this.options.clock.now(),
      readyPodUid: undefined,
      connected: undefined,
      connecting: undefined,
      closed: false,
      backoff: new ConnectBackoff(),
    };
    this.entries.set(uid, entry);
    return entry;
  }

  private search(vmi: Vmi | VmiRef): SocketSearch {
    const { nodeName, pods } = this.options;
    return findSocket(
      this.activePods(vmi),
      nodeName,
      (uid) => pods.get(uid),
      this.recordedPodUid(refOf(vmi)),
    );
  }

  /** A VMI that is gone from the API has no active pods; the one that its ghost record names is left. */
  private activePods(vmi: Vmi | VmiRef): Record<string, string> {
    if ('metadata' in vmi) return vmi.status.activePods ?? {};
    const podUid = this.recordedPodUid(vmi);
    return podUid === undefined ? {} : { [podUid]: this.options.nodeName };
  }

  private recordedPodUid(ref: VmiRef): string | undefined {
    const record = this.options.records.get(vmiKey(ref));
    return record === undefined || record.uid !== ref.uid ? undefined : podUidOfSocket(record.socketFile);
  }

  private circumstances(vmi: Vmi | VmiRef): string {
    const { pods } = this.options;
    return Object.keys(this.activePods(vmi))
      .sort()
      .map((podUid) => `${podUid}=${pods.get(podUid)?.launcherSocket ?? 'absent'}`)
      .join();
  }

  private async whenPodsKnown(): Promise<void> {
    if (!this.options.pods.synced) await this.options.pods.whenSynced(AbortSignal.timeout(syncTimeoutMs));
  }

  private async releasePod(pod: PodRef): Promise<void> {
    try {
      await this.options.helper.release(pod);
    } catch (error) {
      // The helper lets go by itself once the pod's directory is gone.
      this.options.log.warning(`helper keeps launcher pod ${pod.podUid}`, error);
    }
  }
}

function refOf(vmi: Vmi | VmiRef): VmiRef {
  if (!('metadata' in vmi)) return vmi;
  const { namespace, name, uid } = vmi.metadata;
  return { namespace, name, uid };
}

function socketError(search: Exclude<SocketSearch, { kind: 'found' }>, ref: VmiRef): Error {
  return search.kind === 'none'
    ? new Error(`No command socket found for vmi ${ref.uid}`)
    : new Error(`Found multiple sockets for vmi ${ref.namespace}/${ref.name}. waiting for only one to exist`);
}

function explain(error: Error): string {
  return error.cause instanceof Error ? `${error.message} (${error.cause.message})` : error.message;
}
