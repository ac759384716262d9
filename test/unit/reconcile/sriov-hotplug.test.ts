import { beforeEach, describe, expect, it } from 'vitest';
import { SriovHotplug, sriovHotplugPending } from '../../../agent/reconcile/update/sriov-hotplug.js';
import { vmiWithNetworks } from '../../vectors/objects.js';

const minute = 60_000;
const hour = 60 * minute;
let now: number;
let hotplug: SriovHotplug;

beforeEach(() => {
  now = 1_000_000;
  hotplug = new SriovHotplug({ now: () => now });
});

/** Goes from one allowed time to the next; the times of the runs since the first one. */
function runsOf(uid: string, forMs: number): number[] {
  const start = now;
  const runs: number[] = [];
  for (;;) {
    const { run, nextInMs } = hotplug.turn(uid);
    if (run) runs.push(now - start);
    if (nextInMs === undefined || now + nextInMs - start > forMs) return runs;
    now += nextInMs;
  }
}

describe('turns to plug SR-IOV devices', () => {
  it('NET-029 come after 3 s, each pause 1.8 times the last one, at most 10 min', () => {
    const runs = runsOf('a', hour);
    const pauses = runs.slice(1).map((at, i) => at - (runs[i] ?? 0));
    const wanted = pauses.map((_, i) => Math.min(3000 * 1.8 ** i, 10 * minute));
    // The pause is over in the millisecond after it.
    expect(pauses.map((pause, i) => pause - (wanted[i] ?? 0)).every((late) => late > 0 && late <= 2)).toBe(
      true,
    );
    expect(pauses[0]).toBe(3001);
    expect(pauses.at(-1)).toBe(10 * minute + 1);
  });

  it('NET-029 end after 5 h', () => {
    const runs = runsOf('a', 10 * hour);
    expect(runs.at(-1)).toBeLessThanOrEqual(5 * hour);
    expect(runs.at(-1)).toBeGreaterThan(5 * hour - 10 * minute - 2);
    expect(hotplug.turn('a')).toEqual({ run: false, nextInMs: undefined });
  });

  it('NET-029 do not come early, however often they are asked for, and the time left is told', () => {
    expect(hotplug.turn('a')).toEqual({ run: true, nextInMs: 3001 });
    now += 1000;
    expect(hotplug.turn('a')).toEqual({ run: false, nextInMs: 2001 });
    now += 2000;
    expect(hotplug.turn('a')).toEqual({ run: false, nextInMs: 1 });
    now += 1;
    expect(hotplug.turn('a')).toEqual({ run: true, nextInMs: 5401 });
  });

  it('NET-029 begin anew once the VMI was forgotten, and are counted for each VMI alone', () => {
    expect(runsOf('a', 10 * hour).length).toBeGreaterThan(30);
    expect(hotplug.turn('b')).toEqual({ run: true, nextInMs: 3001 });
    hotplug.forget('a');
    expect(hotplug.turn('a')).toEqual({ run: true, nextInMs: 3001 });
    hotplug.forget('a');
    hotplug.forget('b');
    expect(hotplug.size).toBe(0);
  });
});

describe('SR-IOV devices that are yet to be plugged', () => {
  const vf = (name: string) => ({ name, sriov: {} });
  const pending = (...statuses: { name: string; infoSource: string }[]) =>
    sriovHotplugPending(vmiWithNetworks([], [vf('a'), vf('b'), { name: 'c', bridge: {} }], statuses));

  it.each([
    ['none in the pod', [], false],
    ['one in the pod only', [{ name: 'a', infoSource: 'multus-status' }], true],
    ['one in the pod and the domain', [{ name: 'a', infoSource: 'domain, multus-status' }], false],
    [
      'one of two in the domain',
      [
        { name: 'a', infoSource: 'domain, multus-status' },
        { name: 'b', infoSource: 'multus-status, guest-agent' },
      ],
      true,
    ],
    ['one in the domain only', [{ name: 'a', infoSource: 'domain' }], false],
    ['another binding in the pod only', [{ name: 'c', infoSource: 'multus-status' }], false],
  ])('NET-029 are counted by the status: %s', (_what, statuses, wanted) => {
    expect(pending(...statuses)).toBe(wanted);
  });
});
