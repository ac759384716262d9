/** HotplugService. */
import { constants } from 'node:os';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import {
  type ListResponseSchema,
  type PlugBlockResponseSchema,
  type PlugFilesystemResponseSchema,
  PlugKind,
  PlugOutcome,
  type UnplugAllResponseSchema,
  type UnplugResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import type { BlockDevice, FilesystemPlugOutcome, Launcher, PluggedEntry } from '../../native/binding.js';
import { isGranted } from '../devices/granted.js';
import { CallFailure, refusal, toFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import { type Invocation, ownerKept } from '../invocation.js';
import type { DeviceNumbers } from '../pods/plugged-devices.js';
import type { PodRegistry } from '../pods/registry.js';
import type { PodRef } from '../policy/check.js';
import type { BlockPlug, FilesystemPlug, UnplugRef } from '../policy/hotplug.js';
import type { AttachmentRef } from '../policy/sockets.js';
import { denyBlockDevices } from './device-policy.js';

const outcomes: Readonly<Record<FilesystemPlugOutcome, PlugOutcome>> = {
  plugged: PlugOutcome.CHANGED,
  'plugged-kept': PlugOutcome.CHANGED,
  'not-ready': PlugOutcome.NOT_READY,
  missing: PlugOutcome.MISSING,
};

class NoSource extends Error {
  override readonly name = 'NoSource';
  constructor(readonly outcome: FilesystemPlugOutcome) {
    super(`nothing to plug: ${outcome}`);
  }
}

function hasPlugged(outcome: FilesystemPlugOutcome): boolean {
  return outcome === 'plugged' || outcome === 'plugged-kept';
}

function entryName({ volume, kind }: UnplugRef): string {
  return kind === 'disk' ? `${volume}.img` : volume;
}

/** What is plugged already needs no attachment pod any more: that may be gone before the volume is. */
export function plugFilesystem(
  helper: Helper,
  invocation: Invocation,
  plug: FilesystemPlug,
): Promise<MessageInitShape<typeof PlugFilesystemResponseSchema>> {
  const { native, podsDir, pods, policy } = helper;
  return pods.withLauncher(invocation, plug, async (launcher) => {
    const { podUid, attachmentPodUid, volume, kind } = plug;
    const user = { uid: policy.qemuUid, gid: policy.qemuGid };
    const owned = await native.ownPlugged(invocation.call, podsDir, podUid, launcher, volume, kind, user);
    if (owned !== 'absent') {
      if (owned === 'kept') invocation.remark = ownerKept;
      return { outcome: owned === 'changed' ? PlugOutcome.CHANGED : PlugOutcome.UNCHANGED };
    }
    const outcome = await withSource(pods, plug, () =>
      recorded(
        helper,
        invocation,
        { pod: plug, launcher, name: entryName(plug) },
        () =>
          native.plugFilesystem(
            invocation.call,
            podsDir,
            podUid,
            launcher,
            attachmentPodUid,
            volume,
            kind,
            user,
          ),
        hasPlugged,
      ),
    );
    if (outcome === 'plugged-kept') invocation.remark = ownerKept;
    return { outcome: outcomes[outcome] };
  });
}

/** A node that the helper has made, or that the attachment pod vouches for, is plugged; any other is refused. */
export function plugBlock(
  helper: Helper,
  invocation: Invocation,
  plug: BlockPlug,
): Promise<MessageInitShape<typeof PlugBlockResponseSchema>> {
  const { native, podsDir, pods, policy, plugged } = helper;
  return pods.withLauncher(invocation, plug, async (launcher) => {
    const { podUid, volume } = plug;
    const owner = { uid: policy.qemuUid, gid: policy.qemuGid };
    const node = await native.pluggedDevice(invocation.call, podsDir, podUid, volume);
    const known = plugged.find(podUid, volume);
    if (node !== null && known !== undefined && sameDevice(node, known)) {
      const changed = await native.plugBlock(invocation.call, podsDir, podUid, volume, node, owner);
      return { outcome: changed ? PlugOutcome.CHANGED : PlugOutcome.UNCHANGED };
    }
    const outcome = await withSource(pods, plug, async () => {
      const device = await attachedDevice(helper, invocation, plug);
      if (typeof device === 'string') return device;
      if (node !== null && !sameDevice(node, device)) {
        throw refusal(
          'check device',
          `node ${volume} in pod ${podUid} is another device than the volume's`,
          'volume',
        );
      }
      const place = { pod: plug, launcher, name: volume };
      await recorded(
        helper,
        invocation,
        place,
        async () => {
          // Before anybody can see the node.
          plugged.remember(podUid, volume, device);
          try {
            await native.plugBlock(invocation.call, podsDir, podUid, volume, device, owner);
          } catch (error) {
            if (node === null && toFailure(error).unchanged) plugged.forget(podUid, volume);
            throw error;
          }
        },
        () => true,
      );
      return 'plugged';
    });
    return { outcome: outcomes[outcome] };
  });
}

/**
 * Throws for a device that the host uses itself, and for one that the attachment pod was not given: a pod that may make
 * nodes can make that of any device, but opens only what kubelet lets it.
 */
async function attachedDevice(
  { native, podsDir, deviceHierarchy, disksInUse }: Helper,
  invocation: Invocation,
  { attachmentPodUid, volume }: BlockPlug,
): Promise<BlockDevice | 'not-ready' | 'missing'> {
  const { call } = invocation;
  const device = await native.attachedDevice(call, deviceHierarchy, podsDir, attachmentPodUid, volume);
  if (typeof device === 'string') return device;
  const granted = isGranted(device.policy, device);
  if (granted === false) throw notGiven(device, attachmentPodUid);
  if (granted === undefined) {
    invocation.remark = `whether pod ${attachmentPodUid} may open block device ${device.major}:${device.minor} cannot be told`;
  }
  const [use] = await disksInUse.uses([device]);
  if (use !== undefined)
    throw refusal('check device', `volume ${volume} is the host's own: ${use}`, 'volume');
  return device;
}

function notGiven({ major, minor }: DeviceNumbers, podUid: string): CallFailure {
  return new CallFailure({
    code: Code.PermissionDenied,
    operation: 'check device',
    message: `block device ${major}:${minor} is none that pod ${podUid} may open`,
    errno: constants.errno.EACCES,
    errnoName: 'EACCES',
    field: 'volume',
    refused: true,
  });
}

function sameDevice(a: DeviceNumbers, b: DeviceNumbers): boolean {
  return a.major === b.major && a.minor === b.minor;
}

/**
 * Runs `plug` with the attachment pod bound to the launcher pod. Without anything there that proves it to be one, or
 * without the volume, it is not bound.
 */
async function withSource(
  pods: PodRegistry,
  plug: AttachmentRef,
  operation: () => Promise<FilesystemPlugOutcome>,
): Promise<FilesystemPlugOutcome> {
  try {
    return await pods.withAttachment(plug, async () => {
      const outcome = await operation();
      if (!hasPlugged(outcome)) throw new NoSource(outcome);
      return outcome;
    });
  } catch (error) {
    if (error instanceof NoSource) return error.outcome;
    throw error;
  }
}

interface Place {
  readonly pod: PodRef;
  readonly launcher: Launcher;
  readonly name: string;
}

/**
 * The record is written first, so that a helper that dies in between leaves what undoes it, and taken back when
 * nothing was plugged.
 */
async function recorded<T>(
  { native, podsDir, hotplugRecords }: Helper,
  invocation: Invocation,
  { pod, launcher, name }: Place,
  plug: () => Promise<T>,
  isPlugged: (result: T) => boolean,
): Promise<T> {
  if (hotplugRecords.entries(pod) === undefined) {
    const found = await native.listPlugged(invocation.call, podsDir, pod.podUid, launcher);
    hotplugRecords.rebuild(pod, pluggedNames(found));
  }
  const added = hotplugRecords.add(pod, name);
  const takeBack = () => {
    if (added) hotplugRecords.remove(pod, name);
  };
  try {
    const result = await plug();
    if (!isPlugged(result)) takeBack();
    return result;
  } catch (error) {
    if (toFailure(error).unchanged) takeBack();
    throw error;
  }
}

function pluggedNames(entries: readonly PluggedEntry[]): string[] {
  return entries.filter(({ mounted, block }) => mounted || block).map(({ name }) => name);
}

/** A record that cannot be parsed names what is plugged. A device that may be open still counts as recorded. */
export function list(
  { native, podsDir, pods, hotplugRecords, plugged }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ListResponseSchema>> {
  return pods.withLauncher(invocation, pod, async (launcher) => {
    const entries = await native.listPlugged(invocation.call, podsDir, pod.podUid, launcher);
    const devices = plugged.volumes(pod.podUid);
    const recorded = new Set([...(hotplugRecords.entries(pod) ?? pluggedNames(entries)), ...devices]);
    const found = new Map(entries.map((entry) => [entry.name, entry]));
    // In the order in which they were plugged, as far as that is known.
    const all = [...new Set([...recorded, ...found.keys()])].map(
      (name) => found.get(name) ?? { name, mounted: false, block: false },
    );
    return {
      volumes: all.map(({ name, mounted, block }) => ({
        ...(name.endsWith('.img')
          ? { volume: name.slice(0, -'.img'.length), kind: PlugKind.DISK, plugged: mounted }
          : {
              volume: name,
              kind: block || devices.has(name) ? PlugKind.BLOCK : PlugKind.DIRECTORY,
              plugged: mounted || block,
            }),
        recorded: recorded.has(name),
        present: found.has(name),
        known: devices.has(name),
      })),
    };
  });
}

/** The next policy denies a device that is unplugged. Until then it is listed, for whoever did not live to set one. */
export function unplug(
  { native, podsDir, pods, hotplugRecords, plugged }: Helper,
  invocation: Invocation,
  ref: UnplugRef,
): Promise<MessageInitShape<typeof UnplugResponseSchema>> {
  return pods.withLauncher(invocation, ref, async (launcher) => {
    const name = entryName(ref);
    const gone = await native.unplug(invocation.call, podsDir, ref.podUid, launcher, name);
    const left = ref.kind !== 'disk' && plugged.leave(ref.podUid, ref.volume);
    const forgotten = hotplugRecords.remove(ref, name);
    return { changed: gone || left || forgotten };
  });
}

/**
 * Works without the launcher too: what was mounted in its namespace is gone with it, what another handler mounted on
 * the host is not. The record goes in any case, for nobody would come for it again.
 */
export function unplugAll(
  helper: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof UnplugAllResponseSchema>> {
  const { native, podsDir, pods, hotplugRecords, plugged } = helper;
  return pods.withLauncherIfAny(invocation, pod, async (launcher) => {
    if (launcher === null && !hotplugRecords.names(pod)) return { changed: false, problems: [] };
    const problems: string[] = [];
    const attempt = async <T>(step: () => Promise<T>, otherwise: T): Promise<T> => {
      try {
        return await step();
      } catch (error) {
        problems.push(toFailure(error).message);
        return otherwise;
      }
    };
    const names =
      hotplugRecords.entries(pod) ??
      (await attempt(
        async () => pluggedNames(await native.listPlugged(invocation.call, podsDir, pod.podUid, launcher)),
        [],
      ));
    let changed = false;
    for (const name of names) {
      const gone = await attempt(
        () => native.unplug(invocation.call, podsDir, pod.podUid, launcher, name),
        false,
      );
      changed = changed || gone;
    }
    if (launcher !== null && plugged.has(pod.podUid)) {
      const denied = await attempt(() => denyBlockDevices(helper, invocation, launcher, pod.podUid), false);
      changed = changed || denied;
    }
    plugged.drop(pod.podUid);
    const forgotten = hotplugRecords.removePod(pod);
    return { changed: changed || forgotten, problems };
  });
}
