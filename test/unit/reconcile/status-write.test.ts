import { LosslessNumber } from 'lossless-json';
import { describe, expect, it } from 'vitest';
import { semanticEqual } from '../../../agent/reconcile/semantic-equal.js';
import { aDomain, aVmi } from './objects.js';
import { key, World } from './world.js';

describe('the write', () => {
  it('REC-030 a final VMI is never written', async () => {
    for (const phase of ['Succeeded', 'Failed'] as const) {
      for (const domain of [undefined, aDomain('Running'), aDomain('Shutoff', 'Crashed')]) {
        const world = new World();
        world.put(aVmi({ phase }));
        if (domain !== undefined) world.domains.set(key, domain);
        await world.pass();
        expect(world.puts).toEqual([]);
      }
    }
  });

  it('REC-031 100 idle passes write nothing', async () => {
    for (const [phase, domain] of [
      ['Running', aDomain('Running')],
      ['Scheduled', undefined],
    ] as const) {
      const world = new World();
      world.put(aVmi({ phase }));
      if (domain !== undefined) world.domains.set(key, domain);
      await world.pass();
      world.echo();
      const before = world.puts.length;
      for (let pass = 0; pass < 100; pass++) expect(await world.pass()).toBeNull();
      expect(world.puts).toHaveLength(before);
      expect(world.calls.filter((call) => call === 'launcher.SyncVirtualMachine')).toHaveLength(101);
    }
  });

  it('REC-032 a phase change appends one transition, is written, then announced', async () => {
    const order: string[] = [];
    const world = new World();
    const deps = world.deps();
    const observed = new World({
      ...deps,
      api: {
        update: async (vmi) => {
          order.push('PUT');
          return deps.api.update(vmi);
        },
      },
      events: { event: (_vmi, _type, reason) => void order.push(reason) },
    });
    world.put(aVmi({ phase: 'Scheduled' }));
    world.domains.set(key, aDomain('Running'));
    await observed.pass();
    expect(order).toEqual(['PUT', 'Started']);
    expect(world.puts[0]?.status.phaseTransitionTimestamps).toEqual([
      { phase: 'Running', phaseTransitionTimestamp: '2000-01-01T00:00:00Z' },
    ]);
  });

  it('carries the cached object, unknown fields included, and leaves the cache alone', async () => {
    const big = new LosslessNumber('9007199254740993');
    const vmi = aVmi({
      phase: 'Scheduled',
      metadata: { resourceVersion: '42', managedFields: [{ manager: 'x' }] },
      status: { fieldOfTomorrow: { value: big } },
    });
    const before = JSON.stringify(vmi);
    const world = new World();
    world.put(vmi);
    world.domains.set(key, aDomain('Running'));
    await world.pass();
    const [put] = world.puts;
    expect(put?.metadata).toEqual(vmi.metadata);
    expect(put?.status).toMatchObject({ fieldOfTomorrow: { value: big } });
    expect(JSON.stringify(vmi)).toBe(before);
  });
});

