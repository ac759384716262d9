/** The one domain of a launcher: its definition, metadata and machine, and the commands on it. */

import type { Vmi } from '../../../agent/api/vmi.js';
import type { VirtualMachineOptions } from '../../../gen/kubevirt/cmd/v1/cmd_pb.js';
import {
  domainDocument,
  type GracePeriodDocument,
  type JsonObject,
  type MetadataDocument,
  machineSpec,
  timestamp,
} from './domain-document.js';
import { invalidOperation, Lifecycle, type LifecycleEvent, reasonName, State, stateName } from './libvirt.js';
import type { Machine, MachineConfig, MachineDisk, MachineListener, MachineStats } from './machine.js';
import type { DomainName, Observation } from './notifications.js';
import {
  domainName,
  machineConfig,
  nicsAfterHotplug,
  type PodPaths,
  pluggedDisks,
  sriovNetworks,
} from './vmi-machine.js';

/** Commands on the domain. Failures are thrown; a LibvirtError keeps libvirt's code. */
export interface DomainManager {
  sync(vmi: Vmi, options: VirtualMachineOptions | undefined): Promise<void>;
  pause(vmi: Vmi): Promise<void>;
  unpause(vmi: Vmi): Promise<void>;
  reset(vmi: Vmi): Promise<void>;
  softReboot(vmi: Vmi): Promise<void>;
  shutdown(vmi: Vmi): Promise<void>;
  kill(vmi: Vmi): Promise<void>;
  delete(vmi: Vmi): Promise<void>;
  /** Plugs the SR-IOV devices that the pod has got. */
  hotplugHostDevices(vmi: Vmi): Promise<void>;
  /** Documents of all domains that libvirt knows. */
  domains(): Promise<JsonObject[]>;
  /** `null` when there are none. */
  stats(): Promise<JsonObject | null>;
  qemuVersion(): Promise<string>;
  guestInfo(): Promise<JsonObject>;
  users(): Promise<JsonObject[]>;
  filesystems(): Promise<JsonObject[]>;
}

export interface DomainManagerOptions {
  readonly paths: PodPaths;
  readonly createMachine: (listener: MachineListener) => Machine;
  readonly onEvent: (event: LifecycleEvent | undefined) => void;
  /** Something outside the machine changed: metadata. */
  readonly onMetadata: () => void;
  readonly now: () => Date;
  /** Whether the guest lets go of a NIC that is to be unplugged. */
  readonly releasesNic: (network: string) => boolean;
  /** Called before a machine starts: network services of the pod. */
  readonly beforeStart: (vmi: Vmi) => Promise<void>;
  /** The first event then goes out before the metadata is set, as can happen with the real launcher. */
  readonly lateMetadata: boolean;
}

interface Defined {
  readonly name: DomainName;
  readonly config: MachineConfig;
}

const defaultGraceSeconds = 30;

export class MachineDomainManager implements DomainManager {
  readonly #machine: Machine;
  #defined: Defined | undefined;
  #metadata: MetadataDocument = { UID: '', GracePeriod: null };
  #userPaused = false;

  constructor(private readonly options: DomainManagerOptions) {
    this.#machine = options.createMachine((event) => options.onEvent(event));
  }

  /** Process of the emulator. */
  get pid(): number | undefined {
    return this.#machine.pid;
  }

  get defined(): boolean {
    return this.#defined !== undefined;
  }

  get running(): boolean {
    return this.#machine.state().state !== State.shutoff;
  }

  get metadata(): MetadataDocument {
    return this.#metadata;
  }

