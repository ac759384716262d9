/** A node with hot-plugged volumes: the agent's and the helper's own code above an addon that only remembers. */
import { createHash } from 'node:crypto';
import type { PodRef } from '../../agent/api/pod-ref.js';
import { HelperHotplugVolumes, type HotplugHelper, type PlugResult } from '../../agent/storage/hotplug.js';
import type { VolumeKind } from '../../agent/storage/hotplug-volumes.js';
import { PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { BlockDevice, Native } from '../../native/binding.js';
import { declaredBy } from '../../privhelper/declarations.js';
import type { Helper } from '../../privhelper/helper.js';
import * as operations from '../../privhelper/operations/hotplug.js';
import { HotplugRecords } from '../../privhelper/pods/hotplug-records.js';
import { PluggedDevices } from '../../privhelper/pods/plugged-devices.js';
import { PodRegistry } from '../../privhelper/pods/registry.js';
import { createPolicy } from '../../privhelper/policy/policy.js';
import { FakeLaunchers, fakeNative, invocation, nativeError } from '../unit/privhelper/fakes.js';
import { silentLog } from '../unit/status/fakes.js';

export interface HotplugWorld {
  /** Pod -> entry -> `file`, `dir`, `block:major:minor`, the first two perhaps `,mounted`. */
  readonly launcherPods: Readonly<Record<string, Readonly<Record<string, string>>>> | null;
  /** Pod -> volume -> `fs`, `fs-noimg`, `block:major:minor:mode`. */
  readonly attachPods: Readonly<Record<string, Readonly<Record<string, string>>>> | null;
  readonly record: unknown;
  readonly failUnmount: readonly string[] | null;
  /** virt-handler finds no device cgroup. */
  readonly nilCgroupManager?: boolean;
}

/** A UUID that the name of a pod or VMI always gets; the empty name has none. */
export function podUid(name: string): string {
  if (name === '') return '';
  const hex = createHash('sha1').update(name).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

const podsDir = '/pods';
const emptyDir = 'volumes/kubernetes.io~empty-dir/hotplug-disks';

interface Entry {
  readonly kind: 'file' | 'dir' | 'block';
  readonly mounted: boolean;
  readonly device: Pick<BlockDevice, 'major' | 'minor'> | undefined;
}

export class HotplugNode implements HotplugHelper {
  /** In the words of the vectors. */
  readonly ops: string[] = [];
  readonly volumes: HelperHotplugVolumes;
  readonly #launchers = new Map<string, Map<string, Entry>>();
  readonly #names = new Map<string, string>();
  readonly #helper: Helper;
  readonly #plugged: PluggedDevices;
  #allowed: string[] = [];

  constructor(
    directory: string,
    private readonly world: HotplugWorld,
    host: string,
    /** Whether the pass plugs: what is there already was plugged by an earlier one, recorded or not. */
    plugging: boolean,
  ) {
    const recorded = JSON.stringify(world.record ?? null);
    const policy = createPolicy({ kubeletPodsDir: podsDir });
    const native = fakeNative({ ...new FakeLaunchers().methods, ...this.#native() });
    this.#plugged = new PluggedDevices(directory, policy.maxPluggedDevices);
    for (const [name, entries] of Object.entries(world.launcherPods ?? {})) {
      this.#names.set(podUid(name), name);
      const parsed = new Map(Object.entries(entries).map(([entry, text]) => [entry, parseEntry(text)]));
      this.#launchers.set(podUid(name), parsed);
      // A node that is recorded was made by the helper.
      for (const [entry, { device }] of parsed) {
        const known = plugging || recorded.includes(`/${entry}"`);
        if (device !== undefined && known) this.#plugged.remember(podUid(name), entry, device);
      }
    }
    for (const name of Object.keys(world.attachPods ?? {})) this.#names.set(podUid(name), name);
    const identify = declaredBy(PodService.method.identify);
    this.#helper = {
      ...{ native, policy, podsDir: 3, plugged: this.#plugged },
      pods: new PodRegistry({ native, podsDir: 3, policy, identify, onExit: () => undefined }),
      hotplugRecords: new HotplugRecords(directory, podsDir, policy),
      disksInUse: { uses: async (devices: readonly unknown[]) => devices.map(() => undefined) },
    } as unknown as Helper;
    this.volumes = new HelperHotplugVolumes({
      helper: this,
      devices: { apply: async () => this.#applyPolicy() },
      node: host,
      hasVolumes: (uid) => this.#launchers.has(uid),
      podsOf: () => [...this.#launchers.keys()],
      log: silentLog(),
    });
  }

  /** Texts of the vectors with pods by UUID. */
  named(text: string): string {
    return text.replace(/\$ROOT\/pods\/([^/]+)\//g, (_, name: string) => `${podsDir}/${podUid(name)}/`);
  }

  /** Devices that the launcher may open, as `major:minor`. */
  allowed(): readonly string[] {
    return this.#allowed;
  }

  /** What is in hotplug-disks, in the words of the vectors. */
  entries(): string[] {
    return [...this.#launchers]
      .flatMap(([uid, entries]) =>
        [...entries].map(([name, { kind, mounted }]) => {
          const state = mounted ? ' mounted' : kind === 'block' ? ' block' : '';
          return `${this.#names.get(uid)}/${name}${state}`;
        }),
      )
      .sort();
  }

  /** The same as records name it, and whether it is plugged. */
  files(): ReadonlyMap<string, boolean> {
    const files = new Map<string, boolean>();
    for (const [uid, entries] of this.#launchers) {
      for (const [name, { kind, mounted }] of entries) {
        files.set(`${podsDir}/${uid}/${emptyDir}/${name}`, mounted || kind === 'block');
      }
    }
    return files;
  }

  async plugFilesystem(pod: PodRef, attachmentPodUid: string, volume: string, kind: 'disk' | 'directory') {
    const plug = { ...pod, attachmentPodUid, volume, kind };
    return result(await operations.plugFilesystem(this.#helper, invocation(), plug));
  }

  async plugBlock(pod: PodRef, attachmentPodUid: string, volume: string) {
    const plug = { ...pod, attachmentPodUid, volume };
    return result(await operations.plugBlock(this.#helper, invocation(), plug));
  }

  async listPlugged(pod: PodRef) {
    const { volumes } = await operations.list(this.#helper, invocation(), pod);
    return (volumes ?? []).map(({ volume = '', kind, ...facts }) => {
      const shape: VolumeKind =
        kind === PlugKind.DISK ? 'disk' : kind === PlugKind.BLOCK ? 'block' : 'directory';
      const { plugged = false, recorded = false, present = false, known = false } = facts;
      return { volume, kind: shape, plugged, recorded, present, known };
    });
  }

  async unplug(pod: PodRef, volume: string, kind: VolumeKind) {
    return (await operations.unplug(this.#helper, invocation(), { ...pod, volume, kind })).changed ?? false;
  }

  async unplugAll(pod: PodRef) {
    return (await operations.unplugAll(this.#helper, invocation(), pod)).problems ?? [];
  }

  #applyPolicy(): void {
    const devices = [...this.#launchers.keys()].flatMap((uid) => this.#plugged.list(uid));
    this.#allowed = devices.map(({ major, minor }) => `${major}:${minor}`);
  }

  #path(uid: string, name: string): string {
    return `/pods/${this.#names.get(uid)}/${emptyDir}/${name}`;
  }

  #entriesOf(uid: string): Map<string, Entry> {
    const entries = this.#launchers.get(uid);
    if (entries === undefined) throw nativeError('ENOENT');
    return entries;
  }

  #native(): Partial<Native> {
    const own = (uid: string, name: string) => void this.ops.push(`chown-qemu ${this.#path(uid, name)}`);
    return {
      listPlugged: async (_call, _dir, uid) =>
        [...this.#entriesOf(uid)].map(([name, { kind, mounted }]) => ({
          name,
          mounted,
          block: kind === 'block',
        })),
      ownPlugged: async (_call, _dir, uid, _launcher, volume, kind) => {
        const name = kind === 'disk' ? `${volume}.img` : volume;
        if (this.#entriesOf(uid).get(name)?.mounted !== true) return 'absent';
        own(uid, name);
        return 'changed';
      },
      plugFilesystem: async (_call, _dir, uid, _launcher, attachment, volume, kind) => {
        const pod = this.#names.get(attachment) ?? '';
        const source = this.world.attachPods?.[pod]?.[volume];
        if (source === undefined || source.startsWith('block')) return 'not-ready';
        if (kind === 'disk' && source === 'fs-noimg') return 'missing';
        const name = kind === 'disk' ? `${volume}.img` : volume;
        const from = kind === 'disk' ? `/attach/${pod}/${volume}/disk.img` : `/attach/${pod}/${volume}`;
        this.ops.push(`bind ${from} -> ${this.#path(uid, name)}`);
        const shape = kind === 'disk' ? 'file' : 'dir';
        this.#entriesOf(uid).set(name, { kind: shape, mounted: true, device: undefined });
        own(uid, name);
        return 'plugged';
      },
      pluggedDevice: async (_call, _dir, uid, volume) => {
        const entry = this.#entriesOf(uid).get(volume);
        if (entry === undefined) return null;
        if (entry.device === undefined) throw nativeError('EEXIST', { refused: true });
        return { ...entry.device, mode: 0o660 };
      },
      attachedDevice: async (_call, _hierarchy, _dir, attachment, volume) => {
        const source = this.world.attachPods?.[this.#names.get(attachment) ?? '']?.[volume];
        if (source === undefined) return 'missing';
        const [, major, minor, mode = ''] = source.split(':');
        if (major === undefined) throw nativeError('ENODEV');
        const policy = { list: `b ${major}:${minor} rwm\n` };
        return { major: Number(major), minor: Number(minor), mode: Number.parseInt(mode, 8), policy };
      },
      plugBlock: async (_call, _dir, uid, volume, { major, minor, mode }) => {
        const entries = this.#entriesOf(uid);
        if (!entries.has(volume)) {
          const octal = mode.toString(8).padStart(4, '0');
          this.ops.push(`mknod ${this.#path(uid, volume)} b ${major}:${minor} mode ${octal}`);
          entries.set(volume, { kind: 'block', mounted: false, device: { major, minor } });
        }
        own(uid, volume);
        return true;
      },
      unplug: async (_call, _dir, uid, _launcher, name) => {
        const entries = this.#entriesOf(uid);
        const entry = entries.get(name);
        if (entry?.mounted) {
          if (this.world.failUnmount?.some((suffix) => this.#path(uid, name).endsWith(suffix))) {
            throw nativeError('EBUSY');
          }
          this.ops.push(`umount ${this.#path(uid, name)}`);
        }
        return entries.delete(name);
      },
    };
  }
}

function result({ outcome }: { readonly outcome?: PlugOutcome }): PlugResult {
  if (outcome === PlugOutcome.NOT_READY) return 'not-ready';
  if (outcome === PlugOutcome.MISSING) return 'missing';
  return outcome === PlugOutcome.CHANGED ? 'changed' : 'unchanged';
}

function parseEntry(text: string): Entry {
  const [, major, minor] = /^block:(\d+):(\d+)$/.exec(text) ?? [];
  if (major !== undefined) {
    return { kind: 'block', mounted: false, device: { major: Number(major), minor: Number(minor) } };
  }
  return {
    kind: text.startsWith('dir') ? 'dir' : 'file',
    mounted: text.endsWith(',mounted'),
    device: undefined,
  };
}
