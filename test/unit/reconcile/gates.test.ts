import { describe, expect, it } from 'vitest';
import { gate } from '../../../agent/reconcile/gates.js';
import { aDomain, aVmi, deleting, gone, uid } from './objects.js';
import { host, key, World } from './world.js';

const running = () => aDomain('Running');
const migrating = {
  migrationState: { startTimestamp: '1999-12-31T23:59:00Z', sourceNode: host, targetNode: 'node02' },
};
const decentralised = { migrationState: { targetState: { syncAddress: 'a:1', nodeAddress: 'b' } } };

describe('reading the caches', () => {
  it('a key of the wrong shape is an error, and stays one', async () => {
    const { controller } = new World();
    for (const wrong of ['testvmi', 'a/b/c', '/x', '']) {
      await expect(controller.execute(wrong)).rejects.toThrow(`unexpected key format: "${wrong}"`);
    }
  });

  it('REC-004 an own write that has not come back keeps the key untouched', async () => {
    const world = new World();
    world.put(aVmi());
    world.domains.set(key, running());
    world.expected.set(key, [1, 0]);
    expect(await world.pass()).toBeNull();
    expect(world.calls).toEqual([]);
    expect(world.requeues).toEqual([]);
  });

  it('REC-004 a write sets the expectation, a failed one takes it back and is an error', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled' }));
    world.domains.set(key, running());
    expect(await world.pass()).toBeNull();
    expect(world.expected.get(key)).toEqual([1, 0]);

    const failing = new World();
    failing.stubs = { updateVMIError: 'conflict' };
    failing.put(aVmi({ phase: 'Scheduled' }));
    failing.domains.set(key, running());
    expect(await failing.pass()).toBe('conflict');
    expect(failing.expected.get(key)).toEqual([0, 0]);
    expect(failing.events).toEqual([]);
  });

  it('REC-004 a VMI that is gone everywhere has no expectation', async () => {
    const world = new World();
    world.expected.set(key, [1, 0]);
    await world.pass();
    expect(world.expected.has(key)).toBe(false);
  });

  it('REC-005 a VMI that only the cluster-wide cache knows exists, if this node owns it', async () => {
    const world = new World();
    world.put(aVmi(), 'global');
    world.domains.set(key, running());
    await world.pass();
    expect(world.calls).toContain('launcher.SyncVirtualMachine');

    const foreign = new World();
    foreign.put(aVmi({ metadata: { labels: {} }, status: { nodeName: '' } }), 'global');
    foreign.domains.set(key, running());
    await foreign.pass();
    expect(foreign.calls).toEqual([]);
  });

  it('REC-006 a domain marked deleted is absent, its UID serves the cleanup of a VMI that is gone', async () => {
    const world = new World();
    world.stubs = { ghostUid: 'uid-of-the-record' };
    world.domains.set(key, gone(running()));
    await world.pass();
    expect(world.calls).not.toContain('launcher.ShutdownVirtualMachine');
    expect(world.calls).toContain('network.Teardown');
    expect(world.forgotten).toEqual([{ namespace: 'default', name: 'testvmi', uid }]);
  });

  it('REC-007 without a domain the ghost record knows the UID', async () => {
    const world = new World();
    world.stubs = { ghostUid: 'uid-of-the-record' };
    await world.pass();
    expect(world.calls).toContain('network.Teardown');
    expect(world.closed.at(-1)?.uid).toBe('uid-of-the-record');
    expect(world.forgotten.at(-1)?.uid).toBe('uid-of-the-record');
  });

  it('a VMI that goes without domain and record is cleaned up under the UID it had', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled', metadata: deleting }));
    await world.pass();
    world.local.clear();
    world.expected.clear();
    world.closed.length = 0;
    await world.pass();
    expect(world.closed.at(-1)?.uid).toBe(uid);
    await world.pass();
    expect(world.closed.at(-1)?.uid).toBe('');
  });
});

