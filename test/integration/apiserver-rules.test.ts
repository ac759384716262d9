/** Rules of the real API server that the agent depends on, checked on the one for tests. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { JsonValue } from '../../agent/json/lossless.js';
import { type ApiServer, startApiServer } from '../harness/apiserver/api-server.js';
import { kindOf } from '../harness/apiserver/kinds.js';
import { applyPatch } from '../harness/apiserver/patch.js';
import { parseSelector } from '../harness/apiserver/selectors.js';
import type { JsonObject } from '../harness/apiserver/status.js';

let api: ApiServer;
beforeEach(async () => {
  api = await startApiServer({ plain: true });
});
afterEach(() => api.stop());

async function call(method: string, path: string, body?: JsonValue, type = 'application/json') {
  const answer = await fetch(`${api.url}${path}`, {
    method,
    headers: { Authorization: `Bearer ${api.token}`, 'Content-Type': type },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { code: answer.status, headers: answer.headers, body: (await answer.json()) as JsonObject };
}

const vmis = '/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances';
const vmi = (metadata: JsonObject = {}, rest: JsonObject = {}): JsonObject => ({
  apiVersion: 'kubevirt.io/v1',
  kind: 'VirtualMachineInstance',
  metadata: { name: 'vm', ...metadata },
  spec: { domain: {} },
  ...rest,
});
const metadata = (object: JsonObject) => object['metadata'] as JsonObject;

describe('objects', () => {
  it('get UID, version, generation and time from the server', async () => {
    const { code, body } = await call('POST', vmis, vmi({ uid: 'mine', generation: 7 }));
    expect(code).toBe(201);
    expect(metadata(body)).toMatchObject({
      name: 'vm',
      namespace: 'ns',
      uid: expect.stringMatching(/^[0-9a-f-]{36}$/),
      resourceVersion: expect.stringMatching(/^\d+$/),
      generation: 1,
      creationTimestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
    });
    expect((await call('POST', vmis, vmi())).body).toMatchObject({ code: 409, reason: 'AlreadyExists' });
  });

  it('are updated only from the version that was read, and a VMI only with one', async () => {
    const { body: first } = await call('POST', vmis, vmi());
    const second = await call('PUT', `${vmis}/vm`, { ...first, status: { phase: 'Running' } });
    expect(second.code).toBe(200);
    expect(Number(metadata(second.body)['resourceVersion'])).toBeGreaterThan(
      Number(metadata(first)['resourceVersion']),
    );
    // The VMI has no status subresource: its status counts.
    expect(metadata(second.body)['generation']).toBe(2);
    expect((await call('PUT', `${vmis}/vm`, first)).body).toMatchObject({ code: 409, reason: 'Conflict' });
    expect((await call('PUT', `${vmis}/vm`, vmi())).body).toMatchObject({ code: 422, reason: 'Invalid' });
    expect((await call('PUT', `${vmis}/vm/status`, first)).code).toBe(404);
  });

  it('keep their version when a write changes nothing, and nobody hears of it', async () => {
    const { body: first } = await call('POST', vmis, vmi());
    const { body: second } = await call('PUT', `${vmis}/vm`, first);
    expect(metadata(second)['resourceVersion']).toBe(metadata(first)['resourceVersion']);
  });

  it('with finalizers stay until the last is gone', async () => {
    const { body } = await call('POST', vmis, vmi({ finalizers: ['a'] }));
    const marked = await call('DELETE', `${vmis}/vm`);
    expect(metadata(marked.body)['deletionTimestamp']).toBeDefined();
    const more = { ...marked.body, metadata: { ...metadata(marked.body), finalizers: ['a', 'b'] } };
    expect((await call('PUT', `${vmis}/vm`, more)).code).toBe(422);
    const free = { ...marked.body, metadata: { ...metadata(marked.body), finalizers: [] } };
    expect((await call('PUT', `${vmis}/vm`, free)).code).toBe(200);
    expect((await call('GET', `${vmis}/vm`)).code).toBe(404);
    expect(metadata((await call('POST', vmis, vmi())).body)['uid']).not.toBe(metadata(body)['uid']);
  });

  it('with a status subresource have their status written there only', async () => {
    const path = '/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts';
    const kubevirt = { apiVersion: 'kubevirt.io/v1', kind: 'KubeVirt', metadata: { name: 'kv' }, spec: {} };
    const { body } = await call('POST', path, { ...kubevirt, status: { phase: 'Deployed' } });
    expect(body['status']).toBeUndefined();
    const written = await call('PUT', `${path}/kv/status`, {
      ...body,
      spec: { x: 1 },
      status: { phase: 'Deployed' },
    });
    expect(written.body).toMatchObject({
      spec: {},
      status: { phase: 'Deployed' },
      metadata: { generation: 1 },
    });
    const again = await call('PUT', `${path}/kv`, { ...written.body, status: {} });
    expect(again.body['status']).toEqual({ phase: 'Deployed' });
  });

  it('of pods end in two steps when they run on a node', async () => {
    const pods = '/api/v1/namespaces/ns/pods';
    await call('POST', pods, { metadata: { name: 'p' }, spec: { nodeName: 'node01' } });
    expect(metadata((await call('DELETE', `${pods}/p`)).body)['deletionGracePeriodSeconds']).toBe(30);
    expect((await call('GET', `${pods}/p`)).code).toBe(200);
    await call('DELETE', `${pods}/p?gracePeriodSeconds=0`);
    expect((await call('GET', `${pods}/p`)).code).toBe(404);
  });

  it('are refused with a Status: no token, unknown path, wrong kind, no JSON', async () => {
    expect((await fetch(`${api.url}/api`)).status).toBe(401);
    expect((await call('GET', '/apis/nobody.io/v1/things')).body).toMatchObject({
      kind: 'Status',
      code: 404,
    });
    expect((await call('POST', vmis, { ...vmi(), kind: 'Pod' })).body).toMatchObject({
      reason: 'BadRequest',
    });
    const answer = await fetch(`${api.url}${vmis}`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${api.token}` },
      body: '{',
    });
    expect(answer.status).toBe(400);
  });
});

describe('watch', () => {
  /** All lines of a watch that ends after a second at the latest. */
  async function watch(query: string): Promise<JsonObject[]> {
    const answer = await fetch(`${api.url}${vmis}?watch=1&timeoutSeconds=1&${query}`, {
      headers: { Authorization: `Bearer ${api.token}` },
    });
    const text = await answer.text();
    return text
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as JsonObject);
  }
  const put = (labels: JsonObject) =>
    api.store.put('virtualmachineinstances', vmi({ namespace: 'ns', labels }));

  it('replays what happened since a version, as the selector sees it', async () => {
    const since = metadata(put({ node: 'a' }))['resourceVersion'];
    put({ node: 'b' });
    put({ node: 'b', x: 'y' });
    put({ node: 'a' });
    api.store.delete('virtualmachineinstances', 'ns', 'vm');
    const types = async (selector: string) =>
      (await watch(`resourceVersion=${since}&labelSelector=${selector}`)).map(({ type }) => type);
    expect(await types('node=b')).toEqual(['ADDED', 'MODIFIED', 'DELETED']);
    expect(await types('node=a')).toEqual(['DELETED', 'ADDED', 'DELETED']);
  });

  it('begins with what is there when no version is given', async () => {
    put({});
    expect((await watch('')).map(({ type }) => type)).toEqual(['ADDED']);
  });

  it('ends with a bookmark when asked to, and with 410 when the version is too old', async () => {
    const { body } = await call('GET', vmis);
    const version = String(metadata(body)['resourceVersion']);
    const [bookmark] = await watch(`resourceVersion=${version}&allowWatchBookmarks=true`);
    expect(bookmark).toMatchObject({ type: 'BOOKMARK', object: { metadata: { resourceVersion: version } } });
    put({});
    api.expireHistory();
    const [error] = await watch(`resourceVersion=${version}`);
    expect(error).toMatchObject({ type: 'ERROR', object: { code: 410, reason: 'Expired' } });
  });

  it('forgets more changes than the history holds', async () => {
    const small = await startApiServer({ plain: true, maxHistory: 3 });
    try {
      for (let n = 0; n < 5; n++)
        small.store.put('configmaps', { metadata: { namespace: 'ns', name: `c${n}` } });
      const path = '/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion=1001';
      const answer = await fetch(`${small.url}${path}`, {
        headers: { Authorization: `Bearer ${small.token}` },
      });
      expect(await answer.text()).toContain('too old resource version');
    } finally {
      await small.stop();
    }
  });
});

