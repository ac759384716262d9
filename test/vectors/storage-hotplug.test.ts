/**
 * Hot-plugged volumes: the agent's rules, and whole passes of agent and helper over a node that is simulated below the
 * addon. Records are real files.
 */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { NotExist, WaitingForHotplugMount } from '../../agent/reconcile/ports.js';
import { isBlockVolume, isDirectory } from '../../agent/storage/hotplug-volumes.js';
import { HotplugNode, type HotplugWorld, podUid } from './hotplug-node.js';
import { loadVectors } from './load.js';
import { type JsonObject, vmiOf } from './objects.js';

interface FunctionInput {
  readonly op: string;
  readonly volume: string;
  readonly host: string;
  readonly volumes?: unknown;
  readonly utilityVolumes?: unknown;
  readonly [status: string]: unknown;
}
interface FunctionExpected {
  readonly block?: boolean;
  readonly directory?: boolean;
}

const functions = loadVectors<FunctionInput, FunctionExpected>('storage', 'hotplug-functions');

describe('hotplug-functions', () => {
  // Cases of findmnt have no counterpart: a source is a mount in the attachment container, not a path on the node.
  const known = ['isBlockVolume', 'isDirectoryMounted', 'findmnt'];

  it('has no other operations', () => {
    expect(functions.filter(({ input }) => !known.includes(input.op))).toEqual([]);
  });

  it.each(functions.filter(({ input }) => input.op === 'isBlockVolume'))(
    'STO-024 $name',
    ({ input, expected }) => {
      const { migratedVolumes, migrationState, volumeStatus } = input;
      const vmi = vmiOf({ status: { migratedVolumes, migrationState, volumeStatus } } as JsonObject);
      expect(isBlockVolume(vmi, input.volume, input.host)).toBe(expected.block);
    },
  );

  it.each(functions.filter(({ input }) => input.op === 'isDirectoryMounted'))(
    'STO-022 $name',
    ({ input, expected }) => {
      const { volumes, utilityVolumes } = input;
      const vmi = vmiOf({ spec: { volumes, utilityVolumes } } as unknown as JsonObject);
      expect(isDirectory(vmi, input.volume)).toBe(expected.directory);
    },
  );
});

interface PlanInput {
  readonly action: 'mount' | 'mountFromPod' | 'unmount' | 'unmountAll';
  readonly host: string;
  readonly sourceUID: string;
  readonly vmi: JsonObject;
  readonly world: HotplugWorld;
}
interface PlanExpected {
  readonly ops: readonly string[];
  readonly error: string;
  readonly errWaitingForHotplugMount: boolean;
  readonly errNotExist: boolean;
  readonly record: string;
  readonly launcherEntriesAfter: readonly string[];
}

const plans = loadVectors<PlanInput, PlanExpected>('storage', 'hotplug-plan');
const directory = mkdtempSync(join(tmpdir(), 'vp-plan-'));
afterAll(() => rmSync(directory, { recursive: true }));

describe('hotplug-plan', () => {
  it.each(plans.map((plan, i) => ({ ...plan, i })))('STO-016 $name', async (plan) => {
    const { name, input, expected } = plan;
    const place = join(directory, String(plan.i));
    const vmi = vmiOf(withUids(input.vmi));
    const plugging = input.action.startsWith('mount');
    const whole = await pass(place, input, vmi);
    const { node, errors, before } = whole;
    // A pod that cannot be told for certain keeps what it has, where virt-handler forgets it.
    if (name.startsWith('BUG')) {
      expect([errors, node.ops]).toEqual([[], []]);
      expect([whole.record, node.files()]).toEqual([before.record, before.files]);
      return;
    }

    // The first error ended a pass of virt-handler's; here each volume has its turn, as if it were the only one.
    const alone: Pass[] = [];
    for (const [j, status] of (plugging ? (vmi.status.volumeStatus ?? []) : []).entries()) {
      const only = { ...vmi, status: { ...vmi.status, volumeStatus: [status] } };
      alone.push(await pass(join(place, `volume-${j}`), input, only));
    }
    if (alone.length > 0) {
      expect(node.ops).toEqual(alone.flatMap((each) => each.node.ops));
      expect(classes(errors)).toEqual(classes(alone.flatMap((each) => each.errors)));
    }
    // Plugging does not depend on the device policy, which is made anew in each pass.
    const withoutPolicy =
      input.world.nilCgroupManager === true && expected.error.endsWith('cgroup manager is nil');
    // What a record says that cannot be parsed, and which paths in it are gone, is found in the pod.
    const unreadable = recordFault(input.world);
    const first = alone.find((each) => each.errors.length > 0)?.errors ?? errors;
    expect(first.some((each) => each instanceof WaitingForHotplugMount)).toBe(
      expected.errWaitingForHotplugMount,
    );
    expect(first.some((each) => each instanceof NotExist)).toBe(expected.errNotExist);
    expect(errors.length > 0).toBe(expected.error !== '' && unreadable === undefined && !withoutPolicy);

    // Devices are allowed and denied once, after all, and by the whole list.
    const ops = expected.ops.filter((op) => !op.startsWith('cgroup'));
    const allowed = expected.ops.flatMap((op) => /^cgroup allow b (.*) rwm$/.exec(op)?.[1] ?? []);
    const denied = expected.ops.flatMap((op) => /^cgroup deny b (.*) rwm$/.exec(op)?.[1] ?? []);
    const done = node.ops.filter((op) => !withoutPolicy || !op.startsWith('chown'));
    expect(plugging && errors.length > 0 ? done.slice(0, ops.length) : done).toEqual(ops);
    expect([...node.allowed()].sort()).toEqual(expect.arrayContaining([...new Set(allowed)].sort()));
    for (const device of denied) expect(node.allowed()).not.toContain(device);

    // Neither is there a mount point without a mount.
    const pluggedOf = (entries: readonly string[]) =>
      entries.filter((entry) => / (mounted|block)$/.test(entry));
    const plugged = pluggedOf(node.entries());
    expect(plugged).toEqual(expect.arrayContaining(pluggedOf(expected.launcherEntriesAfter)));
    // What cannot be unmounted stays; virt-handler unlinks under it.
    const stuck = input.action === 'unmountAll' && input.world.failUnmount !== null;
    if (ops.length === node.ops.length && !stuck) {
      expect(plugged).toEqual(pluggedOf(expected.launcherEntriesAfter));
    }

    // A node that is gone leaves the record at once: that its device is to be denied is remembered elsewhere.
    if (withoutPolicy && input.action === 'unmount') return;
    // Recorded is what is plugged, so not the volume without disk.img. A record that says nothing stays until the end.
    const stays = unreadable === 'corrupt' && input.action === 'unmount';
    if (unreadable !== undefined) {
      expect(whole.record).toBe(stays ? before.record : '');
      return;
    }
    // Nor is what was not in the pod before, for which virt-handler makes a mount point as it looks.
    const isPlugged = (file: string) => node.files().get(file) === true;
    const named = node.named(expected.record);
    const wanted = targetFiles(named).filter(
      (file) => isPlugged(file) || (before.record.includes(`"${file}"`) && before.files.has(file)),
    );
    // Of the volumes after the first error.
    const others = targetFiles(whole.record).slice(wanted.length);
    const asNamed = wanted.length === targetFiles(named).length && others.length === 0;
    expect(whole.record).toBe(asNamed ? named : recordText([...wanted, ...others]));
    expect(others.filter((file) => !isPlugged(file))).toEqual([]);
    if (ops.length === node.ops.length) expect(others).toEqual([]);
  });
});

