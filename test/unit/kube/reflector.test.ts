import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { JsonValue } from '../../../agent/json/lossless.js';
import { ApiError, ApiUnavailable } from '../../../agent/kube/api-error.js';
import { checkObject, type KubeObject } from '../../../agent/kube/objects.js';
import { Reflector } from '../../../agent/kube/reflector.js';
import { nodeResource } from '../../../agent/kube/resources.js';
import type { Query } from '../../../agent/kube/rest.js';
import { FakeTimers, settle } from './fake-timers.js';
import { testLogger } from './test-logger.js';

interface Call {
  readonly verb: 'list' | 'watch';
  readonly version: unknown;
  readonly timeoutSeconds: unknown;
  /** Milliseconds since the start. */
  readonly at: number;
}

let timers: FakeTimers;
let calls: Call[];
let lists: (JsonValue | Error)[];
let streams: (PassThrough | Error)[];
let stopping: AbortController;
let running: Promise<void>;
let seen: string[];
let random: number;

const emptyList = (version: string): JsonValue => ({ metadata: { resourceVersion: version }, items: [] });

/** Starts with these answers; after the last of them every call stays open. */
async function start(answers: { lists?: (JsonValue | Error)[]; streams?: (PassThrough | Error)[] }) {
  lists = answers.lists ?? [emptyList('10')];
  streams = answers.streams ?? [];
  const startedAt = timers.now();
  const note = (verb: Call['verb'], query: Query) =>
    calls.push({
      verb,
      version: query['resourceVersion'],
      timeoutSeconds: query['timeoutSeconds'],
      at: timers.now() - startedAt,
    });
  const reflector = new Reflector<KubeObject>(
    {
      rest: {
        async list(_resource, _namespace, query) {
          note('list', query);
          const answer = lists.shift() ?? emptyList('99');
          if (answer instanceof Error) throw answer;
          return answer;
        },
        async watch(_resource, _namespace, query, signal) {
          note('watch', query);
          const stream = streams.shift() ?? new PassThrough();
          if (stream instanceof Error) throw stream;
          signal.addEventListener('abort', () => stream.destroy(signal.reason as Error));
          return stream as unknown as IncomingMessage;
        },
      },
      timers,
      logger: testLogger(),
      random: () => random,
      resource: nodeResource,
      decode: (value) => checkObject(value) as unknown as KubeObject,
    },
    {
      replace: (objects) => seen.push(`replace ${objects.length}`),
      upsert: ({ metadata }) => seen.push(`upsert ${metadata.name}`),
      remove: ({ metadata }) => seen.push(`remove ${metadata.name}`),
    },
  );
  running = reflector.run(stopping.signal);
  await settle();
}

async function advance(ms: number): Promise<void> {
  timers.advance(ms);
  await settle();
}

const event = (type: string, name: string, resourceVersion: string) =>
  `${JSON.stringify({ type, object: { metadata: { name, resourceVersion } } })}\n`;
const sequence = () => calls.map(({ verb, version }) => (verb === 'list' ? 'list' : `watch ${version}`));

beforeEach(() => {
  timers = new FakeTimers();
  calls = [];
  seen = [];
  random = 0;
  stopping = new AbortController();
});
afterEach(async () => {
  stopping.abort(new Error('stopped'));
  await running;
  expect(timers.pendingCount).toBe(0);
});

describe('Reflector', () => {
  it('resumes from the last event or bookmark', async () => {
    const stream = new PassThrough();
    await start({ streams: [stream] });
    stream.write(event('ADDED', 'a', '11') + event('DELETED', 'a', '12') + event('BOOKMARK', '', '15'));
    stream.end();
    await settle();
    expect(seen).toEqual(['replace 0', 'upsert a', 'remove a']);
    expect(sequence()).toEqual(['list', 'watch 10', 'watch 15']);
  });

  it('asks for watches of 5 to 10 min, no two agents for the same', async () => {
    random = 0.5;
    await start({});
    expect(calls.at(-1)?.timeoutSeconds).toBe(450);
  });

  it('gives up a watch that hangs 30 s beyond its time, and resumes', async () => {
    await start({});
    await advance(300_000 + 29_999);
    expect(sequence()).toEqual(['list', 'watch 10']);
    await advance(1);
    await advance(800);
    expect(sequence()).toEqual(['list', 'watch 10', 'watch 10']);
  });

  it('backs off with jitter while the server is away, and then resumes', async () => {
    random = 0.25;
    const away = Array.from({ length: 4 }, () => new ApiUnavailable('connection refused'));
    await start({ streams: away });
    for (let n = 0; n < 4; n++) await advance(timers.nextIn ?? 0);
    expect(calls.map(({ at }) => at)).toEqual([0, 0, 1000, 3000, 7000, 15_000]);
    expect(new Set(sequence())).toEqual(new Set(['list', 'watch 10']));
  });

  it('does not list at once again after an error of the server', async () => {
    random = 0.5;
    await start({ lists: [new ApiError(500, 'InternalError', 'no', ''), emptyList('7')] });
    expect(timers.nextIn).toBe(1200);
    await advance(1200);
    expect(sequence()).toEqual(['list', 'list', 'watch 7']);
  });

  it('waits for Retry-After and its own jittered pause', async () => {
    random = 0.5;
    await start({ streams: [new ApiError(429, 'TooManyRequests', 'slow down', '', 5)] });
    expect(timers.nextIn).toBe(6200);
    await advance(6200);
    expect(sequence()).toEqual(['list', 'watch 10', 'watch 10']);
  });

  it('counts a watch that is closed at once as a failure', async () => {
    const closed = new PassThrough();
    closed.end();
    await start({ streams: [closed] });
    expect(sequence()).toEqual(['list', 'watch 10']);
    await advance(800);
    expect(sequence()).toEqual(['list', 'watch 10', 'watch 10']);
  });

  it.each([
    ['410', JSON.stringify({ kind: 'Status', code: 410, reason: 'Expired', message: 'too old' })],
    ['500', JSON.stringify({ kind: 'Status', code: 500, message: 'cannot decode' })],
    ['something that is no Status', '7'],
  ])('lists anew after an error event with %s', async (_, status) => {
    const stream = new PassThrough();
    await start({ lists: [emptyList('10'), emptyList('20')], streams: [stream] });
    stream.write(`{"type":"ERROR","object":${status}}\n`);
    await settle();
    await advance(800);
    expect(sequence()).toEqual(['list', 'watch 10', 'list', 'watch 20']);
  });

  it.each([
    ['an unknown type', '{"type":"RENAMED","object":{}}\n'],
    ['no version', '{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'],
    ['no object', '{"type":"DELETED"}\n'],
    ['a number', '7\n'],
  ])('lists anew after an event with %s', async (_, line) => {
    const stream = new PassThrough();
    await start({ streams: [stream] });
    stream.write(line);
    await settle();
    await advance(800);
    expect(sequence()).toEqual(['list', 'watch 10', 'list', 'watch 99']);
  });

  it('stops while it backs off', async () => {
    await start({ lists: [new ApiUnavailable('no route')] });
    expect(timers.pendingCount).toBe(1);
  });
});
