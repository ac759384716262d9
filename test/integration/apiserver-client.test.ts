/** The agent's client layer against the API server for tests: real TLS, real kubeconfig, real streams. */
import { KubeConfig } from '@kubernetes/client-node';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { cloneJson, type JsonValue, parseJson, stringifyJson } from '../../agent/json/lossless.js';
import { ApiError, ApiUnavailable } from '../../agent/kube/api-error.js';
import { ClientRateLimiter } from '../../agent/kube/client-rate-limiter.js';
import { Informer, type InformerOptions } from '../../agent/kube/informer.js';
import { KubeEventRecorder } from '../../agent/kube/recorder.js';
import { eventResource, nodeResource, vmiResource } from '../../agent/kube/resources.js';
import { RestClient } from '../../agent/kube/rest.js';
import { slimVmi } from '../../agent/kube/slim-vmi.js';
import { systemTimers, type Timers } from '../../agent/kube/timers.js';
import { decodeVmi, sourceSelector, VmiClient } from '../../agent/kube/vmi-api.js';
import { type ApiServer, startApiServer } from '../harness/apiserver/api-server.js';
import type { JsonObject } from '../harness/apiserver/status.js';
import { testLogger } from '../unit/kube/test-logger.js';

const timers = systemTimers();
const node = 'node01';

let api: ApiServer;
let rest: RestClient;
let informers: Informer<Vmi>[];
let lines: string[];

function connect(server: ApiServer, withTimers: Timers = timers): RestClient {
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(server.kubeConfigText);
  const limiter = new ClientRateLimiter(withTimers, { qps: 10_000, burst: 10_000 });
  return new RestClient({ kubeConfig, timers: withTimers, limiter, userAgent: 'virt-agent-test' });
}

beforeEach(async () => {
  api = await startApiServer();
  rest = connect(api);
  informers = [];
  lines = [];
});

afterEach(async () => {
  await Promise.all(informers.map((informer) => informer.stop()));
  rest.close();
  await api.stop();
});

function vmi(name: string, more: JsonObject = {}, where = node): JsonObject {
  return {
    apiVersion: 'kubevirt.io/v1',
    kind: 'VirtualMachineInstance',
    metadata: { namespace: 'ns', name, labels: { 'kubevirt.io/nodeName': where } },
    spec: { domain: { devices: {} } },
    status: { phase: 'Scheduled', nodeName: where },
    ...more,
  };
}

/** Starts an informer and records what its handlers see. */
function watchVmis(options: Partial<InformerOptions<Vmi>> = {}) {
  const seen: string[] = [];
  const waiting: { readonly text: string; readonly resolve: () => void }[] = [];
  const note = (text: string) => {
    seen.push(text);
    for (const entry of waiting) if (entry.text === text) entry.resolve();
  };
  const informer = new Informer<Vmi>({
    rest,
    timers,
    logger: testLogger(lines),
    // No extra length on back-off: the tests wait for it.
    random: () => 0,
    resource: vmiResource,
    labelSelector: sourceSelector(node),
    decode: decodeVmi,
    ...options,
  });
  informer.addHandler({
    add: (object) => note(`add ${object.metadata.name}`),
    update: (before, after) =>
      note(`update ${after.metadata.name} ${before.status.phase}>${after.status.phase}`),
    delete: (object) => note(`delete ${object.metadata.name}`),
  });
  informers.push(informer);
  informer.start();
  /** Resolves when the handlers have seen this. */
  const until = (text: string) =>
    new Promise<void>((resolve) => {
      if (seen.includes(text)) resolve();
      else waiting.push({ text, resolve });
    });
  return { informer, seen, until };
}

const lists = () => api.count({ verb: 'list', plural: 'virtualmachineinstances' });
const watchFilter = { verb: 'watch', plural: 'virtualmachineinstances' };

function setPhase(name: string, phase: string): void {
  api.store.change('virtualmachineinstances', 'ns', name, (copy) => {
    (copy['status'] as JsonObject)['phase'] = phase;
  });
}