  observe(): Observation {
    const defined = this.#defined;
    if (defined === undefined) return { state: 'not found', spec: 'not found', diskErrors: [] };
    const state = this.#machine.state();
    return {
      state,
      spec: (metadata) =>
        machineSpec(defined.config, this.#machine.machineType, state.state !== State.shutoff, metadata),
      diskErrors: this.#machine.diskErrors(),
    };
  }

  async sync(vmi: Vmi): Promise<void> {
    const defined = await this.#define(vmi);
    const grace = vmi.spec.terminationGracePeriodSeconds ?? defaultGraceSeconds;
    this.#metadata = {
      UID: vmi.metadata.uid,
      GracePeriod: {
        DeletionTimestamp: null,
        MarkedForGracefulShutdown: null,
        ...this.#metadata.GracePeriod,
        DeletionGracePeriodSeconds: grace,
      },
    };
    const { state } = this.#machine.state();
    const started =
      vmi.status.phase === 'Running' || vmi.status.phase === 'Succeeded' || vmi.status.phase === 'Failed';
    if (state === State.shutoff) {
      if (started) return;
      await this.options.beforeStart(vmi);
      const paused = vmi.spec.startStrategy === 'Paused';
      this.#userPaused = paused;
      await this.#machine.start(defined.config, paused);
      return;
    }
    if (state === State.paused && !this.#userPaused) await this.#machine.resume();
    await this.#hotplugDisks(vmi, defined);
    await this.#hotplugNics(vmi, this.#defined ?? defined);
  }

  async #hotplugDisks(vmi: Vmi, { name, config }: Defined): Promise<void> {
    const wanted = pluggedDisks(vmi, this.options.paths);
    const has = (disks: readonly MachineDisk[], disk: MachineDisk) =>
      disks.some(({ volume, path }) => volume === disk.volume && path === disk.path);
    const present = config.disks.filter(({ plugged }) => plugged !== undefined);
    const go = present.filter((disk) => !has(wanted, disk));
    const come = wanted.filter((disk) => !has(present, disk));
    if (go.length === 0 && come.length === 0) return;
    // One that fails does not undo those before it.
    let { disks } = config;
    const show = (changed: readonly MachineDisk[]) => {
      disks = changed;
      this.#defined = { name, config: { ...config, disks } };
      this.options.onEvent(undefined);
    };
    for (const disk of go) {
      await this.#machine.unplugDisk(disk);
      show(disks.filter((each) => each !== disk));
    }
    for (const disk of come) {
      await this.#machine.plugDisk(disk);
      show([...disks, disk]);
    }
  }

