import { existsSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { VmiRef } from '../../../agent/api/vmi.js';
import { ConnectHeldBack, GhostRecordConflict } from '../../../agent/reconcile/ports.js';
import { SocketState } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { answering, domainJson, TestNode, vmiWithPods } from './node.js';
import { eventually, failure } from './peers.js';

const ref = { namespace: 'ns', name: 'vm', uid: 'u1' };
const vmi = vmiWithPods(ref, { 'pod-a': 'node01' });
const running = answering(() => domainJson(ref));

let node: TestNode;
beforeEach(async () => {
  node = new TestNode();
  await node.start();
});
afterEach(() => node.stop());

describe('get', () => {
  it('WIRE-006 REC-040 two callers at once share one connection, one record and one pipe', async () => {
    await node.launch('pod-a', running);
    const clients = await Promise.all([
      node.clients.get(vmi),
      node.clients.get(vmi),
      node.clients.getVerified(vmi),
    ]);
    expect(new Set(clients).size).toBe(1);
    expect(node.fake.count('connect')).toBe(1);
    expect(node.fake.count('listen')).toBe(1);
    expect(node.recordFiles()).toEqual(['u1']);
    expect(statSync(node.fake.pipe('pod-a')).isSocket()).toBe(true);
  });

  it('WIRE-009 close and forget leave nothing behind and may be repeated', async () => {
    await node.launch('pod-a', running);
    const client = await node.clients.get(vmi);
    for (let i = 0; i < 2; i++) {
      await node.clients.close(ref);
      await node.clients.forget(ref);
    }
    expect(existsSync(node.fake.pipe('pod-a'))).toBe(false);
    expect(node.recordFiles()).toEqual([]);
    expect(node.notify.podUids()).toEqual([]);
    expect(node.clients.notInitializedSince('u1')).toBeUndefined();
    await expect(client.ping()).rejects.toMatchObject({ disconnected: true });
    expect(node.fake.count('release')).toBe(1);
  });

  it('close keeps the record, and forget of an older VM of the same name does not take it', async () => {
    await node.launch('pod-a', running);
    await node.clients.get(vmi);
    await node.clients.close(ref);
    expect(node.recordFiles()).toEqual(['u1']);
    await node.clients.forget({ ...ref, uid: 'older' });
    expect(node.recordFiles()).toEqual(['u1']);
  });

  it('WIRE-024 a launcher that restarts at the same path is reached again by the next call', async () => {
    await node.launch('pod-a', running);
    const first = await node.clients.getVerified(vmi);
    await node.launch('pod-a', running);
    await eventually(
      async () =>
        first.ping().then(
          () => false,
          () => true,
        ),
      'the first connection breaks',
    );
    const second = await node.clients.getVerified(vmi);
    expect(second).not.toBe(first);
    expect(node.fake.count('connect')).toBe(2);
  });

  it.each([
    ['exits', () => node.pod('pod-a', { launcherExited: true })],
    ['goes with its pod', () => node.gone('pod-a')],
  ])('a launcher that %s is noticed by the helper and calls fail without waiting', async (_, leave) => {
    const launcher = await node.launch('pod-a', ({ path }) =>
      path.endsWith('Ping') ? undefined : Buffer.alloc(0),
    );
    const client = await node.clients.get(vmi);
    // Its own time would end it as DeadlineExceeded.
    const failed = expect(client.ping()).rejects.toMatchObject({
      disconnected: false,
      code: Code.Unavailable,
    });
    await eventually(() => launcher.calls.length > 0, 'the call is under way');
    await leave();
    await failed;
  });

  it('WIRE-003 AFT-020 a launcher of another protocol version is refused and the record stays', async () => {
    const launcher = await node.launch('pod-a', running);
    launcher.versions = Buffer.from([0x0a, 0x01, 42]);
    const text = 'no compatible version found, server: [42], client: [1]';
    await expect(node.clients.get(vmi)).rejects.toThrow(text);
    expect(node.recordFiles()).toEqual(['u1']);
    launcher.versions = Buffer.from([0x0a, 0x01, 1]);
    node.advance(1);
    await node.clients.getVerified(vmi);
  });

  it('AFT-020 REC-041 a pipe that cannot be made ends the connection and keeps the record', async () => {
    await node.launch('pod-a', running);
    node.fake.fail.set('listen', failure('bind domain-notify-pipe.sock', 'EACCES'));
    await expect(node.clients.get(vmi)).rejects.toThrow('EACCES');
    expect(node.recordFiles()).toEqual(['u1']);
    expect(node.notify.podUids()).toEqual([]);
    node.fake.fail.delete('listen');
    node.advance(1);
    await node.clients.getVerified(vmi);
    expect(node.fake.count('connect')).toBe(2);
  });

  it('AFT-020 a dead socket fails and keeps the record', async () => {
    await node.launch('pod-a', running).then((launcher) => launcher.stop());
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    await expect(node.clients.get(vmi)).rejects.toThrow('ECONNREFUSED');
    expect(node.recordFiles()).toEqual(['u1']);
  });

  it('a helper that is down is told apart and everything goes on when it is back', async () => {
    await node.launch('pod-a', running);
    await node.fake.kill();
    await expect(node.clients.get(vmi)).rejects.toMatchObject({ name: 'HelperUnavailable' });
    await node.fake.start();
    node.advance(1);
    await node.clients.getVerified(vmi);
  });

  it('a helper that dies does not disturb a connection', async () => {
    await node.launch('pod-a', running);
    const client = await node.clients.get(vmi);
    await node.fake.kill();
    await client.ping();
    expect(await node.clients.get(vmi)).toBe(client);
  });
});

describe('back-off', () => {
  it('AFT-066 attempts follow 1 s doubling to 60 s whatever asks', async () => {
    await node.launch('pod-a', running);
    node.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
    const delays: number[] = [];
    for (let i = 0; i < 8; i++) {
      await expect(node.clients.get(vmi)).rejects.not.toBeInstanceOf(ConnectHeldBack);
      const held = await node.clients.get(vmi).catch((error: ConnectHeldBack) => error);
      expect(held).toBeInstanceOf(ConnectHeldBack);
      delays.push((held as ConnectHeldBack).retryAfterMs / 1000);
      for (let j = 0; j < 100; j++) await node.clients.get(vmi).catch(() => undefined);
      node.advance((held as ConnectHeldBack).retryAfterMs / 1000);
    }
    expect(delays).toEqual([1, 2, 4, 8, 16, 32, 60, 60]);
    expect(node.fake.count('connect')).toBe(8);
  });

  it('AFT-066 another set of pods or a socket that appears ends the wait', async () => {
    await expect(node.clients.get(vmi)).rejects.toThrow('No command socket found for vmi u1');
    await expect(node.clients.get(vmi)).rejects.toBeInstanceOf(ConnectHeldBack);
    await node.launch('pod-a', running);
    await node.clients.getVerified(vmi);
  });
});

describe('what is concluded from what is known of the pods', () => {
  it('a pod that the helper has not told of yet is looked at before the launcher counts as gone', async () => {
    node.fake.forgetToTell('pod-a', { directory: true, launcherSocket: SocketState.ABSENT });
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: false, initialized: false });
    node.fake.forgetToTell('pod-a', { launcherSocket: SocketState.PRESENT });
    node.advance(181);
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: false, initialized: true });
  });

  it('AFT-015 while the helper cannot be asked nobody is gone', async () => {
    await node.fake.kill();
    await expect(node.clients.isUnresponsive(vmi)).rejects.toMatchObject({ name: 'HelperUnavailable' });
  });

  it('nothing is kept for a VMI whose UID is unknown', async () => {
    const nobody = { ...ref, uid: '' };
    await expect(node.clients.getVerified(nobody)).rejects.toThrow('No command socket found for vmi');
    expect(await node.clients.isUnresponsive(nobody)).toEqual({ unresponsive: true, initialized: true });
    expect(node.clients.notInitializedSince('')).toBeUndefined();
  });

  it('AFT-061 a VMI is held here from the first look for its launcher until it is forgotten', async () => {
    expect(await node.clients.holds(ref)).toBe(false);
    await node.launch('pod-a', running);
    await node.clients.get(vmi);
    await node.clients.close(ref);
    expect(await node.clients.holds(ref)).toBe(true);
    expect(await node.clients.holds({ ...ref, uid: 'other' })).toBe(false);
    await node.clients.forget(ref);
    expect(await node.clients.holds(ref)).toBe(false);
  });
});

