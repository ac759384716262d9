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
