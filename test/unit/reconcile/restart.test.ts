import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { slowStartMs } from '../../../agent/reconcile/decide.js';
import { calculatePhase } from '../../../agent/reconcile/phase.js';
import { ConnectHeldBack, GhostRecordConflict } from '../../../agent/reconcile/ports.js';
import { rfc3339 } from '../../../agent/reconcile/time.js';
import { aDomain, aVmi, deleting, gone, uid } from './objects.js';
import { key, type Stubs, World } from './world.js';

const destructive = [
  'launcher.ShutdownVirtualMachine',
  'launcher.KillVirtualMachine',
  'launcher.DeleteVirtualMachine',
  'containerDisk.Unmount',
  'hotplug.UnmountAll',
  'network.Teardown',
];
function expectNothingDestroyed(world: World): void {
  for (const call of destructive) expect(world.calls).not.toContain(call);
}

describe('a Running VMI without cached domain', () => {
  it('AFT-014 AFT-017 its launcher is asked before anything is sent', async () => {
    const world = new World();
    world.put(aVmi());
    world.stubs = { launcherDomain: aDomain('Running') };
    expect(await world.pass()).toBeNull();
    const learned = world.calls.indexOf('launcher.GetDomain');
    const synced = world.calls.indexOf('launcher.SyncVirtualMachine');
    expect(learned).toBeGreaterThan(-1);
    expect(synced).toBeGreaterThan(learned);
    expect(world.events).toEqual([]);
    expect(world.domains.get(key)?.Status.Status).toBe('Running');
    expect(world.puts.map(({ status }) => status.phase)).toEqual(['Running']);
    expectNothingDestroyed(world);
  });

  it('AFT-014 the launcher is waited for while it is not there', async () => {
    const world = new World();
    world.put(aVmi());
    world.stubs = { launcherInitialized: false };
    for (let second = 0; second < 180; second++) expect(await world.pass()).toBeNull();
    expect(new Set(world.calls)).toEqual(new Set(['clients.IsUnresponsive']));
    expect(new Set(world.requeues.map(({ seconds }) => seconds))).toEqual(new Set([1]));
    expect(world.puts).toEqual([]);
  });

  it('AFT-014 a deleted VMI is shut down, not undefined, after a restart', async () => {
    const world = new World();
    world.put(aVmi({ metadata: deleting }));
    world.stubs = { launcherDomain: aDomain('Running') };
    await world.pass();
    expect(world.calls).toContain('launcher.ShutdownVirtualMachine');
    expect(world.calls).not.toContain('launcher.DeleteVirtualMachine');
  });

  it('AFT-014 a migration that the domain shows is left to its controllers', async () => {
    const world = new World();
    world.put(aVmi());
    world.stubs = {
      launcherDomain: aDomain('Running', 'Unknown', {
        Migration: { StartTimestamp: '1999-12-31T23:59:00Z' },
      }),
    };
    await world.pass();
    expect(world.calls).toEqual(['clients.IsUnresponsive', 'clients.Get', 'launcher.GetDomain']);
  });

  it('AFT-014 an unreachable launcher is an error and changes nothing', async () => {
    for (const stubs of [{ launcherClientError: 'timeout' }, { getDomainError: 'timeout' }]) {
      const world = new World();
      world.put(aVmi());
      world.stubs = stubs;
      expect(await world.pass()).toContain('timeout');
      expect(world.puts).toEqual([]);
      expectNothingDestroyed(world);
      expect(world.events.map(({ reason }) => reason)).toEqual(['SyncFailed']);
    }
  });

  it('AFT-015 a dead launcher fails the VMI, or sends a migration target back to waiting', async () => {
    const world = new World();
    world.put(aVmi());
    world.domains.set(key, gone(aDomain('Running')));
    world.stubs = { launcherUnresponsive: true };
    await world.pass();
    expect(world.puts[0]?.status.phase).toBe('Failed');
    expect(world.events).toEqual([
      { type: 'Warning', reason: 'Stopped', message: 'The VirtualMachineInstance crashed.' },
    ]);

    const target = aVmi({ metadata: { annotations: { 'kubevirt.io/create-migration-target': 'true' } } });
    expect(calculatePhase(target, undefined, { initialized: true, unresponsive: true }).phase).toBe(
      'WaitingForSync',
    );
  });

  it('AFT-015 a probe that fails is an error and changes nothing', async () => {
    const world = new World();
    world.put(aVmi());
    world.stubs = { launcherProbeError: 'boom' };
    expect(await world.pass()).toBe('boom');
    expect(world.puts).toEqual([]);
    expect(world.calls).toEqual(['clients.IsUnresponsive']);
  });
});

