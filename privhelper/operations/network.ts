/** NetworkService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import type {
  ApplyResponseSchema,
  ObserveResponseSchema,
  RepairPasstResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { Call } from '../../native/binding.js';
import { afterChange, exhausted } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import { dhcpRecordFileName, dhcpRecordText, dhcpStartedFileName } from '../network/dhcp-record.js';
import type { PodRef } from '../policy/check.js';
import type { DhcpRecordFile, NetworkSetup, PasstRepair } from '../policy/network.js';

/** Readable by the launcher's user and by others, as virt-handler writes it. */
const dhcpRecordMode = 0o604;

export function observe(
  { native, pods, forbiddenNetworks }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ObserveResponseSchema>> {
  return pods.callOnLauncher(invocation, pod, (launcher, call) =>
    native.observeNetwork(call(), launcher, forbiddenNetworks),
  );
}

/**
 * Takes as long as a migration, so only the look at the launcher happens in the pod's turn: other calls go on
 * meanwhile. The native call holds the launcher's descriptors itself.
 */
export async function repairPasst(
  { native, podsDir, pods, repairing }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, side }: PasstRepair,
): Promise<MessageInitShape<typeof RepairPasstResponseSchema>> {
  const { repair } = await pods.withLauncher(invocation, { podUid, vmiUid }, async (launcher) => {
    if (repairing.has(podUid)) throw exhausted('repair passt', `passt of pod ${podUid} is being repaired`);
    repairing.add(podUid);
    const switched = native.repairPasst(invocation.call, podsDir, podUid, launcher, side);
    return { repair: switched.finally(() => repairing.delete(podUid)) };
  });
  return { switched: BigInt(await repair) };
}

/**
 * Records that are new come first, since they are what the launcher starts from, and go again if the set-up fails;
 * records of networks that are gone go last, so that a call which is cut short is repeated for them.
 */
export function apply(
  helper: Helper,
  invocation: Invocation,
  { podUid, vmiUid, attachments, detachments, records, passt }: NetworkSetup,
): Promise<MessageInitShape<typeof ApplyResponseSchema>> {
  const { native, pods, policy, forbiddenNetworks, selinux } = helper;
  return pods.callOnLauncher(invocation, { podUid, vmiUid }, async (launcher, call) => {
    const files = new DhcpRecords(helper, invocation, podUid);
    const [uid, gid] = launcher.uid === 0 ? [0, 0] : [policy.qemuUid, policy.qemuGid];
    const plan = { attachments, detachments, uid, gid, ...(passt ? { passtGid: policy.qemuGid } : {}) };
    let changed: boolean;
    try {
      for (const record of records) await files.write(call(), record);
      const enforces = selinux.mode() === 'enforcing';
      changed = await native.applyNetwork(call(), launcher, forbiddenNetworks, plan, enforces);
    } catch (error) {
      throw await files.takeBack(error);
    }
    pods.noteNetwork(podUid, new Date(), plan);
    changed ||= files.changed;
    for (const { podInterface } of detachments) {
      try {
        for (const nameOf of [dhcpRecordFileName, dhcpStartedFileName])
          changed = (await files.remove(nameOf(podInterface))) || changed;
      } catch (error) {
        throw changed ? afterChange(error) : error;
      }
    }
    return { changed };
  });
}

/** DHCP records in the pod's private volume, with what the launcher notes about them. */
class DhcpRecords {
  readonly #created: string[] = [];
  #replaced = false;

  constructor(
    private readonly helper: Helper,
    private readonly invocation: Invocation,
    private readonly podUid: string,
  ) {}

  get changed(): boolean {
    return this.#replaced || this.#created.length > 0;
  }

  async write(call: Call, { podInterface, record }: DhcpRecordFile): Promise<void> {
    const { native, podsDir, policy } = this.helper;
    const text = Buffer.from(dhcpRecordText(record));
    const owner = { uid: policy.qemuUid, gid: policy.qemuGid, mode: dhcpRecordMode };
    const name = dhcpRecordFileName(podInterface);
    const outcome = await native.writeVolumeFile(call, podsDir, this.podUid, 'private', name, text, owner);
    if (outcome === 'created') this.#created.push(name);
    if (outcome === 'replaced') this.#replaced = true;
  }

  remove(name: string): Promise<boolean> {
    const { native, podsDir } = this.helper;
    return native.removeVolumeFile(this.invocation.call, podsDir, this.podUid, 'private', name);
  }

  /** Removes what was created. Resolves to the failure, which tells what could not be taken back. */
  async takeBack(error: unknown): Promise<unknown> {
    try {
      for (const name of this.#created) await this.remove(name);
    } catch (undo) {
      return afterChange(error, undo);
    }
    return this.#replaced ? afterChange(error) : error;
  }
}