describe('a write that conflicts', () => {
  const poweredOff = aDomain('Shutoff', 'Shutdown');

  it('is made again from what the cache then holds, and never without having seen it', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled', metadata: { resourceVersion: '1' } }));
    world.domains.set(key, aDomain('Running'));
    world.stubs = { updateVMIError: 'the object has been modified' };
    expect(await world.pass()).toContain('modified');
    expect(world.events.map(({ reason }) => reason)).not.toContain('Started');

    // What another one wrote arrives; it is kept.
    world.stubs = {};
    const theirs = aVmi({
      phase: 'Scheduled',
      metadata: { resourceVersion: '2', labels: { theirs: 'yes' } },
      status: { launcherContainerImageVersion: 'theirs' },
    });
    world.put(theirs);
    expect(await world.pass()).toBeNull();
    const [first, second] = world.puts;
    expect(first?.metadata.resourceVersion).toBe('1');
    expect(second?.metadata).toEqual(theirs.metadata);
    expect(second?.status).toMatchObject({ phase: 'Running', launcherContainerImageVersion: 'theirs' });
    expect(world.events.filter(({ reason }) => reason === 'Started')).toHaveLength(1);
  });

  it('does not forget how the guest ended, although its domain is undefined by then', async () => {
    for (const [reason, phase] of [
      ['Shutdown', 'Succeeded'],
      ['Crashed', 'Failed'],
    ] as const) {
      const world = new World();
      world.put(aVmi());
      world.domains.set(key, aDomain('Shutoff', reason));
      world.stubs = { updateVMIError: 'the object has been modified' };
      expect(await world.pass()).toContain('modified');
      expect(world.calls).toContain('launcher.DeleteVirtualMachine');
      expect(world.domains.get(key)).toBeUndefined();
      // The pod is going meanwhile.
      world.stubs = { launcherUnresponsive: true };
      expect(await world.pass()).toBeNull();
      expect(world.puts.at(-1)?.status.phase).toBe(phase);
      expect(world.controller.remembered).toBeGreaterThan(0);
      world.echo();
      await world.pass();
      world.local.clear();
      await world.pass();
      expect(world.controller.remembered).toBe(0);
    }
  });

  it('a VM of the same name does not inherit how the one before it ended', async () => {
    const world = new World();
    world.put(aVmi());
    world.domains.set(key, poweredOff);
    world.stubs = { updateVMIError: 'the object has been modified' };
    await world.pass();
    world.stubs = {};
    world.put(aVmi({ phase: 'Scheduled', metadata: { uid: 'the next one' } }));
    expect(await world.pass()).toBeNull();
    expect(world.puts.at(-1)?.status.phase).toBe('Scheduled');
    expect(world.calls).toContain('launcher.SyncVirtualMachine');
    world.local.clear();
    await world.pass();
    expect(world.controller.remembered).toBe(0);
  });
});

describe('semanticEqual', () => {
  it.each([
    [{ a: null }, {}],
    [{ a: [] }, { a: null }],
    [{ a: {} }, {}],
    [{ a: { b: '' } }, {}],
    [{ completed: false }, {}],
    [{ memory: { guestCurrent: '2Gi' } }, { memory: { guestCurrent: '2097152Ki' } }],
    [{ capacity: { storage: '1G' } }, { capacity: { storage: '1000M' } }],
    [{ endTimestamp: '2000-01-01T00:00:00Z' }, { endTimestamp: '2000-01-01T01:00:00+01:00' }],
    [{ size: new LosslessNumber('9007199254740993') }, { size: new LosslessNumber('9007199254740993') }],
    [{ size: new LosslessNumber('12') }, { size: 12 }],
  ])('%j and %j are equal', (a, b) => {
    expect(semanticEqual(a, b)).toBe(true);
    expect(semanticEqual(b, a)).toBe(true);
  });

  it.each([
    [{ a: [1, 2] }, { a: [2, 1] }],
    [{ a: [{}] }, { a: [{}, {}] }],
    [{ memory: { guestCurrent: '2Gi' } }, { memory: { guestCurrent: '2G' } }],
    [{ message: '2Gi' }, { message: '2097152Ki' }],
    [{ completed: true }, {}],
    [{ phase: 'Running' }, { phase: 'Failed' }],
    [{ endTimestamp: '2000-01-01T00:00:00Z' }, { endTimestamp: '2000-01-01T00:00:01Z' }],
    [{ size: new LosslessNumber('9007199254740993') }, { size: new LosslessNumber('9007199254740992') }],
    [{ a: 1 }, { a: '1' }],
    [{ a: [1] }, { a: { 0: 1 } }],
  ])('%j and %j differ', (a, b) => {
    expect(semanticEqual(a, b)).toBe(false);
    expect(semanticEqual(b, a)).toBe(false);
  });
});