describe('a domain whose launcher does not answer', () => {
  it('REC-013 AFT-025 nothing happens until it does, then deletion is acted on at once', async () => {
    const world = new World();
    world.put(aVmi({ metadata: deleting }));
    world.domains.set(key, aDomain('Unknown'));
    expect(await world.pass()).toBeNull();
    expect(world.calls).toEqual([]);
    expect(world.events).toEqual([]);
    expect(world.requeues).toEqual([]);
    world.domains.set(key, aDomain('Running'));
    await world.pass();
    expect(world.calls).toContain('launcher.ShutdownVirtualMachine');
  });
});

describe('a domain that is off while it starts', () => {
  const now = Date.parse('2000-01-01T00:00:00Z');
  const scheduled = (since: number, metadata: object = {}) =>
    aVmi({
      phase: 'Scheduled',
      metadata,
      status: {
        phaseTransitionTimestamps: [{ phase: 'Scheduled', phaseTransitionTimestamp: rfc3339(since) }],
      },
    });
  const pass = async (vmi = scheduled(now), domain = aDomain('Shutoff', 'Unknown')) => {
    const world = new World();
    world.put(vmi);
    world.domains.set(key, domain);
    await world.pass();
    return world;
  };

  it.each(['', 'Unknown'])(
    'AFT-018 with reason "%s" is not deleted, and is synchronised again',
    async (reason) => {
      for (const age of [0, 90_000, slowStartMs]) {
        const world = await pass(scheduled(now - age), aDomain('Shutoff', reason));
        expectNothingDestroyed(world);
        expect(world.calls).toContain('launcher.SyncVirtualMachine');
        expect(world.requeues).toEqual([{ key, seconds: 5 }]);
        expect(world.forgotten).toEqual([]);
        expect(world.closed).toEqual([]);
      }
    },
  );

  it('AFT-018 the time counts from creation when the transition is not recorded', async () => {
    const vmi = aVmi({ phase: 'Scheduled', metadata: { creationTimestamp: rfc3339(now - 60_000) } });
    expectNothingDestroyed(await pass(vmi));
  });

  it('AFT-019 is deleted at the end of the window', async () => {
    const world = await pass(scheduled(now - slowStartMs - 1000));
    expect(world.calls).toContain('launcher.DeleteVirtualMachine');
  });

  it('AFT-019 is deleted at once for a definite reason, in another phase, or when the VMI is deleted', async () => {
    const worlds = [
      ...(await Promise.all(
        ['Failed', 'Crashed', 'Shutdown', 'Destroyed'].map((reason) =>
          pass(scheduled(now), aDomain('Shutoff', reason)),
        ),
      )),
      await pass(aVmi({ phase: 'Running', metadata: { creationTimestamp: rfc3339(now) } })),
      await pass(aVmi({ phase: 'Scheduling', metadata: { creationTimestamp: rfc3339(now) } })),
      await pass(scheduled(now, deleting)),
    ];
    for (const world of worlds) {
      expect(world.calls).toContain('launcher.DeleteVirtualMachine');
      expect(world.requeues).toEqual([]);
    }
  });
});