describe('faults', () => {
  it('answer as told, as often as told, to whom they are meant', async () => {
    api.faults.fail({ verb: 'list', status: 429, reason: 'TooManyRequests', retryAfterSeconds: 3, count: 2 });
    expect((await call('GET', `${vmis}/vm`)).code).toBe(404);
    const refused = await call('GET', vmis);
    expect([refused.code, refused.headers.get('retry-after')]).toEqual([429, '3']);
    expect((await call('GET', vmis)).code).toBe(429);
    expect((await call('GET', vmis)).code).toBe(200);
    expect(api.requests.map(({ verb, status }) => `${verb} ${status}`)).toEqual([
      'get 404',
      'list 429',
      'list 429',
      'list 200',
    ]);
  });
});

describe('selectors', () => {
  const object = { metadata: { name: 'n', labels: { a: '1', 'k.io/b': 'x' } }, spec: { nodeName: 'node01' } };
  it.each([
    ['a=1', true],
    ['a==1,k.io/b in (x, y)', true],
    ['a!=1', false],
    ['missing!=1', true],
    ['a notin (1,2)', false],
    ['missing notin (1)', true],
    ['a', true],
    ['!a', false],
    ['!missing,k.io/b', true],
    ['a in (2)', false],
  ])('labels %s', (text, expected) => {
    expect(parseSelector(text, null)(object)).toBe(expected);
  });
  it.each([
    ['metadata.name=n,spec.nodeName=node01', true],
    ['spec.nodeName!=node01', false],
    ['status.phase=', true],
  ])('fields %s', (text, expected) => {
    expect(parseSelector(null, text)(object)).toBe(expected);
  });
  it('that cannot be read are refused', () => {
    expect(() => parseSelector('a in 1', null)).toThrow('unable to parse requirement');
    expect(() => parseSelector(null, 'nonsense')).toThrow('invalid field selector');
  });
});

