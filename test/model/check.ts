/** Plays a history on a node and looks at what came of it. */
import { expect } from 'vitest';
import { finalPhases } from './expected.js';
import { type History, World } from './history.js';

/** Longer than any start, stop, back-off and resync. Seconds. */
const settleSeconds = 420;
const idleSeconds = 660;
const resyncSeconds = 300;

export async function check(steps: History): Promise<void> {
  const world = new World();
  try {
    await world.begin();
    await world.play(steps);
    await world.heal();
    await world.time.pass(settleSeconds);
    expectDemandedPhases(world);
    expectNothingForbidden(world);
    expectBoundedCost(world, steps.length);
    await expectQuiet(world);
    await deleteAll(world);
    expectNothingForbidden(world);
    expectNothingLeft(world);
  } finally {
    world.end();
  }
}

function expectDemandedPhases({ api, cluster }: World): void {
  for (const vm of cluster.vms) {
    const { key, uid, launcher } = vm;
    const phases = finalPhases(vm);
    const vmi = api.get(key);
    const phase = vmi?.metadata.uid === uid ? vmi.status.phase : undefined;
    if (phases.length === 0) expect(phase, `${key} ${uid} was deleted`).toBeUndefined();
    else expect(phases, `${key} ${uid}: ${launcher.history.ends.join()}`).toContain(phase);
    if (phase === 'Running') expect(launcher.guestAlive, `${key} ${uid} runs`).toBe(true);
  }
}

/** No write that nobody asked for, no VM stopped that nobody wanted stopped. */
function expectNothingForbidden({ api, cluster }: World): void {
  const violations = [...api.violations, ...cluster.vms.flatMap(({ launcher }) => launcher.violations)];
  expect(violations.join('; ')).toBe('');
}

function expectBoundedCost({ api, cluster }: World, steps: number): void {
  expect(api.puts, 'writes').toBeLessThanOrEqual(20 + 12 * steps + 6 * cluster.vms.length);
  expect(api.eventWrites, 'events').toBeLessThanOrEqual(20 + 8 * steps);
}

/** Without anything happening there is one look at each launcher in a resync, and no write at all. */
async function expectQuiet(world: World): Promise<void> {
  const { api, cluster, time } = world;
  const before = { puts: api.puts, events: api.eventWrites, calls: callsOf(world) };
  await time.pass(idleSeconds);
  expect(api.puts - before.puts, 'writes while idle').toBe(0);
  expect(api.eventWrites - before.events, 'events while idle').toBe(0);
  const looks = (idleSeconds / resyncSeconds + 1) * cluster.vms.length;
  expect(callsOf(world) - before.calls, 'calls while idle').toBeLessThanOrEqual(3 * looks);
}

async function deleteAll({ cluster, time }: World): Promise<void> {
  for (const vm of cluster.vms) if (cluster.exists(vm)) cluster.delete(vm);
  await time.pass(settleSeconds);
}

function expectNothingLeft(world: World): void {
  const { api, agent, host } = world;
  expect(api.all()).toEqual([]);
  expect(world.recordFiles(), 'ghost records').toEqual([]);
  expect([...host.mounts], 'mounts').toEqual([]);
  expect([...host.networks], 'networks').toEqual([]);
  const remains = Object.entries(agent.remains()).filter(([, count]) => count !== 0);
  expect(Object.fromEntries(remains), 'in memory').toEqual({});
}

function callsOf({ cluster }: World): number {
  return cluster.vms.flatMap(({ launcher }) => [...launcher.calls.values()]).reduce((a, b) => a + b, 0);
}