describe('a domain that is off and was not started, by an event that the launcher could not send before', () => {
  const late = (vmi: Vmi, stubs: Stubs = { launcherDomain: aDomain('Running') }, reason = 'Unknown') => {
    const world = new World();
    world.put(vmi);
    world.domains.set(key, aDomain('Shutoff', reason));
    world.stubs = stubs;
    return world;
  };

  it('REC-047 is not deleted if it runs: its launcher is asked first', async () => {
    for (const reason of ['', 'Unknown', 'Failed']) {
      const world = late(aVmi(), undefined, reason);
      expect(await world.pass()).toBeNull();
      expectNothingDestroyed(world);
      expect(world.domains.get(key)?.Status.Status).toBe('Running');
      expect(world.puts.map(({ status }) => status.phase)).toEqual(['Running']);
    }
  });

  it('REC-047 a deleted VMI is shut down, not undefined', async () => {
    const world = late(aVmi({ metadata: deleting }));
    await world.pass();
    expect(world.calls).toContain('launcher.ShutdownVirtualMachine');
    expect(world.calls).not.toContain('launcher.DeleteVirtualMachine');
  });

  it('REC-047 a launcher that cannot be asked is an error and changes nothing', async () => {
    const world = late(aVmi(), { getDomainError: 'timeout' });
    expect(await world.pass()).toBe('timeout');
    expectNothingDestroyed(world);
    expect(world.puts).toEqual([]);
  });

  it('REC-047 it is deleted if the launcher says so too, has no domain, or is dead', async () => {
    for (const stubs of [
      { launcherDomain: aDomain('Shutoff', 'Unknown') },
      { launcherDomain: aDomain('Shutoff', 'Crashed') },
      {},
      { launcherUnresponsive: true },
    ]) {
      const world = late(aVmi(), stubs);
      expect(await world.pass()).toBeNull();
      expect(world.calls).toContain('launcher.DeleteVirtualMachine');
      expect(world.forgotten).toHaveLength(1);
    }
  });
});

describe('a domain that is said to start up', () => {
  const starting = (vmi = aVmi({ phase: 'Scheduled' })) => {
    const world = new World();
    world.put(vmi);
    world.domains.set(key, aDomain('Paused', 'StartingUp'));
    return world;
  };
  const passAfter = async (world: World, ms: number) => {
    world.now += ms;
    expect(await world.pass()).toBeNull();
  };

  it('REC-010 its launcher is asked after 5 s, because a start that failed is no event', async () => {
    const world = starting();
    world.stubs = { launcherDomain: aDomain('Shutoff', 'Failed') };
    await passAfter(world, 0);
    await passAfter(world, 4_000);
    expect(world.calls).toEqual([]);
    expect(world.requeues).toEqual([5, 1].map((seconds) => ({ key, seconds })));
    await passAfter(world, 1_000);
    expectNothingDestroyed(world);
    const told = world.calls.indexOf('launcher.GetDomain');
    expect(told).toBeGreaterThan(-1);
    expect(world.calls.indexOf('launcher.SyncVirtualMachine')).toBeGreaterThan(told);
  });

  it('REC-010 a guest that started and ended meanwhile is deleted', async () => {
    const world = starting();
    world.stubs = { launcherDomain: aDomain('Shutoff', 'Crashed') };
    await passAfter(world, 0);
    await passAfter(world, 5_000);
    expect(world.calls).toContain('launcher.DeleteVirtualMachine');
    expect(world.puts.at(-1)?.status.phase).toBe('Failed');
    expect(world.synced).toEqual([]);
  });

  it('REC-010 nothing is done while the launcher says so again, or an event says more', async () => {
    const world = starting();
    world.stubs = { launcherDomain: aDomain('Paused', 'StartingUp') };
    await passAfter(world, 0);
    await passAfter(world, 5_000);
    expect(world.calls).toEqual(['clients.IsUnresponsive', 'clients.Get', 'launcher.GetDomain']);
    expect(world.requeues).toEqual([5, 5].map((seconds) => ({ key, seconds })));

    world.domains.set(key, aDomain('Running'));
    world.stubs = {};
    await world.pass();
    expect(world.puts.map(({ status }) => status.phase)).toEqual(['Running']);
    expectNothingDestroyed(world);
  });

  it('REC-010 a launcher without the domain is synchronised, one that is dead fails the VMI', async () => {
    for (const [stubs, phase] of [
      [{}, 'Scheduled'],
      [{ launcherUnresponsive: true }, 'Failed'],
    ] as const) {
      const world = starting();
      world.stubs = stubs;
      await passAfter(world, 0);
      await passAfter(world, 5_000);
      expect(world.domains.get(key)).toBeUndefined();
      expect(world.synced).toHaveLength(phase === 'Failed' ? 0 : 1);
      if (phase === 'Failed') expect(world.puts.at(-1)?.status.phase).toBe('Failed');
    }
  });

  it('REC-010 one that may be migrating is left to its controllers', async () => {
    const annotations = { 'kubevirt.io/create-migration-target': 'true' };
    for (const vmi of [
      aVmi(),
      aVmi({ phase: 'Scheduled', metadata: { annotations } }),
      aVmi({ phase: 'Scheduled', status: { migrationState: { targetNode: 'node01' } } }),
      aVmi({ phase: 'Scheduled', status: { nodeName: 'node02' } }),
    ]) {
      const world = starting(vmi);
      await passAfter(world, 0);
      await passAfter(world, 10_000);
      expect(world.calls).toEqual([]);
      expect(world.requeues).toEqual([]);
    }
  });
});

