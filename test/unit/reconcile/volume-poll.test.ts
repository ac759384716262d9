import { describe, expect, it } from 'vitest';
import { aDomain, aVmi, gone } from './objects.js';
import { key, World } from './world.js';

interface Plan {
  readonly phase?: 'Scheduled' | 'Running';
  readonly attachmentPod?: string;
  readonly volumePhase?: string;
  readonly annotation?: string;
  readonly volumes?: readonly string[];
}

function waitingVmi({
  phase = 'Running',
  attachmentPod = 'p1',
  volumePhase = 'AttachedToNode',
  annotation = '',
  volumes = ['hot'],
}: Plan = {}) {
  return aVmi({
    phase,
    metadata: { annotations: { annotation } },
    spec: {
      volumes: volumes.map((name) => ({
        name,
        persistentVolumeClaim: { claimName: name, hotpluggable: true },
      })),
    },
    status: {
      volumeStatus: [
        { name: 'hot', target: '', phase: volumePhase, hotplugVolume: { attachPodUID: attachmentPod } },
      ],
    },
  });
}

/** A VM whose volume never gets on. */
function waitingWorld(vmi = waitingVmi()) {
  const world = new World();
  world.stubs = { hotplugMountError: 'ErrWaitingForHotplugMount' };
  world.put(vmi);
  if (vmi.status.phase === 'Running') world.domains.set(key, aDomain('Running'));
  return world;
}

/** A pass; after how many seconds the key comes back, for whichever reason. */
async function look(world: World): Promise<number> {
  world.expected.clear();
  const before = world.requeues.length;
  expect(await world.pass()).toBeNull();
  return Math.min(...world.requeues.slice(before).map(({ seconds }) => seconds));
}

/** The pauses when nothing but the queue wakes the key. */
async function pauses(world: World, looks: number): Promise<number[]> {
  const seconds: number[] = [];
  for (let i = 0; i < looks; i++) {
    const pause = await look(world);
    seconds.push(pause);
    world.now += pause * 1000;
  }
  return seconds;
}

describe('volumes that are on their way', () => {
  it.each(['Scheduled', 'Running'] as const)(
    'AFT-036 REC-037 of a %s VMI are looked at after 1 s, then twice as late each time up to 10 s',
    async (phase) => {
      expect(await pauses(waitingWorld(waitingVmi({ phase })), 7)).toEqual([1, 2, 4, 8, 10, 10, 10]);
    },
  );

  it('AFT-036 also when they are in the pod and the guest has not taken them', async () => {
    const world = waitingWorld();
    world.stubs = {};
    expect(await pauses(world, 5)).toEqual([1, 2, 4, 8, 10]);
  });

  it.each([
    ['another attachment pod', (world: World) => world.put(waitingVmi({ attachmentPod: 'p2' }))],
    ['another phase of a volume', (world: World) => world.put(waitingVmi({ volumePhase: 'Bound' }))],
    ['another volume in the spec', (world: World) => world.put(waitingVmi({ volumes: ['hot', 'new'] }))],
    ['an event of the launcher', (world: World) => world.domains.set(key, aDomain('Running'))],
  ])('AFT-036 are looked at every second again after %s', async (_what, change) => {
    const world = waitingWorld();
    expect(await pauses(world, 5)).toEqual([1, 2, 4, 8, 10]);
    change(world);
    expect(await pauses(world, 3)).toEqual([1, 2, 4]);
  });

  it('AFT-036 keep their time when something else wakes the key', async () => {
    const world = waitingWorld();
    expect(await pauses(world, 2)).toEqual([1, 2]);
    expect(await look(world)).toBe(4);
    world.now += 1500;
    world.put(waitingVmi({ annotation: 'changed' }));
    expect(await look(world)).toBe(2.5);
    expect(await look(world)).toBe(2.5);
    world.now += 2500;
    expect(await look(world)).toBe(8);
  });

  it('AFT-036 AFT-070 of a VMI that is gone are forgotten', async () => {
    const world = waitingWorld();
    await pauses(world, 2);
    world.local.delete(key);
    world.domains.set(key, gone(aDomain('Running')));
    world.expected.clear();
    expect(await world.pass()).toBeNull();
    expect(world.controller.remembered).toBe(0);
  });
});
