import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { Informer, type InformerHandler, resyncPeriodMs } from '../../../agent/kube/informer.js';
import { checkObject, type KubeObject } from '../../../agent/kube/objects.js';
import { nodeResource } from '../../../agent/kube/resources.js';
import { FakeTimers, settle } from './fake-timers.js';
import { testLogger } from './test-logger.js';

function setup(resyncMs?: number) {
  const timers = new FakeTimers();
  const lines: string[] = [];
  const stream = new PassThrough();
  const informer = new Informer<KubeObject>({
    rest: {
      list: async () => ({
        metadata: { resourceVersion: '10' },
        items: [{ metadata: { name: 'a' } }, { metadata: { name: 'b' } }],
      }),
      watch: async (_resource, _namespace, _query, signal) => {
        signal.throwIfAborted();
        signal.addEventListener('abort', () => stream.destroy(signal.reason as Error));
        return stream as unknown as IncomingMessage;
      },
    },
    timers,
    logger: testLogger(lines),
    random: () => 0,
    resource: nodeResource,
    decode: (value) => checkObject(value) as unknown as KubeObject,
    ...(resyncMs === undefined ? {} : { resyncMs }),
  });
  return { informer, timers, lines, stream };
}

function recorder(seen: string[]): InformerHandler<KubeObject> {
  return {
    add: ({ metadata }) => seen.push(`add ${metadata.name}`),
    update: (before, after) => seen.push(`update ${before.metadata.name} ${after.metadata.name}`),
    delete: ({ metadata }) => seen.push(`delete ${metadata.name}`),
  };
}

describe('Informer', () => {
  it('has synced only after the handlers have seen the first list', async () => {
    const { informer } = setup();
    const seen: string[] = [];
    informer.addHandler(recorder(seen));
    const synced = informer.whenSynced().then(() => seen.push('synced'));
    informer.start();
    await synced;
    expect(seen.length).toBeGreaterThan(1);
    expect(seen.indexOf('synced')).toBe(seen.length - 1);
    await informer.stop();
  });

  it('tells a late handler of everything that is there', async () => {
    const { informer } = setup();
    informer.start();
    await informer.whenSynced();
    const seen: string[] = [];
    informer.addHandler(recorder(seen));
    expect(seen).toEqual(['add a', 'add b']);
    await informer.stop();
  });

  it('goes on when a handler throws', async () => {
    const { informer, lines } = setup();
    const seen: string[] = [];
    informer.addHandler({
      ...recorder([]),
      add: () => {
        throw new Error('broken handler');
      },
    });
    informer.addHandler(recorder(seen));
    informer.start();
    await informer.whenSynced();
    expect(seen).toEqual(['add a', 'add b']);
    expect(lines.join('')).toContain('broken handler');
    await informer.stop();
  });

  it('hands everything out again at each resync, and nothing after it was stopped', async () => {
    const { informer, timers } = setup(resyncPeriodMs(() => 0.5));
    const seen: string[] = [];
    informer.start();
    await informer.whenSynced();
    informer.addHandler(recorder(seen));
    seen.length = 0;
    // The watch is still open: its own deadline would end it before the resync.
    timers.advance(18 * 3_600_000 - 1);
    await settle();
    seen.length = 0;
    timers.advance(1);
    expect(seen).toEqual(['update a a', 'update b b']);
    await informer.stop();
    expect(timers.pendingCount).toBe(0);
  });

  it('delivers nothing that arrives after stop', async () => {
    const { informer, stream } = setup();
    const seen: string[] = [];
    informer.start();
    await informer.whenSynced();
    informer.addHandler(recorder(seen));
    seen.length = 0;
    await settle();
    stream.write('{"type":"ADDED","object":{"metadata":{"name":"c","resourceVersion":"11"}}}\n');
    await informer.stop();
    expect(seen).toEqual([]);
    expect(informer.get('c')).toBeUndefined();
  });
});