describe('a ghost record of an older VMI of the same name', () => {
  const predecessor = { namespace: 'default', name: 'testvmi', uid: 'uid-old' };
  const pass = async (alive: boolean) => {
    const world = new World();
    world.put(aVmi({ phase: 'Scheduled' }));
    world.stubs = {
      launcherClientError: new GhostRecordConflict(
        'can not add ghost record when entry already exists with differing UID',
        predecessor,
        alive,
      ),
    };
    return { world, error: await world.pass() };
  };

  it('a dead one is cleaned up and the VMI goes on in a second', async () => {
    const { world, error } = await pass(false);
    expect(error).toBeNull();
    expect(world.forgotten).toEqual([predecessor]);
    expect(world.calls).toContain('containerDisk.Unmount');
    expect(world.requeues).toContainEqual({ key, seconds: 1 });
    expect(world.events).toEqual([]);
    world.stubs = {};
    world.echo();
    await world.pass();
    expect(world.synced[0]?.vmi.metadata.uid).toBe(uid);
  });

  it('one that answers is left alone and the VMI waits', async () => {
    const { world, error } = await pass(true);
    expect(error).toBeNull();
    expectNothingDestroyed(world);
    expect(world.forgotten).toEqual([]);
    expect(world.requeues).toContainEqual({ key, seconds: 5 });
    expect(world.events.map(({ reason }) => reason)).toEqual(['SyncFailed']);
  });
});

describe('a connection that is held back after failures', () => {
  const held = new ConnectHeldBack('refused', 8000);

  it('is tried again at its time, without a retry or an event, and the failure stays visible', async () => {
    for (const vmi of [aVmi({ phase: 'Scheduled' }), aVmi({ metadata: deleting })]) {
      const world = new World();
      world.put(vmi);
      if (vmi.status.phase === 'Running') world.domains.set(key, aDomain('Running'));
      world.stubs = { launcherClientError: held };
      expect(await world.pass()).toBeNull();
      expect(world.events).toEqual([]);
      expect(world.requeues).toContainEqual({ key, seconds: 8 });
      const condition = world.puts[0]?.status.conditions?.find(({ type }) => type === 'Synchronized');
      expect(condition?.message).toContain('refused');
    }
  });

  it('leaves a Running VMI without cached domain as it is', async () => {
    const world = new World();
    world.put(aVmi());
    world.stubs = { launcherClientError: held };
    expect(await world.pass()).toBeNull();
    expect(world.requeues).toEqual([{ key, seconds: 8 }]);
    expect(world.puts).toEqual([]);
    expect(world.events).toEqual([]);
  });
});