  async #hotplugNics(vmi: Vmi, { name, config }: Defined): Promise<void> {
    const nics = nicsAfterHotplug(vmi, config.nics, this.options.releasesNic, this.options.paths);
    if (nics === config.nics) return;
    await this.#machine.setNics(nics);
    this.#defined = { name, config: { ...config, nics } };
    this.options.onEvent(undefined);
  }

  async hotplugHostDevices(vmi: Vmi): Promise<void> {
    this.#existing(vmi);
    const { name, config } = await this.#define(vmi);
    this.#defined = { name, config: { ...config, sriovNetworks: sriovNetworks(vmi) } };
    this.options.onEvent(undefined);
  }

  async #define(vmi: Vmi): Promise<Defined> {
    if (this.#defined !== undefined) return this.#defined;
    const config = machineConfig(vmi, this.options.paths);
    this.#defined = { name: { namespace: vmi.metadata.namespace, name: vmi.metadata.name }, config };
    if (!this.options.lateMetadata) this.#metadata = { ...this.#metadata, UID: vmi.metadata.uid };
    this.options.onEvent(Lifecycle.definedAdded);
    this.options.onEvent(Lifecycle.definedUpdated);
    // The real launcher's event loop runs beside this; here it takes the event in this pause.
    if (this.options.lateMetadata) await new Promise((resolve) => setImmediate(resolve));
    return this.#defined;
  }

  async pause(vmi: Vmi): Promise<void> {
    this.#existing(vmi);
    this.#userPaused = true;
    if (this.#machine.state().state === State.running) await this.#machine.suspend();
  }

  async unpause(vmi: Vmi): Promise<void> {
    this.#existing(vmi);
    this.#userPaused = false;
    if (this.#machine.state().state === State.paused) await this.#machine.resume();
  }

  async reset(vmi: Vmi): Promise<void> {
    this.#existing(vmi);
    await this.#machine.reset();
  }

  async softReboot(vmi: Vmi): Promise<void> {
    this.#existing(vmi);
    await this.#machine.reboot();
  }

  async shutdown(vmi: Vmi): Promise<void> {
    if (this.#defined?.config.name !== domainName(vmi)) return;
    const { state } = this.#machine.state();
    if (state === State.shutoff) return;
    await this.#machine.shutdown();
    if (this.#metadata.GracePeriod?.DeletionTimestamp == null) {
      this.#changeGracePeriod({ DeletionTimestamp: timestamp(this.options.now()) });
    }
  }

  async kill(vmi: Vmi): Promise<void> {
    if (this.#defined?.config.name === domainName(vmi)) await this.#machine.destroy();
  }

  async delete(vmi: Vmi): Promise<void> {
    if (this.#defined?.config.name !== domainName(vmi)) return;
    if (this.running) throw invalidOperation('cannot undefine transient domain');
    this.#defined = undefined;
    this.options.onEvent(Lifecycle.undefinedRemoved);
  }

  /** Ends the machine whatever the VMI is called. */
  async destroyMachine(): Promise<void> {
    await this.#machine.destroy();
  }

  /** SIGTERM of the pod: only a mark for the node agent. */
  markForGracefulShutdown(): void {
    this.#changeGracePeriod({ MarkedForGracefulShutdown: true });
  }

  #changeGracePeriod(change: Partial<GracePeriodDocument>): void {
    this.#metadata = {
      ...this.#metadata,
      GracePeriod: {
        DeletionGracePeriodSeconds: defaultGraceSeconds,
        DeletionTimestamp: null,
        MarkedForGracefulShutdown: null,
        ...this.#metadata.GracePeriod,
        ...change,
      },
    };
    this.options.onMetadata();
  }

  /** GetDomain's document has no UID in ObjectMeta, but in the metadata. */
  async domains(): Promise<JsonObject[]> {
    const { state, spec } = this.observe();
    if (this.#defined === undefined || typeof state === 'string' || typeof spec === 'string') return [];
    return [
      domainDocument({ ...this.#defined.name, uid: '' }, spec(this.#metadata), {
        Status: stateName(state.state),
        Reason: reasonName(state),
        GuestPanicInfo: null,
        PanicCount: 0,
      }),
    ];
  }

  async stats(): Promise<JsonObject | null> {
    if (this.#defined === undefined || !this.running) return null;
    return statsDocument(this.#defined.config, await this.#machine.stats());
  }

  async qemuVersion(): Promise<string> {
    return /-(\d+\.\d+)$/.exec(this.#machine.machineType)?.[1]?.concat('.0') ?? '';
  }

  async guestInfo(): Promise<JsonObject> {
    return { os: {}, timezone: ', 0', fsInfo: { disks: null } };
  }

  async users(): Promise<JsonObject[]> {
    return [];
  }

  async filesystems(): Promise<JsonObject[]> {
    return [];
  }

  #existing(vmi: Vmi): void {
    if (this.#defined?.config.name !== domainName(vmi)) throw new Error('Domain not found.');
  }
}

function statsDocument(config: MachineConfig, stats: MachineStats): JsonObject {
  const total = stats.vcpuTimeNs.reduce((sum, time) => sum + time, 0n);
  return {
    Name: config.name,
    UUID: config.uuid,
    Cpu: { TimeSet: true, Time: Number(total), UserSet: false, User: 0, SystemSet: false, System: 0 },
    Memory: null,
    MigrateDomainJobInfo: null,
    Vcpu: stats.vcpuTimeNs.map((time) => ({
      StateSet: true,
      State: 1,
      TimeSet: true,
      Time: Number(time),
      WaitSet: false,
      Wait: 0,
      DelaySet: false,
      Delay: 0,
    })),
    Net: null,
    Block: null,
    CPUMapSet: false,
    CPUMap: null,
    DirtyRate: null,
    Load: null,
  };
}
