import { create } from '@bufbuild/protobuf';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DomainWatcher } from '../../../agent/domains/watcher.js';
import { toPodState } from '../../../agent/helper/pod-state.js';
import { PodStateSchema, SocketState } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { FakeTimers, settle } from '../kube/fake-timers.js';
import { answering, domainJson, TestNode } from '../launcher/node.js';
import { eventually, failure } from '../launcher/peers.js';
import { LauncherSide } from '../notify/launcher-side.js';

const ref = { namespace: 'ns', name: 'vm', uid: 'u1' };
const vmOf = (i: number) => ({ namespace: 'ns', name: `vm${i}`, uid: `u${i}` });

let node: TestNode;
beforeEach(async () => {
  node = new TestNode();
  await node.start();
});
afterEach(() => node.stop());

const start = () => node.watcher.start(AbortSignal.timeout(15_000));
const statusOf = (key: string) => node.store.get(key)?.Status.Status;

describe('start', () => {
  it('WIRE-013 WIRE-014 AFT-026 100 records: all get a listener at once, and what changed meanwhile is seen', async () => {
    const count = 100;
    let looks = 0;
    for (let i = 0; i < count; i++) {
      node.record(vmOf(i), `pod-${i}`);
      await node.launch(
        `pod-${i}`,
        // One is paused as soon as it has been listed, which is told to no pipe.
        answering(() => domainJson(vmOf(i), i === 7 && looks++ > 0 ? 'Paused' : 'Running')),
      );
    }
    node.fake.calls.length = 0;
    const starting = start();
    await eventually(() => node.notify.podUids().length === count, 'all listeners', 30_000);
    // Sixteen were under way together, with nothing of the list before them.
    expect(node.fake.calls.slice(0, 16).every((call) => call.startsWith('listen'))).toBe(true);
    await starting;
    expect(node.store.keys()).toHaveLength(count);
    await eventually(() => statusOf('ns/vm7') === 'Paused', 'what changed meanwhile is seen');
    const pipe = new LauncherSide(node.fake.pipe('pod-3'));
    expect((await pipe.domain('MODIFIED', domainJson(vmOf(3), 'Crashed'))).success).toBe(true);
    expect(statusOf('ns/vm3')).toBe('Crashed');
    pipe.close();
  }, 60_000);

  it('AFT-068 at most 16 launchers are asked at a time and their connections are closed', async () => {
    let asking = 0;
    let most = 0;
    for (let i = 0; i < 60; i++) {
      node.record(vmOf(i), `pod-${i}`);
      await node.launch(`pod-${i}`, (call) => {
        asking++;
        most = Math.max(most, asking);
        setImmediate(() => asking--);
        return answering(() => domainJson(vmOf(i)))(call);
      });
    }
    await node.watcher.resync();
    expect(node.fake.count('connect')).toBe(60);
    expect(most).toBeLessThanOrEqual(16);
    node.fake.calls.length = 0;
    await node.watcher.resync();
    // None was kept: each is connected to again.
    expect(node.fake.count('connect')).toBe(60);
  }, 60_000);

  it('WIRE-016 REC-049 a launcher that hangs is Unknown and delays nobody', async () => {
    for (let i = 0; i < 4; i++) {
      node.record(vmOf(i), `hung-${i}`);
      await node.hang(`hung-${i}`);
    }
    node.record(ref, 'pod-a');
    await node.launch(
      'pod-a',
      answering(() => domainJson(ref)),
    );
    const starting = start();
    // The good one is known before any of the others has been given up.
    await eventually(() => statusOf('ns/vm') === 'Running', 'the good one answers');
    expect(node.store.keys()).toEqual(['ns/vm']);
    await starting;
    expect(statusOf('ns/vm')).toBe('Running');
    for (let i = 0; i < 4; i++) {
      expect(statusOf(`ns/vm${i}`)).toBe('Unknown');
      const meta = node.store.get(`ns/vm${i}`)?.ObjectMeta;
      expect([meta?.uid, meta?.deletionTimestamp]).toEqual([`u${i}`, undefined]);
    }
  }, 20_000);

  it('WIRE-013 a helper that does not answer delays the start by 10 s and no more', async () => {
    for (let i = 0; i < 100; i++) node.record(vmOf(i), `pod-${i}`);
    const timers = new FakeTimers();
    const never = () => new Promise<never>(() => undefined);
    const watcher = new DomainWatcher({
      helper: { markUnresponsive: never },
      pods: {
        get: (podUid) => toPodState(create(PodStateSchema, { podUid, launcherSocket: SocketState.PRESENT })),
        whenSynced: async () => undefined,
      },
      clients: { domainOf: never, livenessOf: never },
      notify: { ensure: never },
      records: node.records,
      store: node.store,
      timers,
      log: node.log,
      resyncSeconds: 300,
      watchdogSeconds: 30,
    });
    let started = false;
    void watcher.start(new AbortController().signal).then(() => {
      started = true;
    });
    for (const part of ['list', 'look again']) {
      await settle();
      expect([part, started]).toEqual([part, false]);
      timers.advance(5_000);
    }
    await settle();
    expect(started).toBe(true);
    expect(statusOf('ns/vm99')).toBe('Unknown');
  });

  it('REC-048 a record whose pod is gone gives a domain that is marked deleted and keeps its UID', async () => {
    node.record(ref, 'pod-gone');
    await start();
    expect(node.store.get('ns/vm')?.ObjectMeta).toMatchObject({ uid: 'u1' });
    expect(node.store.get('ns/vm')?.ObjectMeta.deletionTimestamp).toBe('2026-01-01T00:00:00Z');
  });

  it('AFT-024 a socket that cannot be examined, or a helper that is away, is Unknown and not gone', async () => {
    node.record(ref, 'pod-a');
    await node.pod('pod-a', { directory: false, launcherSocket: SocketState.REFUSED });
    node.fake.fail.set('connect', failure('openat2 sockets', 'ELOOP', true));
    await start();
    expect(statusOf('ns/vm')).toBe('Unknown');
    for (let i = 0; i < 5; i++) {
      node.advance(60);
      await node.watcher.checkStale();
    }
    expect(statusOf('ns/vm')).toBe('Unknown');
    expect(node.fake.count('markUnresponsive')).toBe(0);
  });

  it('a launcher that claims another VM’s domain is not believed', async () => {
    node.record(ref, 'pod-a');
    await node.launch(
      'pod-a',
      answering(() => domainJson({ ...ref, name: 'other' })),
    );
    await start();
    expect(node.store.keys()).toEqual(['ns/vm']);
    expect(statusOf('ns/vm')).toBe('Unknown');
  });
});

