import { describe, expect, it } from 'vitest';
import { LauncherError } from '../../../agent/reconcile/ports.js';
import { rfc3339 } from '../../../agent/reconcile/time.js';
import { aDomain, aVmi, deleting, uid } from './objects.js';
import { key, World } from './world.js';

function withDomain(vmi: ReturnType<typeof aVmi> | undefined, domain: ReturnType<typeof aDomain>): World {
  const world = new World();
  if (vmi !== undefined) world.put(vmi);
  world.domains.set(key, domain);
  return world;
}
const count = (world: World, call: string) => world.calls.filter((made) => made === call).length;

describe('graceful shutdown', () => {
  it('REC-022 REC-038 is signalled at least every 5 s with one event, then the guest is killed', async () => {
    const world = withDomain(
      aVmi({ metadata: deleting, spec: { terminationGracePeriodSeconds: 12 } }),
      aDomain('Running'),
    );
    const begin = world.now;
    const signals: number[] = [];
    for (let pass = 0; pass < 10 && count(world, 'launcher.KillVirtualMachine') === 0; pass++) {
      const before = count(world, 'launcher.ShutdownVirtualMachine');
      world.requeues.length = 0;
      world.expected.clear();
      await world.pass();
      if (count(world, 'launcher.ShutdownVirtualMachine') > before) signals.push((world.now - begin) / 1000);
      world.domains.set(
        key,
        aDomain('Running', 'Unknown', {
          GracePeriod: { DeletionGracePeriodSeconds: 30, DeletionTimestamp: rfc3339(begin) },
        }),
      );
      world.now += (world.requeues[0]?.seconds ?? 0) * 1000;
    }
    expect(signals).toEqual([0, 5, 10]);
    expect((world.now - begin) / 1000).toBe(12);
    expect(world.events.filter(({ reason }) => reason === 'ShuttingDown' || reason === 'Deleted')).toEqual([
      { type: 'Normal', reason: 'ShuttingDown', message: 'Signaled Graceful Shutdown' },
      { type: 'Normal', reason: 'Deleted', message: 'VirtualMachineInstance stopping' },
    ]);
  });

  it('REC-022 a guest that shuts down is not signalled again, and its time still ends', async () => {
    const world = withDomain(
      aVmi({ metadata: deleting }),
      aDomain('ShuttingDown', 'User', {
        GracePeriod: { DeletionGracePeriodSeconds: 30, DeletionTimestamp: '1999-12-31T23:59:50Z' },
      }),
    );
    await world.pass();
    expect(count(world, 'launcher.ShutdownVirtualMachine')).toBe(0);
    expect(world.requeues).toEqual([{ key, seconds: 20 }]);
  });

  it('REC-023 without a period of VMI or domain the guest is killed at once', async () => {
    const immediate = [
      withDomain(
        aVmi({ metadata: deleting, spec: { terminationGracePeriodSeconds: 0 } }),
        aDomain('Running'),
      ),
      withDomain(
        aVmi({ metadata: deleting, spec: { terminationGracePeriodSeconds: 30 } }),
        aDomain('Running', 'Unknown', { GracePeriod: { DeletionGracePeriodSeconds: 0 } }),
      ),
      withDomain(undefined, aDomain('Running', 'Unknown', { GracePeriod: undefined })),
    ];
    for (const world of immediate) {
      await world.pass();
      expect(count(world, 'launcher.KillVirtualMachine')).toBe(1);
      expect(count(world, 'launcher.ShutdownVirtualMachine')).toBe(0);
      expect(world.requeues).toEqual([]);
    }
  });

  it('REC-024 a connection that ends during the call counts as done', async () => {
    const disconnected = new LauncherError('EOF', true);
    const signalled = withDomain(aVmi({ metadata: deleting }), aDomain('Running'));
    signalled.stubs = { ShutdownVirtualMachineError: disconnected };
    expect(await signalled.pass()).toBeNull();
    const killed = withDomain(undefined, aDomain('Running', 'Unknown', { GracePeriod: undefined }));
    killed.stubs = { KillVirtualMachineError: disconnected };
    expect(await killed.pass()).toBeNull();
    expect(killed.events.map(({ message }) => message)).toEqual(['VirtualMachineInstance stopping']);
    const deleted = withDomain(aVmi({ phase: 'Succeeded' }), aDomain('Shutoff', 'Shutdown'));
    deleted.stubs = { DeleteVirtualMachineError: disconnected };
    expect(await deleted.pass()).toBeNull();
    expect(deleted.forgotten).toHaveLength(1);

    const refused = withDomain(aVmi({ metadata: deleting }), aDomain('Running'));
    refused.stubs = { ShutdownVirtualMachineError: new LauncherError('no', false) };
    expect(await refused.pass()).toBe('no');
    expect(refused.requeues).toEqual([]);
  });
});

