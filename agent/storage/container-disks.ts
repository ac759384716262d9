/** Container disks of launcher pods (KubeVirt pkg/virt-handler/container-disk/mount.go). */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  ContainerDiskState,
  type MountContainerDisksRequestSchema,
  type StatContainerDisksRequestSchema,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { PodRef } from '../api/pod-ref.js';
import { type Vmi, type VmiRef, vmiKey } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { Clock } from '../clock.js';
import { HelperError } from '../helper/errors.js';
import type { Logger } from '../log/log.js';
import type { ContainerDisks, DiskChecksums } from '../reconcile/ports.js';
import type { ImageChecksums, ImageSource } from './checksums.js';

/** How long a launcher's container disks may be late before that is an error. */
const graceMs = 60_000;

/** What the helper sees of a launcher pod that matters here. */
export interface DiskPodState {
  /** The pod's launcher volumes exist. */
  readonly directory: boolean;
  /** The pod was made without image volumes. */
  readonly containerDiskBinary: boolean;
}

/** The helper's container-disk calls. All throw a HelperError. */
export interface ContainerDiskHelper {
  /** Volumes in their order, then the kernel-boot container; the first that is not READY is the last. */
  statContainerDisks(
    request: MessageInitShape<typeof StatContainerDisksRequestSchema>,
  ): Promise<ContainerDiskState[]>;
  /** False when all were mounted already. A failure names the field of what failed; what is before it is mounted. */
  mountContainerDisks(request: MessageInitShape<typeof MountContainerDisksRequestSchema>): Promise<boolean>;
  unmountContainerDisks(pod: PodRef): Promise<boolean>;
}

export interface ContainerDiskOptions {
  readonly helper: ContainerDiskHelper;
  /**
   * A pod as the helper last told it; undefined: no launcher pod on this host. What is read here is there
   * before the launcher's socket is, and was looked at together with it.
   */
  readonly podState: (podUid: string) => DiskPodState | undefined;
  /** UIDs of the pods of a VMI that may be gone, from what the node remembers of it. */
  readonly podsOf: (vmi: VmiRef) => readonly string[];
  readonly checksums: Pick<ImageChecksums, 'of' | 'forget'>;
  /** Feature gate ImageVolume. */
  readonly imageVolume: () => boolean;
  readonly clock: Clock;
  readonly log: Logger;
}

interface ContainerDiskVolume {
  readonly name: string;
  /** Position among all volumes of the spec. */
  readonly index: number;
  /** Empty: the only file of /disk. */
  readonly imagePath: string;
}

interface DiskPod {
  readonly ref: PodRef;
  readonly state: DiskPodState;
}

interface BindWork {
  readonly volumes: readonly ContainerDiskVolume[];
  /** Paths in the kernel-boot container; undefined without one. */
  readonly artifacts: readonly string[] | undefined;
  readonly pods: readonly DiskPod[];
}

const kernelBootContainer = 'kernelboot container';

export class HelperContainerDisks implements ContainerDisks {
  readonly #options: ContainerDiskOptions;

  constructor(options: ContainerDiskOptions) {
    this.#options = options;
  }

  async ready(vmi: Vmi, notInitializedSince: number): Promise<boolean> {
    const work = this.#bindWork(vmi);
    if (work === undefined) return true;
    const silent = await this.#firstSilent(vmi, work);
    return silent === undefined || this.#late(notInitializedSince, silent);
  }

  async mountAndVerify(vmi: Vmi): Promise<void> {
    const work = this.#bindWork(vmi);
    if (work === undefined) return;
    const [pod, ...others] = work.pods;
    if (pod === undefined) throw new Error(`no pod of vmi ${vmiKey(vmi.metadata)} has container disks yet`);
    if (others.length > 0) {
      throw new Error(
        `Found multiple pods active for vmi ${vmiKey(vmi.metadata)}. Waiting on outdated pod directories to be removed`,
      );
    }
    const { volumes, artifacts = [] } = work;
    const images = [
      ...volumes.map(({ name }, i) => ({ field: `disks[${i}]`, what: `containerdisk ${name}` })),
      ...artifacts.map((path, i) => ({ field: `kernel_artifacts[${i}]`, what: `kernel artifact ${path}` })),
    ];
    if (images.length === 0) return;
    const disks = volumes.map(({ index, imagePath }) => ({ volumeIndex: index, imagePath }));
    const request = { pod: pod.ref, disks, kernelArtifacts: [...artifacts] };
    try {
      await this.#options.helper.mountContainerDisks(request);
    } catch (error) {
      const failed = failedOf(images, error);
      throw new Error(`failed to mount ${images[failed]?.what}: ${message(error)}`, { cause: error });
    }
  }

  /** Also for pods that are gone, whose mounts are gone with them. */
  async unmount(vmi: VmiRef): Promise<void> {
    if (vmi.uid === '') return;
    this.#options.checksums.forget(vmi.uid);
    for (const podUid of this.#options.podsOf(vmi)) {
      try {
        await this.#options.helper.unmountContainerDisks({ podUid, vmiUid: vmi.uid });
      } catch (error) {
        throw new Error(`failed to unmount the container disks of pod ${podUid}: ${message(error)}`, {
          cause: error,
        });
      }
    }
  }

