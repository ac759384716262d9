/** Gives a launcher its devices and files, by the helper (KubeVirt pkg/virt-handler/controller.go setupDevicesOwnerships). */
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import type { ClaimResponse, Device } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import {
  type EnsureHostDiskResponse,
  HostDiskOutcome,
  VolumeClaimOutcome,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { PodFinder, PodRef } from '../api/pod-ref.js';
import type { Vmi } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { Clock } from '../clock.js';
import type { ClusterConfig } from '../cluster/config.js';
import type { Logger } from '../log/log.js';
import { explained } from '../reconcile/errors.js';
import type { DeviceOwnership, EventRecorder } from '../reconcile/ports.js';
import { type HostDiskRequirement, ownershipRequirements, type Requirement } from './requirements.js';

/** How long the socket of a virtiofs container may be late before that is an error. */
const graceMs = 60_000;

/** The helper's calls that give things to QEMU's user. All throw a HelperError. */
export interface OwnershipHelper {
  claimDevices(request: {
    readonly pod: PodRef;
    readonly devices: Device[];
    readonly blockVolumes: string[];
  }): Promise<Pick<ClaimResponse, 'results' | 'blockVolumes'>>;
  ensureHostDisk(request: {
    readonly pod: PodRef;
    readonly volume: string;
    readonly fileName: string;
    readonly capacityBytes: bigint;
    readonly tolerancePercent: number;
    readonly reserveBytes: bigint;
  }): Promise<Pick<EnsureHostDiskResponse, 'outcome' | 'sizeBytes' | 'availableBytes'>>;
  claimVolumeDirectory(pod: PodRef, volume: string): Promise<VolumeClaimOutcome>;
  claimVirtiofs(pod: PodRef, filesystem: string): Promise<ClaimOutcome>;
}

export interface DeviceOwnershipOptions {
  readonly helper: OwnershipHelper;
  readonly pods: PodFinder;
  readonly config: () => Pick<
    ClusterConfig,
    'useEmulation' | 'hypervisor' | 'pvcTolerateLessSpaceUpToPercent' | 'minimumReservePvcBytes'
  >;
  readonly events: EventRecorder;
  readonly clock: Clock;
  readonly log: Logger;
}

const keptReasons: ReadonlyMap<VolumeClaimOutcome, string> = new Map([
  [VolumeClaimOutcome.LEFT_ALONE, 'kubelet has not mounted it for this pod'],
  [VolumeClaimOutcome.OWNER_KEPT, 'the server of its file system does not let it be given away'],
]);

type NodeRequirement = Extract<Requirement, { kind: 'device' | 'block volume' }>;

export class HelperDeviceOwnership implements DeviceOwnership {
  readonly #options: DeviceOwnershipOptions;

  constructor(options: DeviceOwnershipOptions) {
    this.#options = options;
  }

  async claim(vmi: Vmi, notInitializedSince: number): Promise<boolean> {
    const pod = await this.#options.pods.find(vmi);
    const late: string[] = [];
    // Nodes that follow each other are asked for in one call, which does the volumes last.
    let nodes: NodeRequirement[] = [];
    for (const requirement of ownershipRequirements(vmi, this.#options.config())) {
      const endsInVolume = nodes.at(-1)?.kind === 'block volume';
      if (requirement.kind === 'block volume' || (requirement.kind === 'device' && !endsInVolume)) {
        nodes.push(requirement);
        continue;
      }
      await this.#claimNodes(vmi, pod, nodes);
      nodes = [];
      switch (requirement.kind) {
        case 'device':
          nodes.push(requirement);
          break;
        case 'host disk':
          await explained('preparing host-disks failed', () => this.#ensureHostDisk(vmi, pod, requirement));
          break;
        case 'volume directory':
          await this.#claimVolumeDirectory(vmi, pod, requirement.volume);
          break;
        case 'virtiofs socket':
          if (!(await this.#claimVirtiofs(pod, requirement.filesystem))) late.push(requirement.filesystem);
          break;
        case 'failure':
          throw requirement.error;
      }
    }
    await this.#claimNodes(vmi, pod, nodes);
    if (late.length === 0) return true;
    const text = `virtiofs container of filesystem ${late.join(', ')} does not listen yet`;
    if (this.#options.clock.now() - notInitializedSince >= graceMs) throw new Error(text);
    this.#options.log.object(vmi.metadata).info(text);
    return false;
  }

  async #claimNodes(vmi: Vmi, pod: PodRef, nodes: readonly NodeRequirement[]): Promise<void> {
    if (nodes.length === 0) return;
    const { results, blockVolumes } = await this.#options.helper.claimDevices({
      pod,
      devices: nodes.flatMap((node) => (node.kind === 'device' ? [node.device] : [])),
      blockVolumes: nodes.flatMap((node) => (node.kind === 'block volume' ? [node.volume] : [])),
    });
    for (const node of nodes) {
      const outcome =
        node.kind === 'device'
          ? results.find(({ device }) => device === node.device)?.outcome
          : blockVolumes.find(({ volume }) => volume === node.volume)?.outcome;
      if (outcome === ClaimOutcome.CLAIMED || outcome === ClaimOutcome.ALREADY_OWNED) continue;
      if (node.kind === 'block volume') {
        this.#options.log
          .object(vmi.metadata)
          .warning(`the launcher has no device node of block volume ${node.volume}`);
      } else if (node.missing !== undefined) {
        throw node.missing();
      }
    }
  }

  async #ensureHostDisk(vmi: Vmi, pod: PodRef, disk: HostDiskRequirement): Promise<void> {
    const { pvcTolerateLessSpaceUpToPercent: tolerance, minimumReservePvcBytes } = this.#options.config();
    const { volume, path, fileName, capacity } = disk;
    const answer = await this.#options.helper.ensureHostDisk({
      pod,
      volume,
      fileName,
      capacityBytes: capacity,
      tolerancePercent: tolerance,
      reserveBytes: BigInt(minimumReservePvcBytes),
    });
    const { outcome, sizeBytes, availableBytes } = answer;
    if (outcome === HostDiskOutcome.NO_SPACE) {
      throw new Error(
        `unable to create ${path}, not enough space, demanded size ${capacity} B is bigger than available space ${availableBytes} B, also after taking ${tolerance} % toleration into account`,
      );
    }
    if (outcome === HostDiskOutcome.CREATED && sizeBytes < capacity) {
      const text = `PV size too small: expected ${capacity} B, found ${sizeBytes} B. Using it anyway, it is within ${tolerance} % toleration`;
      this.#options.events.event(vmi, 'Normal', 'ToleratedSmallPV', text);
    }
  }

  async #claimVolumeDirectory(vmi: Vmi, pod: PodRef, volume: string): Promise<void> {
    let outcome: VolumeClaimOutcome;
    try {
      outcome = await this.#options.helper.claimVolumeDirectory(pod, volume);
    } catch (error) {
      const text = `Failed to change ownership of HostDisk dir ${volume}, ${asError(error).message}`;
      throw new Error(text, { cause: error });
    }
    const reason = keptReasons.get(outcome);
    if (reason === undefined) return;
    this.#options.log
      .object(vmi.metadata)
      .info(`the directory of volume ${volume} keeps its owner: ${reason}`);
  }

  async #claimVirtiofs(pod: PodRef, filesystem: string): Promise<boolean> {
    const outcome = await this.#options.helper.claimVirtiofs(pod, filesystem);
    return outcome === ClaimOutcome.CLAIMED || outcome === ClaimOutcome.ALREADY_OWNED;
  }
}
