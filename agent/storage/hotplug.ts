/** Hot-plugged volumes of launcher pods (KubeVirt pkg/virt-handler/hotplug-disk/mount.go). */
import type { PodRef } from '../api/pod-ref.js';
import type { Vmi, VmiRef } from '../api/vmi.js';
import { asError } from '../as-error.js';
import { HelperError } from '../helper/errors.js';
import type { Logger } from '../log/log.js';
import { explained } from '../reconcile/errors.js';
import {
  type DevicePolicy,
  type HotplugVolumes,
  NotExist,
  VolumeFailed,
  WaitingForHotplugMount,
} from '../reconcile/ports.js';
import {
  type HotplugVolume,
  hotplugPlan,
  pluggedBlockVolumes,
  type VolumeKind,
  volumeKind,
  volumesOfSpec,
  wantedVolumes,
} from './hotplug-volumes.js';

/** What is plugged into a pod, or recorded as plugged. */
export interface PluggedVolume {
  readonly volume: string;
  /** What has the volume's own name is a directory unless it is a block device. */
  readonly kind: VolumeKind;
  readonly plugged: boolean;
  readonly recorded: boolean;
  /** There is an entry of its name, whether or not something is mounted there. */
  readonly present: boolean;
  /** The helper knows its device, so that a device policy decides about it. */
  readonly known: boolean;
}

/** `not-ready`: the attachment pod is not there yet. `missing`: it has no such image or device. */
export type PlugResult = 'changed' | 'unchanged' | 'not-ready' | 'missing';

/** The helper's hotplug calls. All throw a HelperError. */
export interface HotplugHelper {
  plugFilesystem(
    pod: PodRef,
    attachmentPodUid: string,
    volume: string,
    kind: 'disk' | 'directory',
  ): Promise<PlugResult>;
  listPlugged(pod: PodRef): Promise<readonly PluggedVolume[]>;
  plugBlock(pod: PodRef, attachmentPodUid: string, volume: string): Promise<PlugResult>;
  /** A block device stays recorded until the device policy denies it. */
  unplug(pod: PodRef, volume: string, kind: VolumeKind): Promise<boolean>;
  /**
   * Resolves to what went wrong, one line each; nothing is plugged or recorded any more all the same, and the launcher
   * may open no block device any more if some were plugged.
   */
  unplugAll(pod: PodRef): Promise<readonly string[]>;
}

export interface HotplugOptions {
  readonly helper: HotplugHelper;
  readonly devices: DevicePolicy;
  readonly node: string;
  /** True for a launcher pod whose volumes are on this host. */
  readonly hasVolumes: (podUid: string) => boolean;
  /** UIDs of the pods of a VMI that may be gone, from what the node remembers of it. */
  readonly podsOf: (vmi: VmiRef) => readonly string[];
  readonly log: Logger;
}

export class HelperHotplugVolumes implements HotplugVolumes {
  readonly #options: HotplugOptions;
  /** VMIs in whose pods nothing was found plugged, and nothing was plugged since. */
  readonly #empty = new Set<string>();

  constructor(options: HotplugOptions) {
    this.#options = options;
  }