describe('a domain of an older VMI of the same name', () => {
  const older = () => aDomain('Running', 'Unknown', { UID: 'uid-old' });
  const world = (stubs: World['stubs']) => {
    const made = new World();
    made.stubs = stubs;
    made.put(aVmi({ phase: 'Scheduled' }));
    made.domains.set(key, older());
    return made;
  };

  it('REC-008 is asked again in a second while its launcher is not there yet', async () => {
    const made = world({ launcherInitialized: false });
    await made.pass();
    expect(made.calls).toEqual(['clients.IsUnresponsive']);
    expect(made.requeues).toEqual([{ key, seconds: 1 }]);
  });

  it('REC-008 is cleaned up under its own UID when its launcher is dead', async () => {
    const made = world({ launcherUnresponsive: true });
    await made.pass();
    expect(made.calls).not.toContain('launcher.DeleteVirtualMachine');
    expect(made.forgotten).toEqual([{ namespace: 'default', name: 'testvmi', uid: 'uid-old' }]);
    expect(made.domains.has(key)).toBe(false);
    expect(made.requeues).toEqual([{ key, seconds: 5 }]);
  });

  it('REC-008 AFT-022 is left alone and asked again every 5 s while its launcher answers', async () => {
    const made = world({});
    for (let pass = 0; pass < 12; pass++) await made.pass();
    expect(new Set(made.calls)).toEqual(new Set(['clients.IsUnresponsive']));
    expect(made.requeues).toEqual(Array(12).fill({ key, seconds: 5 }));
    made.stubs = { launcherUnresponsive: true };
    await made.pass();
    made.stubs = {};
    await made.pass();
    expect(made.calls).toContain('launcher.SyncVirtualMachine');
  });
});

describe('reasons not to act', () => {
  it.each([
    ['exists', aVmi()],
    ['is gone', undefined],
    ['is final', aVmi({ phase: 'Succeeded' })],
    ['migrates', aVmi({ status: migrating })],
    ['is owned elsewhere', aVmi({ metadata: { labels: {} }, status: { nodeName: 'node02' } })],
  ])('REC-009 a domain that has migrated away is deleted and cleaned up when the VMI %s', async (_, vmi) => {
    const world = new World();
    if (vmi !== undefined) world.put(vmi);
    world.domains.set(key, aDomain('Shutoff', 'Migrated'));
    expect(await world.pass()).toBeNull();
    expect(world.calls).toContain('launcher.DeleteVirtualMachine');
    expect(world.domains.has(key)).toBe(false);
    expect(world.puts).toEqual([]);
  });

  it('REC-010 a migration in progress is left to its controllers, a deletion is not', async () => {
    const world = new World();
    world.put(aVmi({ status: migrating }));
    world.domains.set(key, running());
    await world.pass();
    expect(world.calls).toEqual([]);
    world.put(aVmi({ status: migrating, metadata: deleting }));
    await world.pass();
    expect(world.calls).toContain('launcher.ShutdownVirtualMachine');
  });

  it('REC-011 a VMI that failed while migrating is cleaned up at once', async () => {
    const world = new World();
    world.put(aVmi({ phase: 'Failed', status: migrating }));
    world.domains.set(key, running());
    await world.pass();
    expect(world.calls).toContain('containerDisk.Unmount');
    expect(world.calls).not.toContain('launcher.DeleteVirtualMachine');
    expect(world.forgotten).toHaveLength(1);
  });

  it('is one verdict for each combination of owner', () => {
    const verdict = (label: string, nodeName: string) =>
      gate({
        host,
        vmi: aVmi({ metadata: { labels: { 'kubevirt.io/nodeName': label } }, status: { nodeName } }),
        domain: running(),
      });
    expect(verdict(host, host)).toBe('sync');
    // The API server would let neither node write it but the one of the status.
    expect(verdict(host, 'node02')).toBe('ignore-not-owned');
    expect(verdict(host, '')).toBe('sync');
    expect(verdict('node02', host)).toBe('sync');
    expect(verdict('', '')).toBe('ignore-not-owned');
    expect(verdict('node02', '')).toBe('ignore-not-owned');
    expect(verdict('node02', 'node02')).toBe('owned-elsewhere');
  });
});

