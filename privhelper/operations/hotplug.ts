/** HotplugService. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type ListResponseSchema,
  type PlugFilesystemResponseSchema,
  PlugKind,
  PlugOutcome,
  type UnplugAllResponseSchema,
  type UnplugResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import type { FilesystemPlugOutcome, Launcher, PluggedEntry } from '../../native/binding.js';
import { toFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { PodRef } from '../policy/check.js';
import type { FilesystemPlug, UnplugRef } from '../policy/hotplug.js';

const outcomes: Readonly<Record<FilesystemPlugOutcome, PlugOutcome>> = {
  plugged: PlugOutcome.CHANGED,
  'not-ready': PlugOutcome.NOT_READY,
  missing: PlugOutcome.MISSING,
};

/** Nothing proves yet that the pod is an attachment pod, so it must not be bound to the launcher pod. */
class NotReady extends Error {
  override readonly name = 'NotReady';
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
      return { outcome: owned === 'changed' ? PlugOutcome.CHANGED : PlugOutcome.UNCHANGED };
    }
    const mount = async () => {
      const outcome = await recorded(
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
        (result) => result === 'plugged',
      );
      if (outcome === 'not-ready') throw new NotReady();
      return { outcome: outcomes[outcome] };
    };
    try {
      return await pods.withAttachment(plug, mount);
    } catch (error) {
      if (error instanceof NotReady) return { outcome: PlugOutcome.NOT_READY };
      throw error;
    }
  });
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

/** A record that cannot be parsed names what is plugged. */
export function list(
  { native, podsDir, pods, hotplugRecords }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof ListResponseSchema>> {
  return pods.withLauncher(invocation, pod, async (launcher) => {
    const entries = await native.listPlugged(invocation.call, podsDir, pod.podUid, launcher);
    const recorded = new Set(hotplugRecords.entries(pod) ?? pluggedNames(entries));
    const gone = [...recorded].filter((name) => entries.every((entry) => entry.name !== name));
    const all = [...entries, ...gone.map((name) => ({ name, mounted: false, block: false }))];
    return {
      volumes: all.map(({ name, mounted, block }) => ({
        ...(name.endsWith('.img')
          ? { volume: name.slice(0, -'.img'.length), kind: PlugKind.DISK, plugged: mounted }
          : { volume: name, kind: block ? PlugKind.BLOCK : PlugKind.DIRECTORY, plugged: mounted || block }),
        recorded: recorded.has(name),
      })),
    };
  });
}

export function unplug(
  { native, podsDir, pods, hotplugRecords }: Helper,
  invocation: Invocation,
  plugged: UnplugRef,
): Promise<MessageInitShape<typeof UnplugResponseSchema>> {
  return pods.withLauncher(invocation, plugged, async (launcher) => {
    const name = entryName(plugged);
    const gone = await native.unplug(invocation.call, podsDir, plugged.podUid, launcher, name);
    const forgotten = hotplugRecords.remove(plugged, name);
    return { changed: gone || forgotten };
  });
}

/**
 * Works without the launcher too: what was mounted in its namespace is gone with it, what another handler mounted on
 * the host is not. The record goes in any case, for nobody would come for it again.
 */
export function unplugAll(
  { native, podsDir, pods, hotplugRecords }: Helper,
  invocation: Invocation,
  pod: PodRef,
): Promise<MessageInitShape<typeof UnplugAllResponseSchema>> {
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
    const forgotten = hotplugRecords.removePod(pod);
    return { changed: changed || forgotten, problems };
  });
}
