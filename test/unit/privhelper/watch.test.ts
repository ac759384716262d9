import { Code } from '@connectrpc/connect';
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { PodState } from '../../../native/binding.js';
import { toFailure } from '../../../privhelper/failure.js';
import { createPolicy, type Policy } from '../../../privhelper/policy/policy.js';
import { type PodEvent, Subscription } from '../../../privhelper/watch/subscription.js';
import { PodWatcher } from '../../../privhelper/watch/watcher.js';
import { emptyState, FakeTree, fakeNative, nativeError, podA, podB } from './fakes.js';

const sockets = (uid: string) => `${uid}/volumes/kubernetes.io~empty-dir/sockets`;
const disks = (uid: string) => `${uid}/volumes/kubernetes.io~empty-dir/container-disks`;

function setUp(policy: Partial<Policy> = {}) {
  const tree = new FakeTree();
  const exited = new Set<string>();
  const gone: string[] = [];
  const reports: string[] = [];
  const abort = new AbortController();
  const watcher = new PodWatcher({
    native: fakeNative(tree.methods),
    podsDir: 3,
    policy: createPolicy(policy),
    call: { caps: 4n, deadlineMs: 2000 },
    hasExited: (uid) => exited.has(uid),
    onGone: (uid) => gone.push(uid),
    recheckMs: 1_000_000,
    now: () => performance.now(),
    report: (message) => void reports.push(message),
  });
  const launcher = (uid: string, state: Partial<PodState> = {}) => {
    tree.states.set(uid, { ...emptyState, ...state });
    tree.mkdir(sockets(uid));
  };
  const set = (uid: string, state: Partial<PodState>) => {
    tree.states.set(uid, { ...emptyState, ...tree.states.get(uid), ...state });
  };
  const reader = (signal = abort.signal) => {
    const events = watcher.watch(signal);
    return async (): Promise<PodEvent> => {
      const { value } = await events.next();
      return value as PodEvent;
    };
  };
  return { tree, exited, gone, reports, abort, watcher, launcher, set, reader };
}

