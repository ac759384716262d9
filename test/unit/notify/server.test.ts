import { existsSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { domainJson, TestNode, vmiWithPods } from '../launcher/node.js';
import { eventually } from '../launcher/peers.js';
import { LauncherSide } from './launcher-side.js';

const a = { namespace: 'ns', name: 'a', uid: 'uid-a' };
const b = { namespace: 'ns', name: 'b', uid: 'uid-b' };

let node: TestNode;
let fromA: LauncherSide;
let fromB: LauncherSide;
beforeEach(async () => {
  node = new TestNode();
  await node.start();
  for (const [podUid, vmi] of [['pod-a', a] as const, ['pod-b', b] as const]) {
    node.vmis.set(`${vmi.namespace}/${vmi.name}`, vmiWithPods(vmi, {}));
    await node.notify.ensure({ podUid, vmi });
  }
  fromA = new LauncherSide(node.fake.pipe('pod-a'));
  fromB = new LauncherSide(node.fake.pipe('pod-b'));
});
afterEach(async () => {
  fromA.close();
  fromB.close();
  await node.stop();
});

const event = (vmi: typeof a, uid = vmi.uid) => ({
  involvedObject: { namespace: vmi.namespace, name: vmi.name, uid },
  type: 'Warning',
  reason: 'IOerror',
  message: 'VM Paused due to IO error at the volume: disk',
});
const gone = (vmi: typeof a) =>
  JSON.stringify({
    ObjectMeta: {
      name: vmi.name,
      namespace: vmi.namespace,
      uid: vmi.uid,
      deletionTimestamp: '2026-01-01T00:00:00Z',
    },
  });

describe('identity', () => {
  it('WIRE-010 NotifyInfo answers [1]', async () => {
    expect(await fromA.info()).toEqual([1]);
  });

  it('WIRE-011 AFT-001 REC-052 what one launcher says of another VMI changes nothing', async () => {
    await fromB.domain('MODIFIED', domainJson(b));
    const before = node.store.get('ns/b');
    const answers = [
      await fromA.domain('MODIFIED', gone(b)),
      await fromA.domain('DELETED', domainJson(b)),
      await fromA.domain('ADDED', domainJson({ namespace: 'ns', name: 'other', uid: 'x' })),
      await fromA.k8s(event(b)),
    ];
    for (const { success, message } of answers) {
      expect(success).toBe(false);
      expect(message).toContain('mismatch');
    }
    expect((await fromA.domain('ERROR', '', '{"status":"Failure"}')).success).toBe(true);
    expect(node.store.get('ns/b')).toBe(before);
    expect(node.changes).toEqual(['ns/b']);
    expect(node.events).toEqual([]);
    expect(node.refused).toEqual(['mismatch', 'mismatch', 'mismatch', 'mismatch']);
    const audit = node.logLines.filter((line) => line.includes('"audit":"notify"'));
    expect(audit).toHaveLength(1);
    expect(audit[0]).toContain('pod-a');
  });

  it('WIRE-011 AFT-001 the right name with another UID is refused, in either place', async () => {
    const stale = { ...a, uid: 'uid-old' };
    expect((await fromA.domain('MODIFIED', domainJson(stale))).success).toBe(false);
    expect((await fromA.domain('MODIFIED', gone(stale))).success).toBe(false);
    expect(node.changes).toEqual([]);
  });

  it('AFT-001 an empty UID is accepted and taken from the pipe', async () => {
    const answer = await fromA.domain('ADDED', domainJson({ ...a, uid: '' }));
    expect(answer.success).toBe(true);
    expect(node.store.get('ns/a')?.Spec.Metadata.KubeVirt.UID).toBe('uid-a');
  });

  it('WIRE-012 Kubernetes events are recorded unchanged on the own VMI only', async () => {
    expect((await fromA.k8s(event(a))).success).toBe(true);
    expect((await fromA.k8s(event(a, 'uid-old'))).success).toBe(false);
    expect((await fromA.k8s(event(a, ''))).success).toBe(false);
    expect(node.events).toEqual(['Warning IOerror VM Paused due to IO error at the volume: disk']);
    node.vmis.delete('ns/a');
    expect(await fromA.k8s(event(a))).toMatchObject({ success: false, message: 'VMI not found' });
    expect(node.events).toHaveLength(1);
  });

  it('WIRE-021 AFT-023 an ERROR event repeats no list, closes no pipe and changes no domain', async () => {
    await fromB.domain('MODIFIED', domainJson(b));
    const inode = statSync(node.fake.pipe('pod-b')).ino;
    const calls = node.fake.calls.length;
    expect((await fromA.domain('ERROR', '', '{"status":"Failure","message":"libvirt gone"}')).success).toBe(
      true,
    );
    expect((await fromB.domain('MODIFIED', domainJson(b, 'Paused', 'User'))).success).toBe(true);
    expect(statSync(node.fake.pipe('pod-b')).ino).toBe(inode);
    expect(node.fake.calls.length).toBe(calls);
    expect(node.changes).toEqual(['ns/b', 'ns/b']);
  });
});

describe('bounds', () => {
  it('malformed and oversized messages get an answer and change nothing', async () => {
    const deep = '['.repeat(1_000_000);
    for (const text of ['{', '[]', '5', '{"Status":{"Status":5}}', '{"ObjectMeta":[]}', deep]) {
      const { success, message } = await fromA.domain('MODIFIED', text);
      expect(success).toBe(false);
      expect(message).not.toBe('');
    }
    await expect(fromA.domain('MODIFIED', `"${'x'.repeat(4 * 1024 * 1024)}"`)).rejects.toMatchObject({
      code: 8,
    });
    expect(node.changes).toEqual([]);
    expect((await fromA.domain('MODIFIED', domainJson(a))).success).toBe(true);
  });

  it('a launcher that floods is told to wait, another one is not', async () => {
    const flood = await Promise.all(
      Array.from({ length: 400 }, () =>
        fromA.domain('MODIFIED', domainJson(a)).then(
          () => 'ok',
          (error: { code: number }) => error.code,
        ),
      ),
    );
    expect(flood.filter((result) => result === 8).length).toBe(144);
    expect((await fromB.domain('MODIFIED', domainJson(b))).success).toBe(true);
    node.advance(1);
    expect((await fromA.domain('MODIFIED', domainJson(a))).success).toBe(true);
  });

  it('no more than eight connections of one pod are served', async () => {
    const sockets = Array.from({ length: 20 }, () => connect(node.fake.pipe('pod-a')));
    let closed = 0;
    for (const socket of sockets)
      socket
        .on('error', () => undefined)
        .on('close', () => closed++)
        .resume();
    await eventually(() => closed >= 12, 'twelve connections are closed');
    expect((await fromB.domain('MODIFIED', domainJson(b))).success).toBe(true);
    for (const socket of sockets) socket.destroy();
  });
});

describe('life', () => {
  it('AFT-030 stop ends at once whatever is going on, and nothing is delivered after it', async () => {
    const sending = Promise.allSettled(
      Array.from({ length: 200 }, () => fromA.domain('MODIFIED', domainJson(a))),
    );
    await eventually(() => node.changes.length > 0, 'events arrive');
    node.notify.stop();
    const delivered = node.changes.length;
    await sending;
    expect(node.changes.length).toBe(delivered);
    await expect(fromA.info()).rejects.toBeDefined();
  });

  it('REC-047 a new helper makes all pipes again, and connections that exist go on', async () => {
    await fromA.domain('MODIFIED', domainJson(a));
    node.helper.on('restarted', () => void node.notify.remake());
    await node.fake.kill();
    await node.fake.start();
    await eventually(() => node.fake.count('listen') === 4, 'both pipes are made again');
    await eventually(() => existsSync(node.fake.pipe('pod-a')), 'the new pipe is there');
    expect((await fromA.domain('MODIFIED', domainJson(a))).success).toBe(true);
    const again = new LauncherSide(node.fake.pipe('pod-a'));
    expect((await again.domain('MODIFIED', domainJson(a))).success).toBe(true);
    again.close();
  });

  it('WIRE-009 closing a pod’s listener leaves the others', async () => {
    await node.notify.close('pod-a');
    await node.notify.close('pod-a');
    expect(node.notify.podUids()).toEqual(['pod-b']);
    await expect(fromA.info()).rejects.toBeDefined();
    expect(await fromB.info()).toEqual([1]);
  });

  it('LAU-007 a connected launcher delivers its last event although its listener is closed', async () => {
    await fromA.domain('MODIFIED', domainJson(a));
    await node.notify.close('pod-a');
    expect(existsSync(node.fake.pipe('pod-a'))).toBe(false);
    expect((await fromA.domain('MODIFIED', gone(a))).success).toBe(true);
    expect((await fromA.domain('MODIFIED', domainJson(b))).message).toContain('mismatch');

    await node.notify.ensure({ podUid: 'pod-a', vmi: a });
    expect((await fromA.domain('MODIFIED', domainJson(a))).success).toBe(true);
    await node.notify.close('pod-a');
    node.notify.stop();
    await expect(fromA.domain('MODIFIED', domainJson(a))).rejects.toBeDefined();
  });
});