describe('Unknown', () => {
  it('AFT-025 is asked again after 1, 2, 4, 8, 10, 10 s until it answers', async () => {
    node.record(ref, 'pod-a');
    let well = false;
    await node.launch('pod-a', (call) =>
      well ? answering(() => domainJson(ref))(call) : { code: 14, message: 'not now' },
    );
    await start();
    expect(statusOf('ns/vm')).toBe('Unknown');
    const asked: number[] = [];
    for (let second = 1; second <= 36; second++) {
      node.advance(1);
      const before = node.fake.count('connect');
      await node.watcher.askUnknown();
      if (node.fake.count('connect') > before) asked.push(second);
    }
    expect(asked).toEqual([1, 3, 7, 15, 25, 35]);
    well = true;
    node.advance(10);
    await node.watcher.askUnknown();
    expect(statusOf('ns/vm')).toBe('Running');
    node.fake.calls.length = 0;
    node.advance(100);
    await node.watcher.askUnknown();
    expect(node.fake.calls).toEqual([]);
  });

  it('AFT-025 wakes the watcher by itself when it is due', async () => {
    const timers = new FakeTimers();
    const own = new TestNode({ timers });
    const stop = new AbortController();
    try {
      await own.start();
      own.record(ref, 'pod-a');
      let well = false;
      await own.launch('pod-a', (call) =>
        well ? answering(() => domainJson(ref))(call) : { code: 14, message: 'not now' },
      );
      await own.watcher.start(AbortSignal.timeout(15_000));
      const running = own.watcher.run(stop.signal);
      timers.advance(1_000);
      await eventually(() => timers.nextIn === 2_000, 'the next look is planned');
      well = true;
      timers.advance(2_000);
      await eventually(() => own.store.get('ns/vm')?.Status.Status === 'Running', 'it is asked again');
      stop.abort();
      await running;
    } finally {
      stop.abort();
      await own.stop();
    }
  });

  it('a launcher that answers without a domain is no longer Unknown', async () => {
    node.record(ref, 'pod-a');
    let well = false;
    await node.launch('pod-a', (call) =>
      well ? answering(() => '')(call) : { code: 14, message: 'not now' },
    );
    await start();
    well = true;
    node.advance(1);
    await node.watcher.askUnknown();
    expect(node.store.keys()).toEqual([]);
    expect(node.changes.at(-1)).toBe('ns/vm');
  });

  it('an event of the launcher ends it at once', async () => {
    node.record(ref, 'pod-a');
    await node.launch('pod-a', () => ({ code: 14, message: 'not now' }));
    await start();
    const pipe = new LauncherSide(node.fake.pipe('pod-a'));
    await pipe.domain('MODIFIED', domainJson(ref));
    pipe.close();
    expect(statusOf('ns/vm')).toBe('Running');
    node.fake.calls.length = 0;
    node.advance(100);
    await node.watcher.askUnknown();
    expect(node.fake.calls).toEqual([]);
  });
});