interface Pass {
  readonly node: HotplugNode;
  readonly errors: readonly unknown[];
  /** Text of the VMI's record; empty without one. */
  readonly record: string;
  readonly before: { readonly record: string; readonly files: ReadonlyMap<string, boolean> };
}

/** One pass over a node of its own. */
async function pass(place: string, input: PlanInput, vmi: ReturnType<typeof vmiOf>): Promise<Pass> {
  mkdirSync(place);
  const node = new HotplugNode(place, input.world, input.host, input.action.startsWith('mount'));
  const file = join(place, vmi.metadata.uid || 'none');
  const before = {
    record: input.world.record === null ? '' : node.named(JSON.stringify(input.world.record)),
    files: node.files(),
  };
  if (before.record !== '') writeFileSync(file, before.record);
  const error = await run(node, input, vmi);
  const errors = error instanceof AggregateError ? error.errors : error === undefined ? [] : [error];
  return { node, errors, before, record: existsSync(file) ? readFileSync(file, 'utf8') : '' };
}

/** Each kind of error once: one stands for all of its kind. */
function classes(errors: readonly unknown[]): string[] {
  return [...new Set(errors.map((error) => (error as Error).name))].sort();
}

function targetFiles(record: string): string[] {
  if (record === '') return [];
  const { mountTargetEntries } = JSON.parse(record) as {
    mountTargetEntries: { targetFile: string }[] | null;
  };
  return (mountTargetEntries ?? []).map(({ targetFile }) => targetFile);
}

function recordText(files: readonly string[]): string {
  if (files.length === 0) return '';
  return JSON.stringify({
    mountTargetEntries: files.map((targetFile) => ({ targetFile })),
    usesSafePaths: true,
  });
}

/** What keeps virt-handler from reading a record: it is torn, or a path of an old release's is gone. */
function recordFault({ record, launcherPods }: HotplugWorld): 'corrupt' | 'path gone' | undefined {
  if (record === null || record === undefined) return undefined;
  const { mountTargetEntries, usesSafePaths } = record as JsonObject;
  if (!Array.isArray(mountTargetEntries)) return 'corrupt';
  const known = Object.entries(launcherPods ?? {}).flatMap(([pod, entries]) =>
    Object.keys(entries).map((name) => `/pods/${pod}/volumes/kubernetes.io~empty-dir/hotplug-disks/${name}`),
  );
  const exists = (entry: unknown) =>
    known.some((path) => String((entry as JsonObject)['targetFile']).endsWith(path));
  return usesSafePaths === true || mountTargetEntries.every(exists) ? undefined : 'path gone';
}

async function run(node: HotplugNode, { action, sourceUID }: PlanInput, vmi: ReturnType<typeof vmiOf>) {
  const { volumes } = node;
  try {
    if (action === 'mount') await volumes.mount(vmi);
    if (action === 'mountFromPod') await volumes.mount(vmi, podUid(sourceUID));
    if (action === 'unmount') await volumes.unmount(vmi, new Set());
    if (action === 'unmountAll')
      await volumes.unmountAll({ namespace: 'ns', name: 'vm', uid: vmi.metadata.uid });
    return undefined;
  } catch (error) {
    return error;
  }
}

/** Pods and VMIs have UUIDs here. */
function withUids(vmi: JsonObject): JsonObject {
  const text = JSON.stringify(vmi)
    .replace(/"uid":"([^"]+)"/g, (_, uid: string) => `"uid":"${podUid(uid)}"`)
    .replace(/"attachPodUID":"([^"]+)"/g, (_, uid: string) => `"attachPodUID":"${podUid(uid)}"`)
    .replace(/"activePods":(\{[^}]*\})/g, (_, pods: string) => {
      const named = Object.entries(JSON.parse(pods)).map(([uid, host]) => [podUid(uid), host]);
      return `"activePods":${JSON.stringify(Object.fromEntries(named))}`;
    });
  return JSON.parse(text);
}