describe('predecessor of the same name', () => {
  const older = { ...ref, uid: 'older' };
  const live: [string, (podUid: string, vm: VmiRef) => Promise<unknown>][] = [
    [
      'answers',
      (podUid, vm) =>
        node.launch(
          podUid,
          answering(() => domainJson(vm)),
        ),
    ],
    ['hangs', (podUid) => node.hang(podUid)],
  ];

  it('AFT-021 a dead one is reported for clean-up, and then the new VM connects', async () => {
    node.record(older, 'pod-of-older');
    await node.launch('pod-a', running);
    const conflict = await node.clients.get(vmi).catch((error: unknown) => error);
    expect(conflict).toBeInstanceOf(GhostRecordConflict);
    expect(conflict).toMatchObject({
      message: 'can not add ghost record when entry already exists with differing UID',
      predecessor: older,
      alive: false,
    });
    await node.clients.forget(older);
    await node.clients.getVerified(vmi);
    expect(node.recordFiles()).toEqual(['u1']);
  });

  it.each(live)('AFT-021 one that %s is left alone', async (_, start) => {
    node.record(older, 'pod-of-older');
    await start('pod-of-older', older);
    await node.launch('pod-a', running);
    await expect(node.clients.get(vmi)).rejects.toMatchObject({ alive: true });
    expect(node.recordFiles()).toEqual(['older']);
  });

  it('a record of the same VM with a dead socket is replaced', async () => {
    node.record(ref, 'pod-old');
    await node.launch('pod-old', running).then((launcher) => launcher.stop());
    await node.launch('pod-a', running);
    await node.clients.getVerified(vmi);
    expect(node.records.get('ns/vm')?.socketFile).toContain('/pods/pod-a/');
  });

  it.each(live)('a record of the same VM whose launcher %s is kept', async (_, start) => {
    node.record(ref, 'pod-old');
    await start('pod-old', ref);
    await node.launch('pod-a', running);
    await expect(node.clients.get(vmi)).rejects.toThrow('differing socket file location');
    expect(node.records.get('ns/vm')?.socketFile).toContain('/pods/pod-old/');
  });
});

