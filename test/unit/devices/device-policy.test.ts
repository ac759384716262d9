import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { HelperDevicePolicy } from '../../../agent/devices/device-policy.js';
import { pluggedBlockVolumes } from '../../../agent/storage/hotplug-volumes.js';
import { vmiOf } from '../../vectors/objects.js';
import { FakeTimers, settle } from '../kube/fake-timers.js';
import { onePod, podUid } from '../network/fakes.js';
import { silentLog } from '../status/fakes.js';

const vmiNamed = (name: string, more: object = {}) =>
  vmiOf({
    metadata: { name, namespace: 'ns', uid: `uid-${name}` },
    spec: {
      volumes: [
        { name: 'root', dataVolume: { name: 'root' } },
        { name: 'hot', persistentVolumeClaim: { claimName: 'hot', hotpluggable: true } },
        { name: 'cloud', cloudInitNoCloud: {} },
      ],
    },
    status: { phase: 'Running', ...more },
  });

function setUp() {
  const vmis = new Map<string, Vmi>();
  const calls: unknown[] = [];
  const lines: string[] = [];
  const timers = new FakeTimers();
  const state = { fail: '', changed: false };
  const policy = new HelperDevicePolicy({
    helper: {
      setDevicePolicy: async (request) => {
        calls.push(request);
        if (request.pod?.vmiUid === state.fail) throw new Error('no helper');
        return state.changed;
      },
    },
    pods: onePod,
    vmis,
    node: 'node01',
    timers,
    log: silentLog(lines),
  });
  const vmi = (name: string, more: object = {}) => {
    const made = vmiNamed(name, more);
    vmis.set(`ns/${name}`, made);
    return made;
  };
  return { policy, vmis, vmi, calls, lines, timers, state };
}

const request = (name: string) => ({ pod: { podUid, vmiUid: `uid-${name}` }, blockVolumes: ['root'] });

describe('the device policy', () => {
  it('names the pod and the volumes that may be block devices', async () => {
    const { policy, vmi, calls } = setUp();
    await policy.apply(vmi('a'));
    expect(calls).toEqual([request('a')]);
  });

  it('AFT-034 is compared every 30 s, and only where it was applied', async () => {
    const { policy, vmi, calls, timers, lines, state } = setUp();
    const stop = new AbortController();
    vmi('b');
    await policy.apply(vmi('a'));
    const running = policy.run(stop.signal);
    for (const round of [1, 2]) {
      timers.advance(29_999);
      await settle();
      expect(calls).toHaveLength(round);
      timers.advance(1);
      await settle();
      expect(calls).toHaveLength(round + 1);
    }
    expect(lines).toEqual([]);
    state.changed = true;
    timers.advance(30_000);
    await settle();
    expect(lines.join()).toContain('another policy was in place');
    stop.abort(new Error('stop'));
    await running;
    expect(calls).toEqual(Array.from({ length: 4 }, () => request('a')));
  });

  it('is left alone once the VMI is final, gone or another one', async () => {
    const { policy, vmi, vmis, calls } = setUp();
    for (const name of ['a', 'b', 'c', 'd']) await policy.apply(vmi(name));
    calls.length = 0;
    vmi('a', { phase: 'Failed' });
    vmis.delete('ns/b');
    vmis.set('ns/c', vmiNamed('other'));
    await policy.recheck();
    expect(calls).toEqual([request('d')]);
    vmi('a');
    await policy.recheck();
    expect(calls).toEqual([request('d'), request('d')]);
  });

  it('that could not be compared is no reason to leave the others alone', async () => {
    const { policy, vmi, calls, lines, state } = setUp();
    await policy.apply(vmi('a'));
    await policy.apply(vmi('b'));
    calls.length = 0;
    state.fail = 'uid-a';
    await policy.recheck();
    expect(calls).toEqual([request('a'), request('b')]);
    expect(lines.join()).toContain('trying again in 30 s');
    await expect(policy.apply(vmi('a'))).rejects.toThrow('no helper');
  });
});

describe('a plugged block volume', () => {
  const status = (more: object) => ({
    volumeStatus: [
      {
        name: 'hot',
        hotplugVolume: { attachPodName: 'hp' },
        persistentVolumeClaimInfo: { volumeMode: 'Block' },
        phase: 'Ready',
        ...more,
      },
    ],
  });

  it.each([
    ['in the launcher', {}, true],
    ['just put there', { phase: 'MountedToPod' }, true],
    ['not there yet', { phase: 'AttachedToNode' }, false],
    ['gone', { phase: 'UnMountedFromPod' }, false],
    ['with a file system', { persistentVolumeClaimInfo: { volumeMode: 'Filesystem' } }, false],
    ['of the start', { hotplugVolume: null }, false],
  ])('%s', (_name, more, expected) => {
    expect(pluggedBlockVolumes(vmiNamed('a', status(more)))).toEqual(expected ? ['hot'] : []);
  });
});