describe('what is left of a VM that moved away', () => {
  const elsewhere = (status: object = {}, labels: object = {}) =>
    aVmi({ metadata: { labels }, status: { nodeName: 'node02', ...status } });
  const moved = {
    migrationState: {
      startTimestamp: '1999-12-31T23:00:00Z',
      endTimestamp: '1999-12-31T23:01:00Z',
      completed: true,
      sourceNode: host,
      targetNode: 'node02',
    },
  };

  it('AFT-061 is cleaned up once', async () => {
    const world = new World();
    world.put(elsewhere(moved));
    world.stubs = { holds: true };
    await world.pass();
    expect(world.calls).toContain('containerDisk.Unmount');
    expect(world.forgotten).toEqual([{ namespace: 'default', name: 'testvmi', uid }]);
    expect(world.calls.filter((call) => call.startsWith('launcher.'))).toEqual([]);
    world.stubs = { holds: false };
    const before = world.calls.length;
    await world.pass();
    expect(world.calls).toHaveLength(before);
  });

  it('AFT-061 a domain is destroyed after a migration that ended well', async () => {
    const world = new World();
    world.put(elsewhere(moved));
    world.domains.set(key, aDomain('Paused', 'Unknown'));
    await world.pass();
    expect(world.calls.slice(0, 4)).toEqual([
      'clients.GetVerified',
      'launcher.KillVirtualMachine',
      'launcher.DeleteVirtualMachine',
      'clients.Close',
    ]);
    expect(world.domains.has(key)).toBe(false);
    expect(world.puts).toEqual([]);
    expect(world.events).toEqual([]);
  });

  it('AFT-061 a launcher that is dead does not keep the rest', async () => {
    const world = new World();
    world.put(elsewhere(moved));
    world.domains.set(key, aDomain('Paused', 'Unknown'));
    world.stubs = { launcherClientError: 'no socket' };
    expect(await world.pass()).toBeNull();
    expect(world.forgotten).toHaveLength(1);
  });

  it('AFT-061 a domain is not destroyed unless the migration is known to have ended well', async () => {
    for (const state of [{}, { migrationState: { ...moved.migrationState, failed: true } }]) {
      const world = new World();
      world.put(elsewhere(state));
      world.domains.set(key, running());
      await world.pass();
      expect(world.calls.filter((call) => call.startsWith('launcher.'))).toEqual([]);
      expect(world.forgotten).toHaveLength(1);
    }
  });

  it.each([
    ['runs from here', { migrationState: { sourceNode: host, targetNode: 'node02' } }, {}],
    ['runs to here', { migrationState: { sourceNode: 'node02', targetNode: host } }, {}],
    [
      'is acknowledged but not completed',
      { migrationState: { ...moved.migrationState, completed: false } },
      {},
    ],
    [
      'was finished here but its controller is not done',
      moved,
      { 'kubevirt.io/migrationTargetNodeName': host },
    ],
  ])('AFT-061 nothing is touched while a migration %s', async (_, status, labels) => {
    const world = new World();
    world.put(elsewhere(status, labels));
    world.stubs = { holds: true };
    world.domains.set(key, aDomain('Running'));
    await world.pass();
    expect(world.calls).toEqual([]);
  });

  it('AFT-062 a decentralised source is left alone until it is final or deleted', async () => {
    const world = new World();
    world.put(aVmi({ status: decentralised }));
    world.domains.set(key, running());
    await world.pass();
    expect(world.calls).toEqual([]);

    world.put(aVmi({ phase: 'Succeeded', status: decentralised }));
    world.domains.delete(key);
    await world.pass();
    expect(world.calls).toContain('containerDisk.Unmount');
    expect(world.calls).toContain('proxy.StopSourceListener');
    expect(world.forgotten).toHaveLength(1);
  });
});