  /**
   * Those that are known by now; for the others the VMI is looked at again when they are. Nothing is read while it
   * starts: its containers come one after the other, and it has better things to wait for.
   */
  computeChecksums(vmi: Vmi): DiskChecksums {
    if (vmi.status.phase !== 'Running') return { containerDisks: new Map() };
    const work = this.#bindWork(vmi);
    const [pod, ...others] = work?.pods ?? [];
    if (work === undefined || pod === undefined || others.length > 0) return { containerDisks: new Map() };
    const disks: ImageSource[] = work.volumes.map(({ name, index, imagePath }) => ({
      name: `containerdisk ${name}`,
      volumeIndex: index,
      imagePath,
    }));
    const { kernelPath, initrdPath } = vmi.spec.domain?.firmware?.kernelBoot?.container ?? {};
    const artifacts = [
      { name: 'kernel', volumeIndex: null, imagePath: kernelPath ?? '' },
      { name: 'initrd', volumeIndex: null, imagePath: initrdPath ?? '' },
    ].filter(({ imagePath }) => imagePath !== '');
    const known = this.#options.checksums.of(vmi.metadata, pod.ref, [...disks, ...artifacts]);
    const kernel = known.get('kernel');
    const initrd = known.get('initrd');
    return {
      containerDisks: new Map(
        work.volumes.flatMap(({ name }) => {
          const checksum = known.get(`containerdisk ${name}`);
          return checksum === undefined ? [] : [[name, checksum]];
        }),
      ),
      ...(kernel !== undefined && { kernel }),
      ...(initrd !== undefined && { initrd }),
    };
  }

  /** Undefined when the launcher gets its images without the node's help. */
  #bindWork(vmi: Vmi): BindWork | undefined {
    const volumes = containerDiskVolumes(vmi);
    const artifacts = kernelArtifacts(vmi);
    if (volumes.length === 0 && artifacts === undefined) return undefined;
    const pods: DiskPod[] = [];
    for (const podUid of Object.keys(vmi.status.activePods ?? {})) {
      const state = this.#options.podState(podUid);
      if (state?.directory) pods.push({ ref: { podUid, vmiUid: vmi.metadata.uid }, state });
    }
    // Pods of both kinds exist side by side during an upgrade, so this is asked of the pods each time.
    const needed = !this.#options.imageVolume() || pods.some(({ state }) => state.containerDiskBinary);
    return needed ? { volumes, artifacts, pods } : undefined;
  }

  /** The first container that listens in none of the pods; a pod is asked for those that no pod before it has. */
  async #firstSilent(vmi: Vmi, { volumes, artifacts, pods }: BindWork): Promise<string | undefined> {
    const kernelBoot = artifacts !== undefined;
    let silent = [
      ...volumes.map(({ name, index }) => ({ what: `containerdisk ${name}`, index })),
      ...(kernelBoot ? [{ what: kernelBootContainer, index: null }] : []),
    ];
    for (const { ref } of pods) {
      const volumeIndexes = silent.flatMap(({ index }) => index ?? []);
      try {
        const request = { pod: ref, volumeIndexes, kernelBoot };
        const states = await this.#options.helper.statContainerDisks(request);
        silent = silent.slice(states.filter((state) => state === ContainerDiskState.READY).length);
      } catch (error) {
        const asked = silent.map(({ index }, i) => ({
          field: index === null ? 'kernel_boot' : `volume_indexes[${i}]`,
        }));
        silent = silent.slice(failedOf(asked, error));
        const what = `${silent[0]?.what} of pod ${ref.podUid}`;
        this.#options.log.object(vmi.metadata).warning(`${what} is not ready`, error);
      }
      if (silent.length === 0) return undefined;
    }
    return silent[0]?.what;
  }

  #late(notInitializedSince: number, what: string): false {
    if (this.#options.clock.now() > notInitializedSince + graceMs) {
      throw new Error(`${what} still not ready after one minute`);
    }
    return false;
  }
}

function containerDiskVolumes(vmi: Vmi): ContainerDiskVolume[] {
  return (vmi.spec.volumes ?? []).flatMap((volume, index) =>
    volume.containerDisk == null
      ? []
      : [{ name: volume.name, index, imagePath: volume.containerDisk.path ?? '' }],
  );
}

function kernelArtifacts(vmi: Vmi): string[] | undefined {
  const container = vmi.spec.domain?.firmware?.kernelBoot?.container;
  if (container == null) return undefined;
  const paths = [container.initrdPath ?? '', container.kernelPath ?? ''].filter((path) => path !== '');
  return [...new Set(paths)];
}

/** Position of what a failed call to the helper is about; of the first where it names none of them. */
function failedOf(items: readonly { readonly field: string }[], error: unknown): number {
  const named = error instanceof HelperError ? error.field : '';
  const failed = items.findIndex(({ field }) => named === field || named.startsWith(`${field}.`));
  return Math.max(failed, 0);
}

function message(error: unknown): string {
  return asError(error).message;
}
