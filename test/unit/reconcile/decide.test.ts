import { describe, expect, it } from 'vitest';
import { decide } from '../../../agent/reconcile/decide.js';
import { aDomain, aVmi, deleting } from './objects.js';
import { key, World } from './world.js';

const now = Date.parse('2000-01-01T00:00:00Z');

describe('the branch', () => {
  const marked = { GracePeriod: { DeletionGracePeriodSeconds: 30, MarkedForGracefulShutdown: true } };
  const branch = (vmi: ReturnType<typeof aVmi> | undefined, domain: ReturnType<typeof aDomain> | undefined) =>
    decide({ vmi, domain, phase: vmi?.status.phase, now }).branch;

  it('REC-014 shutdown comes before destroy, delete and update', () => {
    const lost = aDomain('Paused', 'PostcopyFailed');
    expect(branch(undefined, lost)).toBe('shutdown');
    expect(branch(aVmi({ metadata: deleting }), lost)).toBe('shutdown');
    expect(branch(aVmi({ phase: 'Failed', metadata: deleting }), aDomain('Running'))).toBe('shutdown');
    expect(branch(aVmi(), aDomain('Running', 'Unknown', marked))).toBe('shutdown');
    expect(branch(aVmi({ phase: 'Scheduled' }), aDomain('Running', 'Unknown', marked))).toBe('update');
  });

  it('REC-014 destroy comes before delete and update, delete before update', () => {
    expect(branch(aVmi(), aDomain('Paused', 'PostcopyFailed'))).toBe('destroy');
    expect(branch(aVmi({ phase: 'Failed' }), aDomain('Paused', 'PostcopyFailed'))).toBe('destroy');
    expect(branch(aVmi({ phase: 'Succeeded' }), aDomain('Running'))).toBe('delete');
    expect(branch(aVmi(), aDomain('Shutoff', 'Shutdown'))).toBe('delete');
    expect(branch(aVmi(), aDomain('Shutoff', 'Unknown', marked))).toBe('delete');
    expect(branch(undefined, undefined)).toBe('delete');
    expect(branch(aVmi(), aDomain('Running'))).toBe('update');
  });

  it('REC-015 a phase to be changed is written first, without an update', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled' }));
    world.domains.set(key, aDomain('Running'));
    await world.pass();
    expect(world.synced).toEqual([]);
    expect(world.puts.map(({ status }) => status.phase)).toEqual(['Running']);
    world.echo();
    await world.pass();
    expect(world.synced).toHaveLength(1);
  });
});
