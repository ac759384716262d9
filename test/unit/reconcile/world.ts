/** A node made of recording fakes: what each collaborator answers is set, what it was asked is kept. */

import type { Domain } from '../../../agent/api/domain.js';
import { type Vmi, type VmiRef, vmiKey } from '../../../agent/api/vmi.js';
import { parseClusterConfig } from '../../../agent/cluster/config.js';
import { parseDomain } from '../../../agent/domains/domain-json.js';
import type { Logger } from '../../../agent/log/log.js';
import { VmiController } from '../../../agent/reconcile/controller.js';
import type { ControllerDeps } from '../../../agent/reconcile/deps.js';
import {
  CriticalNetworkError,
  type GuestAgentInfo,
  type LauncherClient,
  NotExist,
  VolumeFailed,
  WaitingForHotplugMount,
} from '../../../agent/reconcile/ports.js';
import type { VirtualMachineOptions } from '../../../gen/kubevirt/cmd/v1/cmd_pb.js';

export const key = 'default/testvmi';
export const host = 'node01';

/** How collaborators answer, in the words of the vectors; a text is the error to throw. */
export interface Stubs {
  launcherInitialized?: boolean;
  launcherUnresponsive?: boolean;
  launcherProbeError?: string;
  launcherClientError?: string | Error;
  launcherPingError?: string;
  launcherClientInfoNil?: boolean;
  launcherDomain?: Domain;
  getDomainError?: string;
  containerDisksReady?: boolean;
  containerDisksReadyError?: string;
  containerDiskMountError?: string;
  containerDiskUnmountError?: string;
  hotplugMountError?: string;
  hotplugUnmountError?: string;
  hotplugUnmountAllError?: string;
  networkSetupError?: string;
  networkSetupCriticalError?: string;
  networkTeardownError?: string;
  isolationDetectError?: string;
  cgroupManagerError?: string;
  chownErrors?: Record<string, string>;
  adjustResourcesError?: string;
  housekeepingError?: string;
  downwardMetricsError?: string;
  updateVMIError?: string;
  memoryDumpError?: string;
  ghostUid?: string;
  holds?: boolean;
  [rpcOrHookError: string]: unknown;
}

export interface RecordedEvent {
  type: string;
  reason: string;
  message: string;
}

const silent: Logger = {
  object: () => silent,
  with: () => silent,
  debug: () => {},
  info: () => {},
  warning: () => {},
  error: () => {},
};

export class World {
  readonly calls: string[] = [];
  readonly events: RecordedEvent[] = [];
  readonly requeues: { key: string; seconds: number }[] = [];
  readonly marks: string[] = [];
  readonly local = new Map<string, Vmi>();
  readonly global = new Map<string, Vmi>();
  readonly domains = new Map<string, Domain>();
  readonly puts: Vmi[] = [];
  readonly synced: { vmi: Vmi; options: VirtualMachineOptions }[] = [];
  readonly unmounted: ReadonlySet<string>[] = [];
  readonly closed: VmiRef[] = [];
  readonly forgotten: VmiRef[] = [];
  readonly panics: string[] = [];
  readonly droppedSeries: string[] = [];
  readonly expected = new Map<string, readonly [number, number]>();
  rateLimited = 0;
  now = Date.parse('2000-01-01T00:00:00Z');
  stubs: Stubs = {};
  kubevirtConfig: unknown = {};
  readonly controller: VmiController;
  #identified = 0;

  constructor(readonly overrides: Partial<ControllerDeps> = {}) {
    this.controller = new VmiController({ ...this.deps(), ...overrides });
  }

  /** One pass; the error that it ended in. */
  async pass(): Promise<string | null> {
    this.#identified = 0;
    try {
      await this.controller.execute(key);
      return null;
    } catch (error) {
      return (error as Error).message;
    }
  }

  /** The API server's event for the last write reaches the cache. */
  echo(): void {
    const written = this.puts.at(-1);
    if (written !== undefined) this.put(written);
    this.expected.clear();
  }

  put(vmi: Vmi, where: 'local' | 'global' = 'local'): void {
    this[where].set(vmiKey(vmi.metadata), vmi);
  }

