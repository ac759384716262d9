import { Code } from '@connectrpc/connect';
import { beforeEach, describe, expect, it } from 'vitest';
import type { PodRef } from '../../../agent/api/pod-ref.js';
import type { Vmi } from '../../../agent/api/vmi.js';
import { HelperError, HelperUnavailable } from '../../../agent/helper/errors.js';
import { NotExist, VolumeFailed, WaitingForHotplugMount } from '../../../agent/reconcile/ports.js';
import {
  HelperHotplugVolumes,
  type HotplugHelper,
  type PluggedVolume,
  type PlugResult,
} from '../../../agent/storage/hotplug.js';
import type { VolumeKind } from '../../../agent/storage/hotplug-volumes.js';
import { silentLog } from '../status/fakes.js';

const none: ReadonlySet<string> = new Set();

/** Answers as told; remembers what was plugged. */
class FakeHotplugHelper implements HotplugHelper {
  readonly calls: string[] = [];
  readonly results = new Map<string, PlugResult | Error>();
  readonly stuck = new Set<string>();
  plugged: PluggedVolume[] = [];
  problems: string[] = [];
  listError: Error | undefined;

  async plugFilesystem({ podUid }: PodRef, from: string, volume: string, kind: 'disk' | 'directory') {
    return this.plug(`plug ${volume} ${kind} of ${from} into ${podUid}`, volume, kind);
  }

  async plugBlock({ podUid }: PodRef, from: string, volume: string) {
    return this.plug(`plug ${volume} block of ${from} into ${podUid}`, volume, 'block');
  }

  async listPlugged({ podUid }: PodRef) {
    this.calls.push(`list ${podUid}`);
    if (this.listError !== undefined) throw this.listError;
    return this.plugged;
  }

  async unplug(_pod: PodRef, volume: string, kind: VolumeKind) {
    this.calls.push(`unplug ${volume} ${kind}`);
    if (this.stuck.has(volume)) throw new Error(`${volume} is stuck`);
    const found = this.plugged.find((each) => each.volume === volume);
    this.plugged = this.plugged.filter((each) => each !== found);
    // A device stays recorded until it is denied.
    if (found?.kind === 'block') this.plugged.push({ ...found, plugged: false, present: false });
    return found !== undefined;
  }

  async unplugAll({ podUid }: PodRef) {
    this.calls.push(`unplug all of ${podUid}`);
    this.plugged = [];
    return this.problems;
  }

  private plug(call: string, volume: string, kind: VolumeKind): PlugResult {
    this.calls.push(call);
    const result = this.results.get(volume) ?? 'changed';
    if (result instanceof Error) throw result;
    if (result === 'changed') this.plugged.push(entry(volume, kind));
    return result;
  }
}

/** What the helper has plugged. */
function entry(volume: string, kind: VolumeKind): PluggedVolume {
  return { volume, kind, plugged: true, recorded: true, present: true, known: kind === 'block' };
}

let helper: FakeHotplugHelper;
let policies: string[];
let policyError: Error | undefined;
let local: Set<string>;
let pods: string[];
let lines: string[];
let volumes: HelperHotplugVolumes;
/** As an agent that starts has them. */
let start: () => HelperHotplugVolumes;

beforeEach(() => {
  helper = new FakeHotplugHelper();
  local = new Set(['lp']);
  pods = ['lp'];
  policies = [];
  lines = [];
  policyError = undefined;
  const apply = async () => {
    if (policyError !== undefined) throw policyError;
    helper.plugged = helper.plugged.filter(({ plugged }) => plugged);
    policies.push(helper.plugged.map(({ volume }) => volume).join(' '));
  };
  start = () =>
    new HelperHotplugVolumes({
      helper,
      devices: { apply },
      node: 'me',
      hasVolumes: (podUid) => local.has(podUid),
      podsOf: () => pods,
      log: silentLog(lines),
    });
  volumes = start();
});

/** Hot-plugged claims, by name: in the spec, in the status, or in both. */
function vmi(spec: readonly string[], status: readonly string[] = spec, more: object = {}): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid: 'u1' },
    spec: {
      volumes: spec.map((name) => ({ name, persistentVolumeClaim: { claimName: name, hotpluggable: true } })),
    },
    status: {
      activePods: { lp: 'me', elsewhere: 'other' },
      volumeStatus: status.map((name) => ({
        name,
        target: '',
        hotplugVolume: { attachPodUID: `of-${name}` },
      })),
      ...more,
    },
  } as unknown as Vmi;
}

