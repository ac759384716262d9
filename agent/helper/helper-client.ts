import { EventEmitter } from 'node:events';
import type { ListenOptions, Socket } from 'node:net';
import { type DescMethod, getOption, type MessageInitShape } from '@bufbuild/protobuf';
import { type CallOptions, type Client, Code, createClient, type Transport } from '@connectrpc/connect';
import type { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { declaration } from '../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import {
  type ClaimRequestSchema,
  type ClaimResponse,
  DeviceService,
  type SetPolicyRequestSchema,
} from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { type HealthResponse, HelperService } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { HotplugService, PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import {
  type ApplyRequestSchema,
  type MigrationSide,
  NetworkService,
  type ObserveResponse,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import {
  type IdentifyResponse,
  PodService,
  type WatchResponse,
} from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { type PodProcess, ResourceService } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import {
  type ConnectRequestSchema,
  type PodListener,
  PodSocket,
  SocketService,
} from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import {
  type ContainerDiskState,
  type EnsureHostDiskRequestSchema,
  type EnsureHostDiskResponse,
  type MountContainerDisksRequestSchema,
  type StatContainerDisksRequestSchema,
  type StatIsoRequestSchema,
  StorageService,
  type VolumeClaimOutcome,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { PodRef } from '../api/pod-ref.js';
import type { PluggedVolume, PlugResult } from '../storage/hotplug.js';
import type { VolumeKind } from '../storage/hotplug-volumes.js';
import type { DescriptorChannel } from './descriptors.js';
import { HelperError, isUnprocessed, toHelperError } from './errors.js';
import { type PodState, toPodState } from './pod-state.js';

/** Beyond the deadline that a method declares, within which the helper itself gives up and says so. */
const deadlineMarginMs = 500;

/**
 * Client of the privileged helper: one method for each of its calls. Every call has the deadline that its
 * protobuf declaration states and throws a HelperError; a helper that is down gives HelperUnavailable.
 *
 * Emits `restarted` with the new instance id when another instance of the helper answers than before: what the
 * old one held (pins, knowledge of listeners) is gone.
 */
export class HelperClient extends EventEmitter<{ restarted: [instanceId: string] }> {
  private readonly helper: Client<typeof HelperService>;
  private readonly pods: Client<typeof PodService>;
  private readonly sockets: Client<typeof SocketService>;
  private readonly networks: Client<typeof NetworkService>;
  private readonly storage: Client<typeof StorageService>;
  private readonly hotplug: Client<typeof HotplugService>;
  private readonly devices: Client<typeof DeviceService>;
  private readonly resources: Client<typeof ResourceService>;
  private readonly deadlines = new Map<DescMethod, number>();
  private instanceId: string | undefined;

  constructor(
    transport: Transport,
    private readonly descriptors: DescriptorChannel,
  ) {
    super();
    this.helper = createClient(HelperService, transport);
    this.pods = createClient(PodService, transport);
    this.sockets = createClient(SocketService, transport);
    this.networks = createClient(NetworkService, transport);
    this.storage = createClient(StorageService, transport);
    this.hotplug = createClient(HotplugService, transport);
    this.devices = createClient(DeviceService, transport);
    this.resources = createClient(ResourceService, transport);
  }

  /** Also notices a restarted helper. */
  async health(): Promise<HealthResponse> {
    const response = await this.call(HelperService.method.health, (options) =>
      this.helper.health({}, options),
    );
    const before = this.instanceId;
    this.instanceId = response.instanceId;
    if (before !== undefined && before !== response.instanceId) this.emit('restarted', response.instanceId);
    return response;
  }

  /** States of all launcher pods, `synced`, then changes. Ends with an error when the stream breaks. */
  async *watchPods(signal: AbortSignal): AsyncGenerator<WatchResponse['event']> {
    try {
      for await (const { event } of this.pods.watch({}, { signal })) yield event;
    } catch (error) {
      throw toHelperError('PodService.Watch', error);
    }
  }

  /** Undefined when the pod has no launcher volumes on this host. */
  async statPod(podUid: string): Promise<PodState | undefined> {
    try {
      const { pod } = await this.call(PodService.method.stat, (options) =>
        this.pods.stat({ podUid }, options),
      );
      return pod === undefined ? undefined : toPodState(pod);
    } catch (error) {
      if (error instanceof HelperError && error.code === Code.NotFound) return undefined;
      throw error;
    }
  }

  identify(pod: PodRef): Promise<IdentifyResponse> {
    return this.call(PodService.method.identify, (options) => this.pods.identify({ pod }, options));
  }

  /** SELinux label of the launcher's root directory; empty where it has none. */
  async selinuxContext(pod: PodRef): Promise<string> {
    const method = PodService.method.getSelinuxContext;
    return (await this.call(method, (options) => this.pods.getSelinuxContext({ pod }, options))).context;
  }

  async markUnresponsive(pod: PodRef): Promise<boolean> {
    const method = PodService.method.markUnresponsive;
    return (await this.call(method, (options) => this.pods.markUnresponsive({ pod }, options))).changed;
  }

  async release(pod: PodRef): Promise<boolean> {
    return (await this.call(PodService.method.release, (options) => this.pods.release({ pod }, options)))
      .changed;
  }

  /** A socket connected to the launcher's command server, whose peer is the pinned launcher. */
  connectLauncher(pod: PodRef): Promise<Socket> {
    return this.connect({ pod, socket: PodSocket.LAUNCHER_COMMAND });
  }

  /** A socket connected to a process of the pod. */
  async connect(request: MessageInitShape<typeof ConnectRequestSchema>): Promise<Socket> {
    const method = SocketService.method.connect;
    const { ticket } = await this.call(method, (options) => this.sockets.connect(request, options));
    return this.redeem(method, ticket?.value, (value) => this.descriptors.connected(value));
  }

  /** A socket connected to the process of an attachment pod, which belongs to the launcher pod from then on. */
  async connectAttachment(pod: PodRef, attachmentPodUid: string): Promise<Socket> {
    const method = SocketService.method.connectAttachment;
    const { ticket } = await this.call(method, (options) =>
      this.sockets.connectAttachment({ pod, attachmentPodUid }, options),
    );
    return this.redeem(method, ticket?.value, (value) => this.descriptors.connected(value));
  }

  /** A listening socket in the pod, made anew. */
  async listen(pod: PodRef, listener: PodListener): Promise<ListenOptions> {
    const method = SocketService.method.listen;
    const { ticket } = await this.call(method, (options) => this.sockets.listen({ pod, listener }, options));
    return this.redeem(method, ticket?.value, (value) => this.descriptors.listening(value));
  }

  async closeListener(pod: PodRef, listener: PodListener): Promise<boolean> {
    const method = SocketService.method.closeListener;
    return (await this.call(method, (options) => this.sockets.closeListener({ pod, listener }, options)))
      .changed;
  }

  /** The listening socket of the VSOCK service, a descriptor that the caller closes. */
  async listenVsock(): Promise<number> {
    const method = SocketService.method.listenVsock;
    const { ticket } = await this.call(method, (options) => this.sockets.listenVsock({}, options));
    return this.redeem(method, ticket?.value, (value) => this.descriptors.file(value));
  }

  observeNetwork(pod: PodRef): Promise<ObserveResponse> {
    return this.call(NetworkService.method.observe, (options) => this.networks.observe({ pod }, options));
  }

  async applyNetwork(request: MessageInitShape<typeof ApplyRequestSchema>): Promise<boolean> {
    return (await this.call(NetworkService.method.apply, (options) => this.networks.apply(request, options)))
      .changed;
  }

  /** How often a socket of passt was switched. Returns when passt has ended the conversation. */
  async repairPasst(pod: PodRef, side: MigrationSide): Promise<bigint> {
    const method = NetworkService.method.repairPasst;
    return (await this.call(method, (options) => this.networks.repairPasst({ pod, side }, options))).switched;
  }

  /** Volumes in their order, then the kernel-boot container; the first that is not READY is the last. */
  async statContainerDisks(
    request: MessageInitShape<typeof StatContainerDisksRequestSchema>,
  ): Promise<ContainerDiskState[]> {
    const method = StorageService.method.statContainerDisks;
    return (await this.call(method, (options) => this.storage.statContainerDisks(request, options))).states;
  }

  /** False when all were mounted already. */
  async mountContainerDisks(
    request: MessageInitShape<typeof MountContainerDisksRequestSchema>,
  ): Promise<boolean> {
    const method = StorageService.method.mountContainerDisks;
    return (await this.call(method, (options) => this.storage.mountContainerDisks(request, options))).changed;
  }

  /**
   * Descriptor of an image, open for reading. The caller closes it. `volumeIndex` null: of a file of the
   * kernel-boot container.
   */
  async openContainerDisk(pod: PodRef, volumeIndex: number | null, imagePath: string): Promise<number> {
    const container =
      volumeIndex === null
        ? ({ case: 'kernelBoot', value: {} } as const)
        : ({ case: 'volumeIndex', value: volumeIndex } as const);
    const request = { pod, container, imagePath };
    const method = StorageService.method.openContainerDisk;
    const { ticket } = await this.call(method, (options) => this.storage.openContainerDisk(request, options));
    return this.redeem(method, ticket?.value, (value) => this.descriptors.file(value));
  }

  /** Bytes. */
  async statIso(request: MessageInitShape<typeof StatIsoRequestSchema>): Promise<bigint> {
    return (
      await this.call(StorageService.method.statIso, (options) => this.storage.statIso(request, options))
    ).size;
  }

  async unmountContainerDisks(pod: PodRef): Promise<boolean> {
    const method = StorageService.method.unmountContainerDisks;
    return (await this.call(method, (options) => this.storage.unmountContainerDisks({ pod }, options)))
      .changed;
  }

  /** Mounts a volume of the attachment pod in the launcher. */
  async plugFilesystem(
    pod: PodRef,
    attachmentPodUid: string,
    volume: string,
    kind: 'disk' | 'directory',
  ): Promise<PlugResult> {
    const method = HotplugService.method.plugFilesystem;
    const request = { pod, attachmentPodUid, volume, kind: plugKinds[kind] };
    return plugResult(await this.call(method, (options) => this.hotplug.plugFilesystem(request, options)));
  }

  /** Makes the node of a block device of the attachment pod in the launcher. */
  async plugBlock(pod: PodRef, attachmentPodUid: string, volume: string): Promise<PlugResult> {
    const request = { pod, attachmentPodUid, volume };
    const method = HotplugService.method.plugBlock;
    return plugResult(await this.call(method, (options) => this.hotplug.plugBlock(request, options)));
  }

  async listPlugged(pod: PodRef): Promise<PluggedVolume[]> {
    const { volumes } = await this.call(HotplugService.method.list, (options) =>
      this.hotplug.list({ pod }, options),
    );
    return volumes.map(({ volume, kind, plugged, recorded, present, known }) => {
      const shape = kind === PlugKind.BLOCK ? 'block' : kind === PlugKind.DISK ? 'disk' : 'directory';
      return { volume, kind: shape, plugged, recorded, present, known };
    });
  }

  async unplug(pod: PodRef, volume: string, kind: VolumeKind): Promise<boolean> {
    const request = { pod, volume, kind: plugKinds[kind] };
    return (await this.call(HotplugService.method.unplug, (options) => this.hotplug.unplug(request, options)))
      .changed;
  }

  /** Resolves to what could not be taken away, one line each. */
  async unplugAll(pod: PodRef): Promise<string[]> {
    return (
      await this.call(HotplugService.method.unplugAll, (options) => this.hotplug.unplugAll({ pod }, options))
    ).problems;
  }

  claimDevices(request: MessageInitShape<typeof ClaimRequestSchema>): Promise<ClaimResponse> {
    return this.call(DeviceService.method.claim, (options) => this.devices.claim(request, options));
  }

  ensureHostDisk(
    request: MessageInitShape<typeof EnsureHostDiskRequestSchema>,
  ): Promise<EnsureHostDiskResponse> {
    const method = StorageService.method.ensureHostDisk;
    return this.call(method, (options) => this.storage.ensureHostDisk(request, options));
  }

  async claimVolumeDirectory(pod: PodRef, volume: string): Promise<VolumeClaimOutcome> {
    const method = StorageService.method.claimVolumeDirectory;
    return (await this.call(method, (options) => this.storage.claimVolumeDirectory({ pod, volume }, options)))
      .outcome;
  }

  async claimVirtiofs(pod: PodRef, filesystem: string): Promise<ClaimOutcome> {
    const method = SocketService.method.claimVirtiofs;
    return (await this.call(method, (options) => this.sockets.claimVirtiofs({ pod, filesystem }, options)))
      .outcome;
  }

  async setDevicePolicy(request: MessageInitShape<typeof SetPolicyRequestSchema>): Promise<boolean> {
    return (
      await this.call(DeviceService.method.setPolicy, (options) => this.devices.setPolicy(request, options))
    ).changed;
  }

  async setMemlock(pod: PodRef, process: PodProcess): Promise<boolean> {
    const method = ResourceService.method.setMemlock;
    return (await this.call(method, (options) => this.resources.setMemlock({ pod, process }, options)))
      .changed;
  }

  /** Without CPUs the cgroup is made and nothing is moved. */
  async isolateEmulator(pod: PodRef, cpus: number[]): Promise<boolean> {
    const method = ResourceService.method.isolateEmulator;
    return (await this.call(method, (options) => this.resources.isolateEmulator({ pod, cpus }, options)))
      .changed;
  }

  /** No numbers: all vCPUs. */
  async scheduleVcpus(pod: PodRef, vcpus: number[]): Promise<boolean> {
    const method = ResourceService.method.scheduleVcpus;
    return (await this.call(method, (options) => this.resources.scheduleVcpus({ pod, vcpus }, options)))
      .changed;
  }

  async affinePit(pod: PodRef, realtime: boolean): Promise<boolean> {
    const method = ResourceService.method.affinePit;
    return (await this.call(method, (options) => this.resources.affinePit({ pod, realtime }, options)))
      .changed;
  }

  private async call<T>(method: DescMethod, run: (options: CallOptions) => Promise<T>): Promise<T> {
    const options = { timeoutMs: this.deadlineMs(method) + deadlineMarginMs };
    try {
      return await run(options).catch((error: unknown) => {
        if (isUnprocessed(error)) return run(options);
        throw error;
      });
    } catch (error) {
      throw toHelperError(callName(method), error);
    }
  }

  /** Read from the declaration once: options are kept encoded. */
  private deadlineMs(method: DescMethod): number {
    let deadlineMs = this.deadlines.get(method);
    if (deadlineMs === undefined) {
      ({ deadlineMs } = getOption(method, declaration));
      this.deadlines.set(method, deadlineMs);
    }
    return deadlineMs;
  }

  private async redeem<T>(
    method: DescMethod,
    ticket: Uint8Array | undefined,
    claim: (ticket: Uint8Array) => Promise<T>,
  ): Promise<T> {
    if (ticket === undefined) throw toHelperError(callName(method), new Error('answer without a ticket'));
    try {
      return await claim(ticket);
    } catch (error) {
      // An unclaimed descriptor is closed by the helper after its time; asking for a new ticket is right.
      throw toHelperError(`${callName(method)} ticket`, error);
    }
  }
}

const plugKinds: Readonly<Record<VolumeKind, PlugKind>> = {
  disk: PlugKind.DISK,
  directory: PlugKind.DIRECTORY,
  block: PlugKind.BLOCK,
};

function plugResult({ outcome }: { readonly outcome: PlugOutcome }): PlugResult {
  if (outcome === PlugOutcome.NOT_READY) return 'not-ready';
  if (outcome === PlugOutcome.MISSING) return 'missing';
  return outcome === PlugOutcome.CHANGED ? 'changed' : 'unchanged';
}

function callName(method: DescMethod): string {
  return `${method.parent.name}.${method.name}`;
}