describe('deletion and cleanup', () => {
  const finalVmi = () => aVmi({ phase: 'Succeeded' });
  const ref = { namespace: 'default', name: 'testvmi', uid };

  it('REC-026 the order is strict, and the ghost record goes last', async () => {
    const order: string[] = [];
    const world = new World();
    const deps = world.deps();
    const recording = new World({
      ...deps,
      clients: {
        ...deps.clients,
        close: async () => void order.push('client'),
        forget: async () => void order.push('ghost record'),
      },
      domains: { ...deps.domains, delete: () => void order.push('domain') },
      migrationProxy: {
        stopTargetListener: () => void order.push('target listener'),
        stopSourceListener: () => void order.push('source listener'),
      },
      downwardMetrics: { ...deps.downwardMetrics, stopServer: () => void order.push('downward metrics') },
      containerDisks: { ...deps.containerDisks, unmount: async () => void order.push('container disks') },
      hotplug: { ...deps.hotplug, unmountAll: async () => void order.push('hotplug volumes') },
      networks: { ...deps.networks, teardown: async () => void order.push('networks') },
      netStat: { ...deps.netStat, teardown: () => void order.push('network status') },
    });
    world.put(finalVmi());
    await recording.pass();
    expect(order).toEqual([
      'client',
      'target listener',
      'source listener',
      'downward metrics',
      'container disks',
      'hotplug volumes',
      'networks',
      'network status',
      'client',
      'domain',
      'ghost record',
    ]);
  });

  it.each(['containerDiskUnmountError', 'hotplugUnmountAllError'])(
    'REC-026 after %s networks and ghost record stay, and the next pass goes on',
    async (stub) => {
      const world = withDomain(finalVmi(), aDomain('Shutoff', 'Shutdown'));
      world.stubs = { [stub]: 'busy' };
      expect(await world.pass()).toBe('busy');
      expect(world.calls).not.toContain('network.Teardown');
      expect(world.forgotten).toEqual([]);
      expect(world.domains.has(key)).toBe(true);
      world.stubs = {};
      expect(await world.pass()).toBeNull();
      expect(world.forgotten).toEqual([ref]);
    },
  );

  it('REC-026 a network that cannot be torn down does not keep the rest', async () => {
    const world = withDomain(finalVmi(), aDomain('Shutoff', 'Shutdown'));
    world.stubs = { networkTeardownError: 'gone' };
    expect(await world.pass()).toBeNull();
    expect(world.calls).toContain('netStat.Teardown');
    expect(world.forgotten).toEqual([ref]);
  });

  it('REC-025 without a pod there is no RPC, and everything else is cleaned up', async () => {
    for (const stubs of [{ launcherClientError: 'no socket' }, { launcherPingError: 'dead' }]) {
      const world = withDomain(finalVmi(), aDomain('Shutoff', 'Shutdown'));
      world.stubs = stubs;
      expect(await world.pass()).toBeNull();
      expect(world.calls).not.toContain('launcher.DeleteVirtualMachine');
      expect(world.events).toEqual([]);
      expect(world.calls).toContain('network.Teardown');
      expect(world.forgotten).toEqual([ref]);
    }
  });

  it('a refused deletion closes the client and keeps everything else', async () => {
    const world = withDomain(finalVmi(), aDomain('Shutoff', 'Shutdown'));
    world.stubs = { DeleteVirtualMachineError: 'nope' };
    expect(await world.pass()).toBe('nope');
    expect(world.closed).toEqual([ref]);
    expect(world.calls).not.toContain('containerDisk.Unmount');
    expect(world.forgotten).toEqual([]);
  });

  it('REC-027 after a VMI is gone nothing of it is left', async () => {
    const panicked = aDomain(
      'Shutoff',
      'Shutdown',
      {},
      {
        Status: {
          Status: 'Shutoff',
          Reason: 'Shutdown',
          PanicCount: 2,
          GuestPanicInfo: { Type: 'hyper-v', Arg1: 209 },
        },
      },
    );
    const world = withDomain(aVmi(), panicked);
    await world.pass();
    world.local.clear();
    world.expected.clear();
    await world.pass();
    expect(world.domains.size).toBe(0);
    expect(world.closed.at(-1)).toEqual(ref);
    expect(world.forgotten.at(-1)).toEqual(ref);
    expect(world.calls).toContain('proxy.StopTargetListener');
    expect(world.droppedSeries).toEqual([key]);
    expect(world.panics).toEqual(['hyper-v 0xd1']);
    // The same panic is news again only to a memory that forgot it.
    world.put(aVmi());
    world.domains.set(key, panicked);
    await world.pass();
    expect(world.panics).toHaveLength(2);
  });

  it('REC-038 each phase has its event', async () => {
    const ends = [
      ['Running', 'Unknown', 'Scheduled', ['Normal', 'Started', 'VirtualMachineInstance started.']],
      ['Shutoff', 'Shutdown', 'Running', ['Normal', 'Stopped', 'The VirtualMachineInstance was shut down.']],
      ['Shutoff', 'Crashed', 'Running', ['Warning', 'Stopped', 'The VirtualMachineInstance crashed.']],
    ] as const;
    for (const [status, reason, phase, [type, eventReason, message]] of ends) {
      const world = withDomain(aVmi({ phase }), aDomain(status, reason));
      await world.pass();
      expect(world.events.at(-1)).toEqual({ type, reason: eventReason, message });
    }
  });

  it('hooks: absent ones are not called', async () => {
    const world = new World();
    const without = new World({
      ...world.deps(),
      hooks: { present: false, call: () => Promise.reject(new Error('called')) },
    });
    world.put(aVmi({ metadata: deleting }));
    world.domains.set(key, aDomain('Running'));
    expect(await without.pass()).toBeNull();
    expect(world.calls).toContain('launcher.ShutdownVirtualMachine');
  });
});
