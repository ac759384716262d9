import { describe, expect, it } from 'vitest';
import { ApiError, ApiUnavailable } from '../../../agent/kube/api-error.js';
import { KubeEventRecorder, type RecorderOptions } from '../../../agent/kube/recorder.js';
import { FakeTimers, settle } from './fake-timers.js';
import { testLogger } from './test-logger.js';

const vmi = { namespace: 'ns', name: 'vm', uid: 'u1' };

interface Written {
  readonly verb: 'create' | 'patch';
  readonly namespace: string;
  readonly name: string;
  readonly body: Record<string, unknown>;
}

function setup(options: Partial<RecorderOptions> = {}) {
  const timers = new FakeTimers();
  const written: Written[] = [];
  const lines: string[] = [];
  let failures: Error[] = [];
  const fail = () => {
    const error = failures.shift();
    if (error !== undefined) throw error;
  };
  const recorder = new KubeEventRecorder({
    rest: {
      async create(_resource, namespace, body) {
        fail();
        const event = body as { metadata: { name: string } };
        written.push({ verb: 'create', namespace, name: event.metadata.name, body: { ...event } });
        return body;
      },
      async patch(_resource, namespace, name, _type, body) {
        fail();
        written.push({ verb: 'patch', namespace, name, body: body as Record<string, unknown> });
        return body;
      },
    },
    timers,
    logger: testLogger(lines),
    component: 'virt-handler',
    host: 'node01',
    ...options,
  });
  return {
    recorder,
    timers,
    written,
    lines,
    failWith: (...errors: Error[]) => {
      failures = errors;
    },
  };
}