  /**
   * Tries every volume, and lets the launcher open the block devices. Throws what kept those back that are not in the
   * pod, an AggregateError for several; of one kind of reason, VolumeFailed, NotExist or WaitingForHotplugMount, one
   * error stands for all.
   *
   * @param attachmentPodUid the pod that all volumes come from, on the target of a migration
   */
  async mount(vmi: Vmi, attachmentPodUid?: string): Promise<void> {
    if (vmi.metadata.uid === '') {
      throw new Error('unable to find hotplug mounted directories for vmi without uid');
    }
    const { volumes, skipped } = hotplugPlan(vmi, this.#options.node, attachmentPodUid);
    for (const volume of skipped) {
      this.#options.log
        .object(vmi.metadata)
        .warning(`utility volume ${volume} is a block device: it is skipped`);
    }
    const pod = this.#launcherPod(vmi);
    if (pod === undefined) return;
    if (volumes.length > 0) this.#empty.delete(pod.vmiUid);
    const reasons: Error[] = [];
    const plugged = new Set<string>();
    for (const each of volumes) {
      await attempt(reasons, async () => {
        await this.#plug(pod, each);
        if (each.kind === 'block') plugged.add(each.volume);
      });
    }
    // In every pass: another policy may have taken the place of ours.
    if (plugged.size > 0 || pluggedBlockVolumes(vmi).length > 0) {
      await attempt(reasons, () => this.#applyPolicy(vmi, pod, plugged));
    }
    throwAll(reasons);
  }

  /** A pod that cannot be told for certain keeps what it has. */
  async unmount(vmi: Vmi, attached: ReadonlySet<string>): Promise<void> {
    if (vmi.metadata.uid === '') return;
    const pod = this.#launcherPod(vmi);
    if (pod === undefined || this.#empty.has(pod.vmiUid)) return;
    const recorded = (await this.#options.helper.listPlugged(pod)).filter((volume) => volume.recorded);
    if (recorded.length === 0) {
      this.#empty.add(pod.vmiUid);
      return;
    }
    const wanted = wantedVolumes(vmi, this.#options.node);
    const failures: Error[] = [];
    let blockUnplugged = false;
    for (const { volume, kind, present } of recorded) {
      if (attached.has(volume) || (present && sameEntry(wanted.get(volume), kind))) continue;
      await attempt(failures, async () => {
        await explained(`volume ${volume}`, () => this.#options.helper.unplug(pod, volume, kind));
        if (kind === 'block') blockUnplugged = true;
      });
    }
    if (blockUnplugged) await attempt(failures, () => this.#applyPolicy(vmi, pod));
    if (failures.length > 0) {
      throw new Error(
        `failed to cleanup hotplug mounts for VMI ${vmi.metadata.name}: ${failures.map(message).join('\n')}`,
      );
    }
  }

  /** Also for pods that are gone, whose mounts are gone with them. */
  async unmountAll(vmi: VmiRef): Promise<void> {
    if (vmi.uid === '') return;
    for (const podUid of this.#options.podsOf(vmi)) {
      for (const problem of await this.#options.helper.unplugAll({ podUid, vmiUid: vmi.uid })) {
        this.#options.log
          .object(vmi)
          .warning(`a hot-plugged volume of pod ${podUid} is left behind: ${problem}`);
      }
    }
    this.#empty.delete(vmi.uid);
  }

  /** Undefined when the helper cannot say: what is mounted then may well be in use. */
  async isMounted(vmi: Vmi, volume: string): Promise<boolean | undefined> {
    const pod = this.#launcherPod(vmi);
    if (pod === undefined) throw new Error('Unable to determine virt-launcher UID');
    // The spec alone tells a directory from a disk.
    const kind = volumesOfSpec(vmi).has(volume) ? volumeKind(vmi, volume, this.#options.node) : undefined;
    try {
      const plugged = await this.#options.helper.listPlugged(pod);
      return plugged.some(
        (each) => each.volume === volume && each.plugged && (kind ?? each.kind) === each.kind,
      );
    } catch (error) {
      if (!(error instanceof HelperError)) throw error;
      this.#options.log
        .object(vmi.metadata)
        .warning(`cannot tell whether volume ${volume} is mounted, its phase stays`, error);
      return undefined;
    }
  }

  /** The one active pod with volumes on this host; undefined for none and for several. */
  #launcherPod(vmi: Vmi): PodRef | undefined {
    const pods = Object.keys(vmi.status.activePods ?? {}).filter(this.#options.hasVolumes);
    const [podUid] = pods;
    return podUid === undefined || pods.length > 1 ? undefined : { podUid, vmiUid: vmi.metadata.uid };
  }

  async #plug(pod: PodRef, { volume, attachmentPodUid, kind }: HotplugVolume): Promise<void> {
    const { helper } = this.#options;
    const what = `${kind === 'block' ? 'block' : 'filesystem'} hotplug volume ${volume}`;
    let result: PlugResult;
    try {
      result =
        kind === 'block'
          ? await helper.plugBlock(pod, attachmentPodUid, volume)
          : await helper.plugFilesystem(pod, attachmentPodUid, volume, kind);
    } catch (error) {
      throw new VolumeFailed(`failed to mount ${what}: ${message(error)}`, { cause: error });
    }
    if (result === 'not-ready') {
      throw new WaitingForHotplugMount(`${what}: attachment pod ${attachmentPodUid} is not ready`);
    }
    if (result === 'missing') {
      const source = kind === 'block' ? 'device' : 'disk.img';
      throw new NotExist(
        `failed to mount ${what}: attachment pod ${attachmentPodUid} has no ${source} for it`,
      );
    }
  }

  /**
   * Lets the launcher open what is plugged, and nothing that is not any more: unless the guest may use what another
   * handler has plugged and the helper has not heard of yet, which the policy would take away.
   *
   * @param plugged the block volumes that the helper was told of just now
   */
  async #applyPolicy(vmi: Vmi, pod: PodRef, plugged: ReadonlySet<string> = new Set()): Promise<void> {
    try {
      const unknown = await this.#unknownDevices(vmi, pod, plugged);
      if (unknown.length > 0) {
        this.#options.log
          .object(vmi.metadata)
          .warning(`device policy left alone: the helper does not know volume ${unknown.join(', ')} yet`);
        return;
      }
      await this.#options.devices.apply(vmi);
    } catch (error) {
      throw new Error(`failed to apply the device policy: ${message(error)}`, { cause: error });
    }
  }

  async #unknownDevices(vmi: Vmi, pod: PodRef, plugged: ReadonlySet<string>): Promise<string[]> {
    const wanted = volumesOfSpec(vmi);
    const others = pluggedBlockVolumes(vmi).filter((volume) => wanted.has(volume) && !plugged.has(volume));
    if (others.length === 0) return [];
    const listed = await this.#options.helper.listPlugged(pod);
    const known = new Set(listed.flatMap((each) => (each.known ? each.volume : [])));
    return others.filter((volume) => !known.has(volume));
  }
}

/** A directory and a device have the same name in the pod, a disk has another. */
function sameEntry(wanted: VolumeKind | undefined, found: VolumeKind): boolean {
  return wanted !== undefined && (wanted === 'disk') === (found === 'disk');
}

/** What `step` throws is one more of `errors`. */
async function attempt(errors: Error[], step: () => Promise<void>): Promise<void> {
  try {
    await step();
  } catch (error) {
    errors.push(asError(error));
  }
}

function throwAll(reasons: readonly Error[]): void {
  const waiting = reasons.find((reason) => reason instanceof WaitingForHotplugMount);
  const missing = reasons.filter((reason) => reason instanceof NotExist);
  const failed = reasons.filter((reason) => reason instanceof VolumeFailed);
  const others = reasons.filter(
    (reason) =>
      !(
        reason instanceof NotExist ||
        reason instanceof VolumeFailed ||
        reason instanceof WaitingForHotplugMount
      ),
  );
  const kinds = [
    ...others,
    ...(failed.length > 0 ? [new VolumeFailed(failed.map(message).join('; '), { cause: failed[0] })] : []),
    ...(missing.length > 0 ? [new NotExist(missing.map(message).join('; '))] : []),
    ...(waiting === undefined ? [] : [waiting]),
  ];
  const [only] = kinds;
  if (only === undefined) return;
  throw kinds.length === 1 ? only : new AggregateError(kinds, kinds.map(message).join('; '));
}

function message(error: unknown): string {
  return asError(error).message;
}