describe('patches', () => {
  const node = kindOf('nodes');
  const before = { metadata: { name: 'n', labels: { a: '1', b: '2' } }, list: [1, 2] };
  it('merge: null removes, lists are replaced', () => {
    const patch = { metadata: { labels: { a: null, c: '3' } }, list: [3] };
    expect(applyPatch(node, 'application/merge-patch+json', before, patch)).toEqual({
      metadata: { name: 'n', labels: { b: '2', c: '3' } },
      list: [3],
    });
    expect(before.metadata.labels.a).toBe('1');
  });
  it('JSON: in order, tests included', () => {
    const patch = [
      { op: 'test', path: '/metadata/labels/a', value: '1' },
      { op: 'add', path: '/metadata/labels/x~1y', value: 'z' },
      { op: 'remove', path: '/metadata/labels/b' },
      { op: 'add', path: '/list/-', value: 3 },
      { op: 'replace', path: '/list/0', value: 0 },
    ];
    expect(applyPatch(node, 'application/json-patch+json', before, patch)).toEqual({
      metadata: { name: 'n', labels: { a: '1', 'x/y': 'z' } },
      list: [0, 2, 3],
    });
    const failing = [{ op: 'test', path: '/metadata/labels/a', value: '2' }];
    expect(() => applyPatch(node, 'application/json-patch+json', before, failing)).toThrow('failed');
  });
  it('strategic: keyed lists for built-in kinds, refused for custom ones', () => {
    const type = 'application/strategic-merge-patch+json';
    const conditions = [
      { type: 'Ready', status: 'True', reason: 'x' },
      { type: 'Disk', status: 'False' },
    ];
    const patch = { status: { conditions: [{ type: 'Ready', status: 'False' }] } };
    expect(applyPatch(node, type, { status: { conditions } }, patch)).toEqual({
      status: {
        conditions: [
          { type: 'Ready', status: 'False', reason: 'x' },
          { type: 'Disk', status: 'False' },
        ],
      },
    });
    expect(() => applyPatch(kindOf('virtualmachineinstances'), type, {}, {})).toThrow('unknown format');
  });
});