describe('KubeEventRecorder', () => {
  it('writes an event as client-go does', async () => {
    const { recorder, written } = setup();
    recorder.event(vmi, 'Normal', 'Started', 'VirtualMachineInstance started.');
    await recorder.flush();
    expect(written).toHaveLength(1);
    expect(written[0]?.namespace).toBe('ns');
    expect(written[0]?.name).toMatch(/^vm\.[0-9a-f]+$/);
    expect(written[0]?.body).toMatchObject({
      apiVersion: 'v1',
      kind: 'Event',
      involvedObject: {
        apiVersion: 'kubevirt.io/v1',
        kind: 'VirtualMachineInstance',
        namespace: 'ns',
        name: 'vm',
        uid: 'u1',
      },
      type: 'Normal',
      reason: 'Started',
      message: 'VirtualMachineInstance started.',
      source: { component: 'virt-handler', host: 'node01' },
      firstTimestamp: '2023-11-14T22:13:20Z',
      lastTimestamp: '2023-11-14T22:13:20Z',
      count: 1,
    });
  });

  it('counts a repeated event on the first one, and begins anew when that is gone', async () => {
    const { recorder, timers, written, failWith } = setup();
    const shutDown = () => recorder.event(vmi, 'Normal', 'ShuttingDown', 'Signaled Graceful Shutdown');
    shutDown();
    await recorder.flush();
    timers.advance(2000);
    shutDown();
    await recorder.flush();
    expect(written[1]).toEqual({
      verb: 'patch',
      namespace: 'ns',
      name: written[0]?.name,
      body: { count: 2, lastTimestamp: '2023-11-14T22:13:22Z' },
    });
    failWith(new ApiError(404, 'NotFound', 'gone', ''));
    shutDown();
    await recorder.flush();
    expect(written[2]).toMatchObject({ verb: 'create', body: { count: 1 } });
    expect(written[2]?.name).not.toBe(written[0]?.name);
  });

  it('AFT-031 sends an event of a lasting state once in 100 passes, and again after 10 min', async () => {
    const { recorder, timers, written } = setup();
    const states = ['Migrated', 'HotplugFailed', 'SyncFailed', 'NicHotplug', 'Created'];
    for (let pass = 0; pass < 100; pass++) {
      for (const reason of states) recorder.event(vmi, 'Warning', reason, 'text');
      timers.advance(5999);
      await recorder.flush();
    }
    expect(written.map(({ body }) => body['reason'])).toEqual(states);
    timers.advance(100);
    recorder.event(vmi, 'Warning', 'Migrated', 'text');
    await recorder.flush();
    expect(written).toHaveLength(states.length + 1);
  });

  it('AFT-031 sends it at once when the text or the object is another', async () => {
    const { recorder, written } = setup();
    recorder.event(vmi, 'Warning', 'SyncFailed', 'first');
    recorder.event(vmi, 'Warning', 'SyncFailed', 'second');
    recorder.event(vmi, 'Warning', 'SyncFailed', 'first');
    recorder.event({ ...vmi, uid: 'u2' }, 'Warning', 'SyncFailed', 'first');
    await recorder.flush();
    expect(written).toHaveLength(3);
  });

  it('remembers no more than 4096 lasting states', async () => {
    const { recorder, written } = setup();
    const send = async (n: number) => {
      recorder.event({ ...vmi, uid: `u${n}` }, 'Warning', 'SyncFailed', 'text');
      await recorder.flush();
    };
    for (let n = 0; n <= 4096; n++) await send(n);
    await send(4096);
    await send(1);
    expect(written).toHaveLength(4097);
    // The oldest was forgotten.
    await send(0);
    expect(written).toHaveLength(4098);
  });

  it('AFT-031 sends phase, shutdown and migration events every time', async () => {
    const { recorder, written } = setup();
    for (const reason of ['Started', 'Stopped', 'ShuttingDown', 'Deleted', 'Migrating']) {
      recorder.event(vmi, 'Normal', reason, 'text');
      recorder.event(vmi, 'Normal', reason, 'text');
    }
    await recorder.flush();
    expect(written).toHaveLength(10);
  });

  it('tries three times, then drops the event with a log line', async () => {
    const { recorder, timers, written, lines, failWith } = setup();
    failWith(...Array.from({ length: 3 }, () => new ApiUnavailable('no route')));
    recorder.event(vmi, 'Normal', 'Started', 'lost');
    recorder.event(vmi, 'Normal', 'Stopped', 'kept');
    for (let attempt = 0; attempt < 3; attempt++) {
      await settle();
      timers.advance(timers.nextIn ?? 0);
    }
    await recorder.flush();
    expect(written.map(({ body }) => body['message'])).toEqual(['kept']);
    expect(lines.join('')).toContain('event Started on VirtualMachineInstance ns/vm could not be written');
    expect(timers.pendingCount).toBe(0);
  });

  it('drops an event that the server refuses at once', async () => {
    const { recorder, timers, written, failWith } = setup();
    failWith(new ApiError(403, 'Forbidden', 'namespace is being terminated', ''));
    recorder.event(vmi, 'Normal', 'Started', 'refused');
    await recorder.flush();
    expect(written).toHaveLength(0);
    expect(timers.pendingCount).toBe(0);
  });

  it('never blocks: what exceeds the queue is lost and counted', async () => {
    const { recorder, written, lines } = setup();
    for (let n = 0; n < 300; n++) recorder.event(vmi, 'Normal', 'Started', `text ${n}`);
    await recorder.flush();
    // The first is being written while 256 wait.
    expect(written).toHaveLength(257);
    expect(lines.join('')).toContain('43 events were lost');
  });

  it('stops at once, with no timer left', async () => {
    const { recorder, timers, written, failWith } = setup();
    failWith(new ApiUnavailable('no route'));
    recorder.event(vmi, 'Normal', 'Started', 'text');
    recorder.event(vmi, 'Normal', 'Stopped', 'text');
    await settle();
    await recorder.stop();
    recorder.event(vmi, 'Normal', 'Deleted', 'text');
    await recorder.flush();
    expect(written).toHaveLength(0);
    expect(timers.pendingCount).toBe(0);
  });
});