describe('Informer', () => {
  it('sees what is there, what comes, changes and goes', async () => {
    api.store.put('virtualmachineinstances', vmi('a'));
    const { informer, seen, until } = watchVmis();
    await informer.whenSynced();
    expect(informer.get('ns/a')?.status.phase).toBe('Scheduled');
    api.store.put('virtualmachineinstances', vmi('b'));
    setPhase('a', 'Running');
    api.store.delete('virtualmachineinstances', 'ns', 'b');
    await until('delete b');
    expect(seen).toEqual(['add a', 'add b', 'update a Scheduled>Running', 'delete b']);
    expect(informer.list().map(({ metadata }) => metadata.name)).toEqual(['a']);
  });

  it('treats an object that ceases to match the selector as gone', async () => {
    api.store.put('virtualmachineinstances', vmi('a'));
    const { informer, until } = watchVmis();
    await informer.whenSynced();
    api.store.put('virtualmachineinstances', vmi('a', {}, 'node02'));
    await until('delete a');
    api.store.put('virtualmachineinstances', vmi('foreign', {}, 'node02'));
    api.store.put('virtualmachineinstances', vmi('mine'));
    await until('add mine');
    expect(informer.list().map(({ metadata }) => metadata.name)).toEqual(['mine']);
  });

  it('hands out objects that cannot be changed', async () => {
    api.store.put('virtualmachineinstances', vmi('a'));
    const { informer } = watchVmis();
    await informer.whenSynced();
    const object = informer.get('ns/a');
    expect(() => {
      if (object !== undefined) object.status.phase = 'Failed';
    }).toThrow(TypeError);
  });

  it('resumes a broken watch from the last version, without listing', async () => {
    const { informer, seen, until } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    api.store.put('virtualmachineinstances', vmi('a'));
    await until('add a');
    api.dropWatches();
    api.store.put('virtualmachineinstances', vmi('b'));
    await until('add b');
    expect(lists()).toBe(1);
    expect(seen).toEqual(['add a', 'add b']);
  });

  it('goes on at once when a watch ends by its timeout', async () => {
    const { informer, until } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    api.store.put('virtualmachineinstances', vmi('a'));
    await until('add a');
    api.endWatches();
    await api.untilCount(watchFilter, 2);
    api.store.put('virtualmachineinstances', vmi('b'));
    await until('add b');
    expect(lists()).toBe(1);
    expect(lines).toEqual([]);
  });

  it('lists anew on 410 and reports what went unseen', async () => {
    api.store.put('virtualmachineinstances', vmi('a'));
    api.store.put('virtualmachineinstances', vmi('b'));
    const { informer, seen, until } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    api.dropWatches();
    api.store.delete('virtualmachineinstances', 'ns', 'a');
    setPhase('b', 'Running');
    api.expireHistory();
    await until('update b Scheduled>Running');
    expect(seen).toEqual(['add a', 'add b', 'delete a', 'update b Scheduled>Running']);
    expect(informer.get('ns/a')).toBeUndefined();
    expect(lists()).toBe(2);
  });

  it('moves on with bookmarks, so that expired history does not matter', async () => {
    const { informer, until } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    // Changes of other objects only: without a bookmark the informer would stay at an old version.
    api.store.put('configmaps', { metadata: { namespace: 'ns', name: 'other' } });
    api.sendBookmarks();
    api.expireHistory();
    api.endWatches();
    await api.untilCount(watchFilter, 2);
    api.store.put('virtualmachineinstances', vmi('a'));
    await until('add a');
    expect(lists()).toBe(1);
  });

  it('lists anew when the stream cannot be understood', async () => {
    const { informer, until } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    api.writeToWatches('{"type":"ADDED","object":\n');
    await api.untilCount({ verb: 'list' }, 2);
    expect(lines.join('')).toContain('watch line is not JSON');
    await api.untilCount(watchFilter, 2);
    api.writeToWatches('{"type":"MODIFIED","object":{"metadata":{"name":"../../etc","namespace":"ns"}}}\n');
    await api.untilCount({ verb: 'list' }, 3);
    expect(lines.join('')).toContain('metadata.name is not a valid name');
    api.store.put('virtualmachineinstances', vmi('a'));
    await until('add a');
    expect(informer.list()).toHaveLength(1);
  });

  it('lists in pages of 500 and starts over when a page has expired', async () => {
    for (let n = 0; n < 1201; n++) api.store.put('virtualmachineinstances', vmi(`vm-${n}`));
    const list = { verb: 'list', plural: 'virtualmachineinstances' };
    const first = watchVmis();
    await first.informer.whenSynced();
    expect(first.informer.list()).toHaveLength(1201);
    expect(lists()).toBe(3);
    expect(api.requests.filter(({ query }) => query.includes('limit=500'))).toHaveLength(3);
    const second = watchVmis();
    await api.untilCount(list, 4);
    api.expireHistory();
    await second.informer.whenSynced();
    expect(second.informer.list()).toHaveLength(1201);
    // One page, one refused, three pages again.
    expect(lists()).toBe(3 + 1 + 1 + 3);
    expect(api.requests.filter(({ status }) => status === 410)).toHaveLength(1);
  });

  it('comes back after errors of the server, each reported', async () => {
    api.faults.fail({ verb: 'list', status: 500, count: 2 });
    const { informer } = watchVmis();
    await informer.whenSynced();
    const failures = lines.filter((line) => line.includes('failed, listing again'));
    expect(failures.map((line) => JSON.parse(line).reason)).toEqual(
      new Array(2).fill('a fault that the test asked for'),
    );
    expect(lists()).toBe(3);
  });

  it('keeps only a part of foreign VMIs, which then cannot be written', async () => {
    api.store.put('virtualmachineinstances', vmi('mine'));
    api.store.put('virtualmachineinstances', vmi('foreign', {}, 'node02'));
    const { informer } = watchVmis({ labelSelector: '', transform: slimVmi(node) });
    await informer.whenSynced();
    const foreign = informer.get('ns/foreign');
    expect(foreign?.status.nodeName).toBe('node02');
    expect(foreign?.apiVersion).toBeUndefined();
    expect(informer.get('ns/mine')?.apiVersion).toBe('kubevirt.io/v1');
    await expect(new VmiClient(rest).update(cloneJson(foreign as Vmi))).rejects.toThrow(/cannot be written/);
    expect(api.count({ verb: 'update' })).toBe(0);
  });

  it('stops while its watch is open and leaves no connection behind', async () => {
    const { informer, seen } = watchVmis();
    await informer.whenSynced();
    await api.untilCount(watchFilter, 1);
    await informer.stop();
    api.store.put('virtualmachineinstances', vmi('late'));
    expect(seen).toEqual([]);
    await expect.poll(() => api.openWatches).toBe(0);
  });
});