describe('hot-plugged volumes of a pod', () => {
  it('AFT-036 are tried each for itself, and what keeps some back is told', async () => {
    helper.results.set('late', 'not-ready');
    helper.results.set('empty', 'missing');
    helper.results.set('gone', 'missing');
    const all = vmi(['late', 'empty', 'good', 'gone']);
    const failure = await volumes.mount(all).catch((error: unknown) => error);
    expect(helper.plugged.map(({ volume }) => volume)).toEqual(['good']);
    expect(failure).toBeInstanceOf(AggregateError);
    const { errors } = failure as AggregateError;
    // One event for all that are missing, and one more look.
    expect(errors.map((each: Error) => each.constructor)).toEqual([NotExist, WaitingForHotplugMount]);
    expect(errors[0].message).toContain('of-empty has no disk.img');
    expect(errors[0].message).toContain('of-gone has no disk.img');
  });

  it('AFT-009 AFT-036 fail each for itself, one error for all, once the others were tried', async () => {
    helper.results.set('bad', new Error('refused'));
    helper.results.set('worse', new Error('a link'));
    await expect(volumes.mount(vmi(['bad', 'worse', 'good']))).rejects.toThrow(
      new VolumeFailed(
        'failed to mount filesystem hotplug volume bad: refused; failed to mount filesystem hotplug volume worse: a link',
      ),
    );
    expect(helper.plugged.map(({ volume }) => volume)).toEqual(['good']);
  });

  it('AFT-032 are left to unmounting once they left the spec, and need no attachment pod for that', async () => {
    await volumes.mount(vmi(['data']));
    const removed = vmi([], ['data']);
    helper.calls.length = 0;
    await volumes.mount(removed);
    expect(helper.calls).toEqual([]);
    // The guest still has it.
    await volumes.unmount(removed, new Set(['data']));
    expect(helper.plugged).toHaveLength(1);
    await volumes.unmount(removed, none);
    expect(helper.calls.at(-1)).toBe('unplug data disk');
    expect(await volumes.isMounted(removed, 'data')).toBe(false);
  });

  it('AFT-032 that left the spec are mounted as long as anything of their name is', async () => {
    const removed = vmi([], ['dump']);
    for (const kind of ['directory', 'disk', 'block'] as const) {
      helper.plugged = [entry('other', kind), { ...entry('dump', kind), plugged: false }];
      expect(await volumes.isMounted(removed, 'dump')).toBe(false);
      helper.plugged = [entry('dump', kind)];
      expect(await volumes.isMounted(removed, 'dump')).toBe(true);
      // What the spec wants is a disk.
      expect(await volumes.isMounted(vmi(['dump']), 'dump')).toBe(kind === 'disk');
    }
  });

  it('AFT-032 may be mounted while the helper cannot say', async () => {
    const removed = vmi([], ['data']);
    for (const Kind of [HelperUnavailable, HelperError]) {
      helper.listError = new Kind('List', Code.Unavailable, 'restarting', undefined);
      expect(await volumes.isMounted(removed, 'data')).toBeUndefined();
    }
    helper.listError = new Error('a fault of the agent');
    await expect(volumes.isMounted(removed, 'data')).rejects.toThrow('a fault of the agent');
  });

  it('STO-023 are forgotten once nothing of them is left in the pod, also while they are wanted', async () => {
    const wanted = vmi(['there', 'gone']);
    helper.plugged = [
      { ...entry('there', 'disk'), plugged: false },
      { ...entry('gone', 'disk'), plugged: false, present: false },
      { ...entry('used', 'disk'), plugged: false, present: false },
    ];
    await volumes.unmount(wanted, new Set(['used']));
    expect(helper.calls).toEqual(['list lp', 'unplug gone disk']);
  });

  it('STO-023 that cannot be unmounted stay recorded and do not keep the others', async () => {
    await volumes.mount(vmi(['a', 'b', 'c']));
    helper.stuck.add('a');
    await expect(volumes.unmount(vmi(['c'], ['a', 'b', 'c']), none)).rejects.toThrow(
      'failed to cleanup hotplug mounts for VMI vm: volume a: a is stuck',
    );
    expect(helper.plugged.map(({ volume }) => volume)).toEqual(['a', 'c']);
  });

  it('cost a VMI without any nothing after the first look', async () => {
    const plain = vmi([]);
    await volumes.mount(plain);
    await volumes.unmount(plain, none);
    await volumes.unmount(plain, none);
    expect(helper.calls).toEqual(['list lp']);
    await volumes.mount(vmi(['data']));
    await volumes.unmount(plain, none);
    expect(helper.calls.at(-1)).toBe('unplug data disk');
  });

  it.each([[[]], [['lp', 'elsewhere']]])('are left alone while the pod is one of %j', async (present) => {
    await volumes.mount(vmi(['data']));
    local = new Set(present);
    helper.calls.length = 0;
    await volumes.mount(vmi(['data', 'more']));
    await volumes.unmount(vmi([], ['data']), none);
    expect(helper.calls).toEqual([]);
    await expect(volumes.isMounted(vmi(['data']), 'data')).rejects.toThrow(
      'Unable to determine virt-launcher UID',
    );
  });

  it('go with every pod that the node remembers, whatever is in the way', async () => {
    pods = ['lp', 'before'];
    helper.problems = ['umount2 data.img: EBUSY'];
    await volumes.unmountAll({ namespace: 'ns', name: 'vm', uid: 'u1' });
    expect(helper.calls).toEqual(['unplug all of lp', 'unplug all of before']);
    await volumes.unmountAll({ namespace: 'ns', name: 'vm', uid: '' });
    expect(helper.calls).toHaveLength(2);
  });

  it('STO-016 are none where the VMI has no UID yet', async () => {
    const unborn = vmi(['a']);
    unborn.metadata.uid = '';
    await volumes.unmount(unborn, none);
    expect(helper.calls).toEqual([]);
    await expect(volumes.mount(unborn)).rejects.toThrow('vmi without uid');
  });

  it('STO-024 all come from the given attachment pod on the target of a migration', async () => {
    await volumes.mount(vmi(['a', 'b']), 'target-attachment');
    expect(helper.calls).toEqual([
      'plug a disk of target-attachment into lp',
      'plug b disk of target-attachment into lp',
    ]);
    expect(helper.plugged).toHaveLength(2);
    await volumes.mount(vmi(['c']), '');
    expect(helper.calls.at(-1)).toBe('plug c disk of of-c into lp');
  });

  describe('in block mode', () => {
    /** As above, the volumes being block devices. */
    function block(spec: readonly string[], status: readonly string[] = spec): Vmi {
      const made = vmi(spec, status);
      for (const each of made.status.volumeStatus ?? []) {
        each.persistentVolumeClaimInfo = { volumeMode: 'Block' } as never;
      }
      return made;
    }

    it('STO-018 may be opened once all are plugged, and are denied once unplugged', async () => {
      await volumes.mount(block(['a', 'b']));
      for (const name of ['a', 'b']) helper.results.set(name, 'unchanged');
      await volumes.mount(block(['a', 'b', 'c']));
      expect(policies).toEqual(['a b', 'a b c']);
      const removed = block(['a', 'c'], ['a', 'b', 'c']);
      await volumes.unmount(removed, none);
      expect(helper.calls.at(-1)).toBe('unplug b block');
      expect(policies).toEqual(['a b', 'a b c', 'a c']);
      expect(helper.plugged.map(({ volume }) => volume)).toEqual(['a', 'c']);
      await volumes.unmount(removed, none);
      expect(policies).toHaveLength(3);
    });

    it('STO-018 are no reason for a policy where a directory is recorded that never was mounted', async () => {
      helper.plugged = [{ ...entry('dump', 'directory'), plugged: false }];
      await volumes.unmount(vmi([]), none);
      expect(helper.calls.at(-1)).toBe('unplug dump directory');
      expect(policies).toEqual([]);
    });

    it('AFT-034 may be opened again after each pass, also when they left the spec and the guest has them', async () => {
      await volumes.mount(vmi(['disk']));
      expect(policies).toEqual([]);
      const plugged = block(['a']);
      await volumes.mount(plugged);
      helper.results.set('a', 'unchanged');
      await volumes.mount(plugged);
      expect(policies).toHaveLength(2);
      const removed = block([], ['a']);
      for (const each of removed.status.volumeStatus ?? []) each.phase = 'Ready';
      await volumes.mount(removed);
      await volumes.unmount(removed, new Set(['a']));
      expect(policies).toHaveLength(3);
      // What cannot be allowed is not given to the VM.
      policyError = new Error('disk of the host');
      const failure = await volumes.mount(plugged).catch((error: unknown) => error);
      expect(failure).not.toBeInstanceOf(VolumeFailed);
      expect(failure).toHaveProperty('message', 'failed to apply the device policy: disk of the host');
    });

    it('STO-018 are denied by the next agent when one has taken the node away and did not live to deny it', async () => {
      await volumes.mount(block(['a', 'b']));
      policyError = new Error('killed');
      const removed = block(['a'], ['a', 'b']);
      await expect(volumes.unmount(removed, none)).rejects.toThrow('killed');
      volumes = start();
      await expect(volumes.unmount(removed, none)).rejects.toThrow('killed');
      expect(policies).toEqual(['a b']);
      policyError = undefined;
      await volumes.unmount(removed, none);
      expect(policies).toEqual(['a b', 'a']);
      expect(helper.plugged.map(({ volume }) => volume)).toEqual(['a']);
      await volumes.unmount(removed, none);
      expect(policies).toEqual(['a b', 'a']);
    });

    it('STO-018 of another handler are not denied while the helper has not heard of them', async () => {
      const mounted = block(['a', 'taken-over']);
      for (const each of mounted.status.volumeStatus ?? []) each.phase = 'Ready';
      helper.plugged = [{ ...entry('taken-over', 'block'), known: false }];
      helper.results.set('taken-over', 'not-ready');
      await expect(volumes.mount(mounted)).rejects.toThrow('attachment pod of-taken-over is not ready');
      // virt-controller is about to name another attachment pod.
      for (const each of mounted.status.volumeStatus ?? [])
        each.hotplugVolume = { attachPodUID: '' } as never;
      await volumes.mount(mounted);
      // Nor because another one goes.
      const removed = { ...mounted, spec: block(['taken-over']).spec };
      await volumes.unmount(removed, none);
      expect(helper.calls.at(-2)).toBe('unplug a block');
      expect(policies).toEqual([]);
      // It is plugged as it is.
      helper.results.set('taken-over', 'unchanged');
      const known = block(['taken-over'], ['taken-over', 'leaving']);
      for (const each of known.status.volumeStatus ?? []) each.phase = 'Ready';
      await volumes.mount(known);
      expect(policies).toEqual(['taken-over']);
    });

    it('AFT-034 may be opened again while their attachment pods are exchanged', async () => {
      const plugged = block(['a']);
      await volumes.mount(plugged);
      for (const each of plugged.status.volumeStatus ?? []) {
        Object.assign(each, { phase: 'Ready', hotplugVolume: { attachPodUID: '' } });
      }
      await volumes.mount(plugged);
      expect(policies).toEqual(['a', 'a']);
      helper.listError = new Error('no helper');
      await expect(volumes.mount(plugged)).rejects.toThrow('failed to apply the device policy: no helper');
    });

    it('are tried again with the policy that could not be applied', async () => {
      policyError = new Error('no program');
      await expect(volumes.mount(block(['a']))).rejects.toThrow(
        'failed to apply the device policy: no program',
      );
      policyError = undefined;
      helper.results.set('a', 'unchanged');
      await volumes.mount(block(['a']));
      expect(policies).toEqual(['a']);
    });

    it('AFT-036 that come late do not keep the others from being opened', async () => {
      helper.results.set('late', 'missing');
      await expect(volumes.mount(block(['late', 'a']))).rejects.toThrow('of-late has no device for it');
      expect(policies).toEqual(['a']);
    });

    it('STO-022 are skipped with a warning where they are utility volumes', async () => {
      const made = block([], ['u']);
      made.spec.utilityVolumes = [{ name: 'u', claimName: 'c' }];
      await volumes.mount(made);
      expect(helper.calls).toEqual([]);
      expect(lines.join('')).toContain('utility volume u is a block device: it is skipped');
    });
  });
});