  #fail(name: string): void {
    const text = this.stubs[name];
    if (text instanceof Error) throw text;
    if (typeof text === 'string') throw new Error(text);
  }

  #rpc(name: string, detail = ''): void {
    this.calls.push(`launcher.${name}${detail}`);
    this.#fail(`${name}Error`);
  }

  readonly client: LauncherClient = {
    ping: async () => this.#fail('launcherPingError'),
    getDomain: async () => {
      this.calls.push('launcher.GetDomain');
      this.#fail('getDomainError');
      return this.stubs.launcherDomain;
    },
    getGuestInfo: async (): Promise<GuestAgentInfo> => ({ guestAgentVersion: '5.2', supportedCommands: [] }),
    syncVirtualMachine: async (vmi, options) => {
      this.synced.push({ vmi, options });
      this.#rpc('SyncVirtualMachine');
    },
    shutdownVirtualMachine: async () => this.#rpc('ShutdownVirtualMachine'),
    killVirtualMachine: async () => this.#rpc('KillVirtualMachine'),
    deleteVirtualMachine: async () => this.#rpc('DeleteVirtualMachine'),
    hotplugHostDevices: async () => this.#rpc('HotplugHostDevices'),
    virtualMachineMemoryDump: async (_vmi, path) => {
      this.calls.push(`launcher.VirtualMachineMemoryDump ${path}`);
      this.#fail('memoryDumpError');
    },
  };

  deps(): ControllerDeps {
    const record = (name: string, error?: string) => {
      this.calls.push(name);
      if (error !== undefined) this.#fail(error);
    };
    return {
      node: { name: host, architecture: 'amd64', cpuModel: () => 'Westmere', topology: () => undefined },
      clusterConfig: () => parseClusterConfig({ spec: { configuration: this.kubevirtConfig } }),
      pluginsJson: () => new Uint8Array(),
      localVmis: { get: (k) => this.local.get(k) },
      globalVmis: { get: (k) => this.global.get(k) },
      domains: {
        get: (k) => this.domains.get(k),
        put: (k, domain) => void this.domains.set(k, domain),
        delete: (k) => void this.domains.delete(k),
        keys: () => [...this.domains.keys()],
      },
      ghostRecords: { lastKnownUid: () => this.stubs.ghostUid },
      localState: { holds: async () => this.stubs.holds === true },
      expectations: {
        satisfied: (k) => (this.expected.get(k)?.[0] ?? 0) <= 0,
        set: (k, adds, deletes) => void this.expected.set(k, [adds, deletes]),
        delete: (k) => void this.expected.delete(k),
      },
      queue: {
        addAfter: (k, ms) => void this.requeues.push({ key: k, seconds: ms / 1000 }),
        addRateLimited: () => void this.rateLimited++,
      },
      clients: {
        isUnresponsive: async () => {
          record('clients.IsUnresponsive', 'launcherProbeError');
          return {
            unresponsive: this.stubs.launcherUnresponsive === true,
            initialized: this.stubs.launcherInitialized !== false,
          };
        },
        get: async () => {
          record('clients.Get', 'launcherClientError');
          return this.client;
        },
        getVerified: async () => {
          record('clients.GetVerified', 'launcherClientError');
          this.#fail('launcherPingError');
          return this.client;
        },
        close: async (ref) => {
          record('clients.Close');
          this.closed.push(ref);
        },
        forget: async (ref) => void this.forgotten.push(ref),
        notInitializedSince: () => (this.stubs.launcherClientInfoNil === true ? undefined : this.now),
      },
      pods: {
        identify: async () => {
          this.#identified++;
          this.#fail(this.#identified === 1 ? 'cgroupManagerError' : 'isolationDetectError');
        },
      },
      containerDisks: {
        ready: async () => {
          record('containerDisk.Ready', 'containerDisksReadyError');
          return this.stubs.containerDisksReady !== false;
        },
        mountAndVerify: async () => record('containerDisk.MountAndVerify', 'containerDiskMountError'),
        unmount: async () => record('containerDisk.Unmount', 'containerDiskUnmountError'),
        computeChecksums: () => {
          record('containerDisk.ComputeChecksums');
          return { containerDisks: new Map() };
        },
      },
      hotplug: {
        mount: async () => {
          record('hotplug.Mount');
          const error = this.stubs.hotplugMountError;
          if (error === 'ErrWaitingForHotplugMount') {
            throw new WaitingForHotplugMount('not there: waiting for hotplug mount');
          }
          if (error === 'ErrNotExist') throw new NotExist('vol gone: file does not exist');
          if (error === 'VolumeFailed') throw new VolumeFailed('bad is a link');
          this.#fail('hotplugMountError');
        },
        unmount: async (_vmi, attached) => {
          this.unmounted.push(attached);
          record('hotplug.Unmount', 'hotplugUnmountError');
        },
        unmountAll: async () => record('hotplug.UnmountAll', 'hotplugUnmountAllError'),
        isMounted: async () => false,
      },
      networks: {
        setup: async (_vmi, networks) => {
          if (this.stubs.isolationDetectError !== undefined) {
            throw new Error(
              `failed to detect isolation for launcher pod: ${this.stubs.isolationDetectError}`,
            );
          }
          record(`network.Setup ${networks.join(' ')}`, 'networkSetupError');
          const critical = this.stubs.networkSetupCriticalError;
          if (critical !== undefined) throw new CriticalNetworkError(`Critical network error: ${critical}`);
        },
        teardown: async () => record('network.Teardown', 'networkTeardownError'),
      },
      netStat: { updateStatus: async () => {}, teardown: () => record('netStat.Teardown') },
      devices: {
        claim: async (vmi) => {
          this.calls.push('chown /dev/kvm');
          const error = this.stubs.chownErrors?.['/dev/kvm'];
          if (error !== undefined) throw new Error(`failed to set up file ownership for /dev/kvm: ${error}`);
          if (vmi.spec.domain?.launchSecurity?.sev != null || vmi.spec.domain?.launchSecurity?.snp != null) {
            if (this.stubs['sevDevice'] !== true) {
              throw new Error(
                'failed opening sev for path root: <root>, relative: /dev/sev: no such file or directory',
              );
            }
          }
          return true;
        },
      },
      hypervisor: {
        adjustResources: async () => record('hypervisor.AdjustResources', 'adjustResourcesError'),
        handleHousekeeping: async () => record('hypervisor.HandleHousekeeping', 'housekeepingError'),
      },
      downwardMetrics: {
        startServer: async () => record('downwardMetrics.StartServer', 'downwardMetricsError'),
        stopServer: () => record('downwardMetrics.StopServer'),
      },
      migrationProxy: {
        stopTargetListener: () => record('proxy.StopTargetListener'),
        stopSourceListener: () => record('proxy.StopSourceListener'),
      },
      hooks: {
        present: true,
        call: async (point) => {
          record(`nodeHook.${point}`, `${point}HookError`);
        },
      },
      facts: {
        selinuxContext: async () => undefined,
        isoSize: () => Promise.reject(new Error('no ISO here')),
      },
      backupTrackers: { list: () => [], requireRedefinition: async () => {} },
      api: {
        update: async (vmi) => {
          this.puts.push(vmi);
          record('api.UpdateVMI', 'updateVMIError');
          return vmi;
        },
      },
      events: {
        event: (_object, type, reason, message) => void this.events.push({ type, reason, message }),
      },
      metrics: {
        vmiSynced: () => {},
        forgetVmi: (k) => void this.droppedSeries.push(k),
        guestPanicked: (_ref, type, code) => void this.panics.push(`${type} ${code}`),
      },
      timeline: { mark: (_ref, step, who) => void this.marks.push(`${step} (${who})`) },
      clock: { now: () => this.now },
      log: silent,
    };
  }
}

/** Partial VMI JSON -> a VMI whose absent parts are empty. */
export function vmiOf(json: object | null): Vmi | undefined {
  if (json === null) return undefined;
  const { metadata, spec, status, ...other } = json as Record<string, object>;
  return {
    ...other,
    metadata: { name: '', namespace: '', uid: '', ...metadata },
    spec: { domain: { devices: {} }, ...spec },
    status: { ...status },
  } as unknown as Vmi;
}

/** Partial domain JSON as on the wire. */
export function domainOf(json: object | null | undefined): Domain | undefined {
  return json === null || json === undefined ? undefined : parseDomain(JSON.stringify(json));
}