describe('RestClient', () => {
  it('brings large numbers, 1.0 and unknown fields through a PUT unchanged', async () => {
    const text =
      '{"big":9007199254740993123,"one":1.0,"exponent":1e400,"nested":[{"x":-0}],"__proto__":{"y":1}}';
    const odd = parseJson(text, 1e6);
    api.store.put('virtualmachineinstances', vmi('a', { fromTheFuture: odd }));
    const { informer } = watchVmis();
    await informer.whenSynced();
    const copy = cloneJson(informer.get('ns/a') as Vmi);
    copy.status.phase = 'Running';
    const answer = await new VmiClient(rest).update(copy);
    expect(answer.metadata.resourceVersion).not.toBe(copy.metadata.resourceVersion);
    const stored = api.store.get('virtualmachineinstances', 'ns', 'a');
    expect(stringifyJson(stored?.['fromTheFuture'])).toBe(text);
    expect(stored?.['status']).toMatchObject({ phase: 'Running' });
  });

  it('tells a conflict apart', async () => {
    api.store.put('virtualmachineinstances', vmi('a'));
    const { informer } = watchVmis();
    await informer.whenSynced();
    const old = cloneJson(informer.get('ns/a') as Vmi);
    setPhase('a', 'Running');
    old.status.phase = 'Failed';
    const error = await new VmiClient(rest).update(old).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ status: 409, reason: 'Conflict' });
    expect((error as ApiError).message).toBe(
      'Operation cannot be fulfilled on virtualmachineinstances.kubevirt.io "a": the object has been modified; please apply your changes to the latest version and try again',
    );
  });

  it('waits as long as a 429 asks and repeats the request', async () => {
    api.faults.fail({ verb: 'get', status: 429, reason: 'TooManyRequests', retryAfterSeconds: 1 });
    const startedAt = Date.now();
    await rest
      .get(nodeResource, '', node)
      .catch((error: unknown) => expect(error).toMatchObject({ status: 404 }));
    expect(Date.now() - startedAt).toBeGreaterThanOrEqual(1000);
    expect(api.count({ verb: 'get', name: node })).toBe(2);
  });

  it('gives the 429 to the caller when the wait would exceed the deadline', async () => {
    api.faults.fail({ verb: 'get', status: 429, reason: 'TooManyRequests', retryAfterSeconds: 60 });
    const call = rest.get(nodeResource, '', node, { timeoutMs: 5000 });
    await expect(call).rejects.toMatchObject({ status: 429, reason: 'TooManyRequests', retryAfter: 60 });
  });

  it('ends a call at its deadline', async () => {
    const release = api.faults.hold({ verb: 'get' });
    const call = rest.get(nodeResource, '', node, { timeoutMs: 50 });
    await expect(call).rejects.toThrow('GET /api/v1/nodes/node01 was not answered within 50 ms');
    release();
  });

  it('patches the own node', async () => {
    api.store.put('nodes', { metadata: { name: node, labels: { a: 'b' } } });
    await rest.patch(nodeResource, '', node, 'strategic', {
      metadata: { labels: { 'kubevirt.io/schedulable': 'false' } },
    });
    expect(api.store.get('nodes', '', node)?.['metadata']).toMatchObject({
      labels: { a: 'b', 'kubevirt.io/schedulable': 'false' },
    });
  });

  it('fails clearly when nobody is there, or trust is missing', async () => {
    const other = await startApiServer();
    const config = JSON.parse(other.kubeConfigText);
    config.clusters[0].cluster['certificate-authority-data'] = Buffer.from(api.ca).toString('base64');
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromString(JSON.stringify(config));
    const stranger = new RestClient({
      kubeConfig,
      timers,
      limiter: new ClientRateLimiter(timers),
      userAgent: 'x',
    });
    await expect(stranger.getPath('/version')).rejects.toThrow(/GET https:.*\/version: .*certificate/);
    stranger.close();
    const unauthorized = { ...config, users: [{ name: 'test', user: { token: 'wrong' } }] };
    unauthorized.clusters[0].cluster['certificate-authority-data'] = Buffer.from(other.ca).toString('base64');
    kubeConfig.loadFromString(JSON.stringify(unauthorized));
    const refused = new RestClient({
      kubeConfig,
      timers,
      limiter: new ClientRateLimiter(timers),
      userAgent: 'x',
    });
    await expect(refused.getPath('/version')).rejects.toMatchObject({ status: 401, reason: 'Unauthorized' });
    refused.close();
    const gone = connect(other);
    await other.stop();
    await expect(gone.getPath('/version')).rejects.toBeInstanceOf(ApiUnavailable);
    gone.close();
  });

  it('speaks plain http where the kubeconfig says so', async () => {
    const plain = await startApiServer({ plain: true });
    const client = connect(plain);
    expect(await client.getPath('/version')).toMatchObject({ major: '1' });
    client.close();
    await plain.stop();
  });

  it('keeps connections: many calls, few sockets', async () => {
    for (let n = 0; n < 50; n++) await rest.getPath('/version');
    await Promise.all(Array.from({ length: 40 }, () => rest.getPath('/version')));
    expect(api.connectionsAccepted).toBeLessThanOrEqual(41);
  });
});

describe('KubeEventRecorder', () => {
  it('writes events that the API keeps and counts', async () => {
    const recorder = new KubeEventRecorder({
      rest,
      timers,
      logger: testLogger(lines),
      component: 'virt-handler',
      host: node,
    });
    const reference = { namespace: 'ns', name: 'vm', uid: 'u1' };
    recorder.event(reference, 'Normal', 'ShuttingDown', 'Signaled Graceful Shutdown');
    recorder.event(reference, 'Normal', 'ShuttingDown', 'Signaled Graceful Shutdown');
    await recorder.flush();
    const list = (await rest.list(eventResource, 'ns', {
      fieldSelector: 'involvedObject.uid=u1,reason=ShuttingDown',
    })) as { items: JsonValue[] };
    expect(list.items).toHaveLength(1);
    expect(list.items[0]).toMatchObject({ count: 2, source: { component: 'virt-handler', host: node } });
    expect(lines).toEqual([]);
    await recorder.stop();
  });
});