describe('dead and hung', () => {
  /** Looks every 11 s for `seconds` and says when the domain was reported gone first. */
  async function goneAfter(seconds: number): Promise<number | undefined> {
    for (let passed = 0; passed <= seconds; passed += 11) {
      await node.watcher.checkStale();
      if (node.store.get('ns/vm')?.ObjectMeta.deletionTimestamp !== undefined) return passed;
      node.advance(11);
    }
    return undefined;
  }

  beforeEach(async () => {
    node.record(ref, 'pod-a');
  });

  it('WIRE-015 REC-045 AFT-027 a launcher whose socket refuses is gone after 33 to 44 s', async () => {
    await node.pod('pod-a', {});
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    expect(await goneAfter(60)).toBe(33);
    expect(node.store.get('ns/vm')?.Spec.Metadata.KubeVirt.UID).toBe('u1');
  });

  it('AFT-027 a launcher whose process has exited is dead though its socket file is there', async () => {
    await node.launch(
      'pod-a',
      answering(() => domainJson(ref)),
      { launcherExited: true },
    );
    expect(await goneAfter(60)).toBe(33);
  });

  it('WIRE-015 one that answers again earlier is not', async () => {
    await node.pod('pod-a', {});
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    expect(await goneAfter(22)).toBeUndefined();
    node.fake.fail.delete('connect');
    await node.launch(
      'pod-a',
      answering(() => domainJson(ref)),
    );
    expect(await goneAfter(66)).toBeUndefined();
    expect(node.fake.count('markUnresponsive')).toBe(0);
  });

  it('AFT-027 a launcher that hangs for ten minutes is never marked, and one connection waits in its backlog', async () => {
    const sockets = await node.hang('pod-a');
    await start();
    for (let i = 0; i < 2; i++) await node.watcher.resync();
    expect(await goneAfter(600)).toBeUndefined();
    expect(statusOf('ns/vm')).toBe('Unknown');
    expect(node.fake.count('markUnresponsive')).toBe(0);
    expect(sockets.length).toBe(1);
  }, 30_000);

  it('AFT-016 the marker is there before the domain is reported gone', async () => {
    await node.pod('pod-a', {});
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    let reportedBefore: boolean | undefined;
    node.fake.onMark = () => {
      reportedBefore = node.writes.length > 0;
    };
    expect(await goneAfter(60)).toBe(33);
    expect(reportedBefore).toBe(false);
  });

  it('AFT-016 a directory that is gone does not suppress the report', async () => {
    expect(await goneAfter(60)).toBe(33);
    expect(node.fake.count('markUnresponsive')).toBe(0);
  });

  it.each(['ENOENT', 'ENOTDIR'])('AFT-016 nor does one that goes before it is marked: %s', async (errno) => {
    await node.pod('pod-a', {});
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    node.fake.fail.set('markUnresponsive', failure('openat2 sockets', errno));
    expect(await goneAfter(60)).toBe(33);
  });

  it('AFT-016 a marker that is refused because the launcher answers keeps the domain', async () => {
    await node.pod('pod-a', {});
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    node.fake.fail.set('markUnresponsive', failure('launcher answers', 'EPERM', true));
    expect(await goneAfter(60)).toBeUndefined();
    node.fake.fail.delete('markUnresponsive');
    expect(await goneAfter(60)).toBe(0);
  });

  it('while the helper is away nobody is declared dead', async () => {
    await node.launch(
      'pod-a',
      answering(() => domainJson(ref)),
    );
    await node.fake.kill();
    expect(await goneAfter(120)).toBeUndefined();
  });
});

describe('overtaken answers', () => {
  it('an event that came while the launcher was asked stays', async () => {
    node.record(ref, 'pod-a');
    await node.launch('pod-a', (call) => {
      if (call.path.endsWith('GetDomain')) {
        node.watcher.domainEvent('MODIFIED', ref, { ...gone() });
      }
      return answering(() => domainJson(ref, 'Paused', 'User'))(call);
    });
    const gone = () => JSON.parse(JSON.stringify(emptyDomain));
    await node.watcher.resync();
    expect(statusOf('ns/vm')).toBe('Crashed');
  });

  it('an answer for a VM that was forgotten meanwhile brings nothing back', async () => {
    node.record(ref, 'pod-a');
    await node.launch('pod-a', (call) => {
      if (call.path.endsWith('GetDomain')) node.records.delete('ns/vm');
      return answering(() => domainJson(ref))(call);
    });
    await node.watcher.resync();
    expect(node.store.keys()).toEqual([]);
  });

  it('AFT-030 after the stop nothing is delivered', async () => {
    const timers = new FakeTimers();
    const own = new TestNode({ timers });
    try {
      const stop = new AbortController();
      const running = own.watcher.run(stop.signal);
      expect(timers.pendingCount).toBeGreaterThan(0);
      stop.abort();
      // No time passes for it.
      await running;
      expect(timers.pendingCount).toBe(0);
      own.watcher.domainEvent('MODIFIED', ref, JSON.parse(JSON.stringify(emptyDomain)));
      expect(own.store.keys()).toEqual([]);
    } finally {
      await own.stop();
    }
  });
});

const emptyDomain = {
  ObjectMeta: { name: 'vm', namespace: 'ns', uid: 'u1' },
  Spec: { Metadata: { KubeVirt: { UID: 'u1' } } },
  Status: { Status: 'Crashed', Reason: 'Panicked' },
};