describe('pod watcher', () => {
  let stop: () => void = () => undefined;
  afterEach(() => stop());

  function start(policy: Partial<Policy> = {}) {
    const context = setUp(policy);
    stop = () => {
      context.abort.abort();
      context.watcher.close();
    };
    return context;
  }

  it('gives the pods that are there, then synced, then changes', async () => {
    const { tree, watcher, launcher, set, reader } = start();
    launcher(podA, { launcherSocket: 'present' });
    watcher.start();
    const next = reader();
    expect(await next()).toEqual({
      kind: 'pod',
      pod: { ...emptyState, podUid: podA, launcherSocket: 'present', launcherExited: false },
    });
    expect(await next()).toEqual({ kind: 'synced' });
    set(podA, { unresponsiveMarker: true });
    tree.event(sockets(podA), 'launcher-unresponsive', 0x100);
    expect(await next()).toMatchObject({ pod: { podUid: podA, unresponsiveMarker: true } });
  });

  it('follows a pod from its first directory to its socket, its disks and its end', async () => {
    const { tree, watcher, set, reader, gone } = start();
    watcher.start();
    const next = reader();
    expect(await next()).toEqual({ kind: 'synced' });
    tree.mkdir(podA);
    set(podA, {});
    tree.mkdir(sockets(podA));
    expect(await next()).toMatchObject({ pod: { launcherSocket: 'absent' } });
    set(podA, { launcherSocket: 'present' });
    tree.event(sockets(podA), 'launcher-sock', 0x100);
    expect(await next()).toMatchObject({ pod: { launcherSocket: 'present' } });
    tree.mkdir(disks(podA));
    set(podA, { containerDisks: [0] });
    tree.event(disks(podA), 'disk_0.sock', 0x100);
    expect(await next()).toMatchObject({ pod: { containerDisks: [0] } });
    set(podA, { containerDiskBinary: true });
    tree.mkdir(`${podA}/containers`);
    expect(await next()).toMatchObject({ pod: { containerDiskBinary: true } });
    tree.states.delete(podA);
    tree.rmdir(podA);
    expect(await next()).toEqual({ kind: 'gone', podUid: podA });
    expect(gone).toEqual([podA]);
  });

  it('finds what appeared between placing a watch and reading', async () => {
    const { tree, watcher, launcher, set, reader } = start();
    launcher(podA);
    const read = tree.methods.podState;
    // The socket appears right after the state was read: only the watch can tell.
    tree.methods.podState = async (...args) => {
      const state = await read?.(...args);
      if (state === undefined) throw nativeError('ENOENT');
      if (state.launcherSocket === 'absent') {
        set(podA, { launcherSocket: 'present' });
        tree.event(sockets(podA), 'launcher-sock', 0x100);
      }
      return state;
    };
    watcher.start();
    const next = reader();
    expect(await next()).toMatchObject({ pod: { launcherSocket: 'present' } });
    expect(await next()).toEqual({ kind: 'synced' });
  });

  it('does not report pods without a sockets volume, nor entries that are no pods', async () => {
    const { tree, watcher, launcher, reader } = start();
    tree.mkdir(`${podB}/volumes/kubernetes.io~empty-dir/data`);
    tree.mkdir('not-a-pod');
    launcher(podA);
    watcher.start();
    const next = reader();
    expect(await next()).toMatchObject({ pod: { podUid: podA } });
    expect(await next()).toEqual({ kind: 'synced' });
    expect(tree.looks).toBe(1);
    tree.rmdir(podB);
    tree.mkdir(sockets(podB));
    launcher(podB);
    expect(await next()).toMatchObject({ kind: 'pod', pod: { podUid: podB } });
  });

  it('tells nothing twice', async () => {
    const { tree, watcher, launcher, set, reader } = start();
    launcher(podA);
    watcher.start();
    const next = reader();
    await next();
    await next();
    tree.event(sockets(podA), 'launcher-sock', 0x100);
    await vi.waitFor(() => expect(tree.looks).toBe(2));
    set(podA, { launcherSocket: 'refused' });
    tree.event(sockets(podA), 'launcher-sock', 0x100);
    expect(await next()).toMatchObject({ pod: { launcherSocket: 'refused' } });
  });

  it('ignores entries that say nothing about the launcher', async () => {
    const { tree, watcher, launcher, reader } = start();
    launcher(podA);
    watcher.start();
    const next = reader();
    await next();
    await next();
    for (let i = 0; i < 1000; i += 1) tree.event(sockets(podA), `junk-${i}`, 0x100);
    tree.event(sockets(podA), 'launcher-sock', 0x100);
    await vi.waitFor(() => expect(tree.looks).toBe(2));
  });

  it('bounds how often a busy pod is looked at', async () => {
    const { tree, watcher, launcher, reader } = start();
    launcher(podA);
    watcher.start();
    const next = reader();
    await next();
    await next();
    const before = tree.looks;
    for (let i = 0; i < 500; i += 1) {
      tree.event(sockets(podA), 'launcher-sock', 0x100);
      await Promise.resolve();
      await new Promise(setImmediate);
    }
    expect(tree.looks - before).toBeLessThan(100);
  });

  it('stops watching a directory that changes too often for a while, and misses nothing', async () => {
    const { tree, watcher, launcher, set, reader } = start();
    launcher(podA);
    launcher(podB);
    watcher.start();
    const next = reader();
    for (let i = 0; i < 3; i += 1) await next();
    for (let i = 0; i < 5000 && tree.removed.length === 0; i += 1) {
      tree.event(sockets(podA), `junk-${i}`, 0x100);
    }
    expect(tree.removed).toHaveLength(1);
    // The watch is gone, and so are its events.
    set(podA, { launcherSocket: 'present' });
    set(podB, { launcherSocket: 'present' });
    tree.event(sockets(podA), 'launcher-sock', 0x100);
    tree.event(sockets(podB), 'launcher-sock', 0x100);
    expect(await next()).toMatchObject({ pod: { podUid: podB, launcherSocket: 'present' } });
    expect(await next()).toMatchObject({ pod: { podUid: podA, launcherSocket: 'present' } });
  });

  it('looks at everything again after an overflow', async () => {
    const { tree, watcher, launcher, set, reader, reports } = start();
    launcher(podA);
    watcher.start();
    const next = reader();
    await next();
    await next();
    set(podA, { launcherSocket: 'present' });
    tree.overflow();
    expect(await next()).toMatchObject({ pod: { launcherSocket: 'present' } });
    expect(reports).toHaveLength(1);
  });

  it('tells that the pinned launcher has exited', async () => {
    const { watcher, launcher, exited, reader } = start();
    launcher(podA);
    watcher.start();
    const next = reader();
    await next();
    await next();
    exited.add(podA);
    watcher.touch(podA);
    expect(await next()).toMatchObject({ pod: { launcherExited: true } });
  });

  it('bounds pods and watch streams', async () => {
    const { watcher, launcher, reader, reports } = start({ maxPods: 1, maxWatches: 1 });
    launcher(podA);
    launcher(podB);
    watcher.start();
    const next = reader();
    await next();
    expect(await next()).toEqual({ kind: 'synced' });
    expect(reports).toEqual([expect.stringContaining(podB)]);
    const second = reader();
    await expect(second()).rejects.toMatchObject({ code: Code.ResourceExhausted });
  });

  it('goes on when the pods directory cannot be read, at the next event', async () => {
    const { tree, watcher, launcher, reader, reports } = start();
    const list = tree.methods.listDirectory;
    tree.methods.listDirectory = () => Promise.reject(nativeError('EACCES'));
    watcher.start();
    await vi.waitFor(() => expect(reports).toHaveLength(1));
    if (list !== undefined) tree.methods.listDirectory = list;
    launcher(podA);
    tree.overflow();
    expect(await reader()()).toMatchObject({ pod: { podUid: podA } });
  });

  it('ends the stream when its reader goes', async () => {
    const { watcher, reader } = start();
    watcher.start();
    const own = new AbortController();
    const next = reader(own.signal);
    expect(await next()).toEqual({ kind: 'synced' });
    const pending = next();
    own.abort();
    expect(await pending).toBeUndefined();
  });
});

describe('subscription', () => {
  const gone = (podUid: string): PodEvent => ({ kind: 'gone', podUid });

  it('keeps the latest state of each pod only', async () => {
    const abort = new AbortController();
    const subscription = new Subscription(2);
    for (const uid of ['a', 'b', 'a', 'a']) subscription.push(uid, gone(uid));
    const changes = subscription.changes(abort.signal);
    expect((await changes.next()).value).toEqual(gone('b'));
    expect((await changes.next()).value).toEqual(gone('a'));
  });

  it('is cut when its reader is too slow', async () => {
    const subscription = new Subscription(2);
    for (const uid of ['a', 'b', 'c']) subscription.push(uid, gone(uid));
    const changes = subscription.changes(new AbortController().signal);
    const failure = await changes.next().catch(toFailure);
    expect(failure).toMatchObject({ code: Code.ResourceExhausted });
  });
});