describe('two pods of one VM on the node', () => {
  const both = vmiWithPods(ref, { 'pod-a': 'node01', 'pod-b': 'node01' });

  it('the one that the ghost record names is used', async () => {
    node.record(ref, 'pod-b');
    await node.launch(
      'pod-a',
      answering(() => ''),
    );
    await node.launch('pod-b', running);
    await node.clients.getVerified(both);
    expect(await node.clients.find(both)).toEqual({ podUid: 'pod-b', vmiUid: 'u1' });
    expect(await node.clients.isUnresponsive(both)).toEqual({ unresponsive: false, initialized: true });
  });

  it('without a record the one that has the domain is used', async () => {
    await node.launch(
      'pod-a',
      answering(() => ''),
    );
    await node.launch('pod-b', running);
    await node.clients.getVerified(both);
    expect(node.records.get('ns/vm')?.socketFile).toContain('/pods/pod-b/');
  });

  it('without either it is an error and nothing is remembered', async () => {
    await node.launch(
      'pod-a',
      answering(() => ''),
    );
    await node.launch(
      'pod-b',
      answering(() => ''),
    );
    await expect(node.clients.get(both)).rejects.toThrow(
      'Found multiple sockets for vmi ns/vm. waiting for only one to exist',
    );
    expect(node.recordFiles()).toEqual([]);
  });
});

describe('isUnresponsive', () => {
  it('REC-042 a pod without socket is waited for three minutes', async () => {
    await node.pod('pod-a', { launcherSocket: SocketState.ABSENT });
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: false, initialized: false });
    node.advance(180);
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: false, initialized: false });
    node.advance(1);
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: true, initialized: true });
  });

  it('REC-042 without a pod directory the launcher is gone at once', async () => {
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: true, initialized: true });
  });

  it('REC-043 the marker counts even if the socket works, also for a new agent', async () => {
    await node.launch('pod-a', running, { unresponsiveMarker: true });
    expect(await node.clients.isUnresponsive(vmi)).toEqual({ unresponsive: true, initialized: true });
  });

  it('a VMI that is gone from the API is looked for by its ghost record', async () => {
    node.record(ref, 'pod-a');
    await node.launch('pod-a', running);
    expect(await node.clients.isUnresponsive(ref)).toEqual({ unresponsive: false, initialized: true });
  });

  it('a look before the helper has listed the pods is an error, not a verdict', async () => {
    const other = new TestNode();
    other.follow();
    try {
      await expect(other.clients.isUnresponsive(vmi)).rejects.toThrow('launcher pods are not known yet');
    } finally {
      await other.stop();
    }
  }, 10_000);
});

describe('a launcher that hangs', () => {
  it('AFT-027 connections do not pile up in its backlog', async () => {
    const accepted = await node.hang('pod-a');
    for (let i = 0; i < 3; i++) {
      await expect(node.clients.get(vmi)).rejects.toThrow('context deadline exceeded');
      node.advance(60);
    }
    expect(
      await node.clients.livenessOf({ ...ref, socketFile: node.records.get('ns/vm')?.socketFile ?? '' }),
    ).toBe('hung');
    expect(node.fake.count('connect')).toBe(1);
    await eventually(() => accepted.length === 1, 'one connection arrives');
  }, 20_000);

  it('is used on the same connection once it answers', async () => {
    // A stopped launcher whose connection is answered later: the silent listener hands it on.
    const waiting = await node.hang('pod-a');
    await expect(node.clients.get(vmi)).rejects.toThrow('context deadline exceeded');
    const backend = await node.launch('pod-b', running);
    for (const socket of waiting) {
      const through = connect(node.fake.launcherSocket('pod-b'));
      socket.pipe(through).pipe(socket);
      socket.on('error', () => through.destroy());
      through.on('error', () => socket.destroy());
    }
    node.advance(1);
    await node.clients.getVerified(vmi);
    expect(node.fake.count('connect')).toBe(1);
    expect(backend.calls.map(({ path }) => path)).toContain('/kubevirt.cmd.v1.Cmd/Ping');
  }, 10_000);
});
