/**
 * Keeps the device policy of launchers with plugged block volumes what it should be: kubelet, the runtime or systemd
 * may put their own in its place at any time, for instance when the CPU set changes.
 */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { SetPolicyRequestSchema } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { PodFinder } from '../api/pod-ref.js';
import { type Vmi, vmiKey } from '../api/vmi.js';
import { sleep, type Timers } from '../kube/timers.js';
import type { Logger } from '../log/log.js';
import type { DevicePolicy, VmiStore } from '../reconcile/ports.js';
import { isFinal, refOf } from '../reconcile/predicates.js';
import { blockVolumes } from './block-volumes.js';

/** The helper's call. Throws a HelperError. */
export interface DevicePolicyHelper {
  /** False: the policy was in force already. */
  setDevicePolicy(request: MessageInitShape<typeof SetPolicyRequestSchema>): Promise<boolean>;
}

export interface DevicePolicyOptions {
  readonly helper: DevicePolicyHelper;
  readonly pods: PodFinder;
  /** VMIs of this node. */
  readonly vmis: VmiStore;
  /** Name of this node. */
  readonly node: string;
  readonly timers: Timers;
  readonly log: Logger;
}

/** How long a policy that somebody else has put in place may last. */
const recheckMs = 30_000;

export class HelperDevicePolicy implements DevicePolicy {
  /** UIDs of the VMIs whose policy is ours, with their keys. */
  readonly #kept = new Map<string, string>();

  constructor(private readonly options: DevicePolicyOptions) {}

  async apply(vmi: Vmi): Promise<void> {
    const known = this.#kept.has(vmi.metadata.uid);
    this.#kept.set(vmi.metadata.uid, vmiKey(vmi.metadata));
    const { helper, pods, node, log } = this.options;
    const changed = await helper.setDevicePolicy({
      pod: await pods.find(vmi),
      blockVolumes: blockVolumes(vmi, node),
    });
    if (changed) {
      const what = known
        ? 'replaced: volumes changed, or another policy was in place'
        : 'replaced for the first time';
      log.object(refOf(vmi)).info(`device policy of the launcher ${what}`);
    }
  }

  /** Compares, and restores, every 30 s until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    for (;;) {
      try {
        await sleep(this.options.timers, recheckMs, signal);
      } catch {
        return;
      }
      await this.recheck();
    }
  }

  /** One after the other: a call takes milliseconds. */
  async recheck(): Promise<void> {
    for (const [uid, key] of this.#kept) {
      const vmi = this.options.vmis.get(key);
      if (vmi === undefined || vmi.metadata.uid !== uid || isFinal(vmi)) {
        this.#kept.delete(uid);
        continue;
      }
      try {
        await this.apply(vmi);
      } catch (error) {
        this.options.log
          .object(refOf(vmi))
          .warning('device policy of the launcher was not compared, trying again in 30 s', error);
      }
    }
  }
}
