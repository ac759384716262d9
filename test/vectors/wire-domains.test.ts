import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { afterEach, describe, expect, it } from 'vitest';
import type { Domain } from '../../agent/api/domain.js';
import { parseDomain } from '../../agent/domains/domain-json.js';
import { judgeStaleness, staleCheckSeconds } from '../../agent/domains/staleness.js';
import { parseJson, stringifyJson } from '../../agent/json/lossless.js';
import { SocketState } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { answering, domainJson, TestNode } from '../unit/launcher/node.js';
import { failure } from '../unit/launcher/peers.js';
import { loadVectors } from './load.js';

const maxBytes = 4 * 1024 * 1024;

/** Every value that the agent keeps is the document's; what it leaves out is what it does not name. */
function expectKept(kept: unknown, document: unknown, path: string): void {
  if (kept === undefined) return;
  if (Array.isArray(kept)) {
    const items = (document ?? []) as unknown[];
    expect(kept.length, path).toBe(items.length);
    for (const [i, item] of kept.entries()) expectKept(item, items[i], `${path}[${i}]`);
  } else if (typeof kept === 'object' && kept !== null) {
    for (const [key, value] of Object.entries(kept)) {
      expectKept(value, (document as Record<string, unknown> | null)?.[key], `${path}.${key}`);
    }
  } else {
    const zero = document ?? (typeof kept === 'string' ? '' : typeof kept === 'boolean' ? false : 0);
    expect(String(kept), path).toBe(String(zero));
  }
}

describe('domain_json', () => {
  const cases = loadVectors<object, { domainJSON: object }>('wire', 'domain_json').map(
    ({ name, expected }) => ({
      name,
      text: JSON.stringify(expected.domainJSON).replaceAll('DELETION_TIMESTAMP', '2026-01-02T03:04:05Z'),
    }),
  );
  const samples = ['paused', 'running-agent', 'running', 'shutoff', 'zero'].map((name) => ({
    name: `data/domain-${name}`,
    text: gunzipSync(readFileSync(new URL(`wire/data/domain-${name}.json.gz`, import.meta.url))).toString(
      'utf8',
    ),
  }));
  it.each([...cases, ...samples])('WIRE-019 $name', ({ text }) => {
    expectKept(parseDomain(text), JSON.parse(text), 'Domain');
    expect(JSON.parse(stringifyJson(parseJson(text, maxBytes)))).toEqual(JSON.parse(text));
  });

  it('WIRE-019 numbers beyond 2^53 are kept digit for digit', () => {
    const max = '18446744073709551615';
    const text =
      `{"Spec":{"CurrentMemory":{"Value":${max},"Unit":"b"}},` +
      `"Status":{"GuestPanicInfo":{"Type":"hyper-v","Arg1":${max},"Arg2":0,"Arg3":9007199254740993,"Arg4":1,"Arg5":2}}}`;
    const domain = parseDomain(text);
    expect(domain.Spec.CurrentMemory?.Value).toBe(18446744073709551615n);
    expect(domain.Status.GuestPanicInfo).toEqual({
      Type: 'hyper-v',
      Arg1: max,
      Arg2: '0',
      Arg3: '9007199254740993',
      Arg4: '1',
      Arg5: '2',
    });
    expect(stringifyJson(parseJson(text, maxBytes))).toBe(text);
  });
});

const ref = { namespace: 'ns1', name: 'vm1', uid: 'uid-1' };
const podUid = 'pod-a';
let node: TestNode | undefined;
afterEach(async () => {
  await node?.stop();
  node = undefined;
});

async function startNode(watchdogSeconds = 30): Promise<TestNode> {
  node = new TestNode({ watchdogSeconds });
  await node.start();
  return node;
}

interface Summary {
  readonly name: string;
  readonly namespace: string;
  readonly uid: string;
  readonly specName: string;
  readonly specMetadataKubeVirtUID: string;
  readonly status: string;
  readonly reason: string;
  readonly deletionTimestampSet: boolean;
}

function summary(domain: Domain): Summary {
  return {
    name: domain.ObjectMeta.name,
    namespace: domain.ObjectMeta.namespace,
    uid: domain.ObjectMeta.uid,
    specName: domain.Spec.Name,
    specMetadataKubeVirtUID: domain.Spec.Metadata.KubeVirt.UID,
    status: domain.Status.Status,
    reason: domain.Status.Reason,
    deletionTimestampSet: domain.ObjectMeta.deletionTimestamp !== undefined,
  };
}

function expectSummary(domain: Domain | undefined, expected: Summary): void {
  if (domain === undefined) throw new Error('no domain');
  for (const [key, value] of Object.entries(summary(domain)))
    expect(value, key).toBe(expected[key as keyof Summary]);
}

describe('list_known_domains', () => {
  type Input = { operation?: string; situation: string };
  type Expected = { domains?: Summary[]; events?: { domain: Summary }[] };
  const cases = loadVectors<Input, Expected>('wire', 'list_known_domains');
  // The helper follows no link: it reports what is at the path, and that is not "missing" (as is asked for now).
  const unknownHere = new Set(['dangling symlink']);

  it.each(cases)(
    'WIRE-017 REC-049 $name',
    async ({ name, input, expected }) => {
      const n = await startNode();
      n.record(ref, podUid);
      const ok = '{"ObjectMeta":{"name":"vm1","namespace":"ns1","uid":"uid-1"},';
      const json = `${ok}"Spec":{"Name":"ns1_vm1","Metadata":{"KubeVirt":{"UID":"uid-1"}}},"Status":{"Status":"Running","Reason":"Unknown"}}`;
      const launch = (reply: Parameters<TestNode['launch']>[1]) => n.launch(podUid, reply);
      switch (input.situation) {
        case 'socket missing':
          await n.pod(podUid, { launcherSocket: SocketState.ABSENT });
          break;
        case 'socket directory missing':
          break;
        case 'path is a regular file':
        case 'dangling symlink':
          await n.pod(podUid, { launcherSocket: SocketState.REFUSED });
          n.fake.fail.set('identify', failure('fstat launcher-sock', 'EPERM', true));
          break;
        case 'dead socket (nobody listens)':
          await n.pod(podUid, {});
          n.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
          break;
        case 'launcher answers with a domain':
          await launch(answering(() => json));
          break;
        case 'launcher answers no domain yet':
          await launch(answering(() => ''));
          break;
        case 'launcher answers success=false':
          await launch(() => Buffer.from([0x0a, 0x03, 0x12, 0x01, 0x78]));
          break;
        case 'launcher answers a gRPC error':
          await launch(() => ({ code: 13, message: 'broken' }));
          break;
        case 'launcher answers invalid domain JSON':
          await launch(answering(() => '{'));
          break;
        case 'launcher hangs in GetDomain':
          await launch(() => undefined);
          break;
        default:
          throw new Error(`situation ${input.situation}`);
      }
      if (input.operation === 'periodic resync') {
        await n.watcher.resync();
        expect(n.writes).toHaveLength(expected.events?.length ?? 0);
        for (const { domain } of expected.events ?? []) expectSummary(n.store.get('ns1/vm1'), domain);
        return;
      }
      await n.watcher.start(AbortSignal.timeout(15_000));
      const [domain] = expected.domains ?? [];
      if (unknownHere.has(name)) expect(n.store.get('ns1/vm1')?.Status.Status).toBe('Unknown');
      else if (domain === undefined) expect(n.store.keys()).toEqual([]);
      else expectSummary(n.store.get('ns1/vm1'), domain);
    },
    20_000,
  );
});

/** A socket of the kind that the vectors use, as helper and agent see it. */
async function socketOf(n: TestNode, kind: string): Promise<void> {
  if (kind === 'listening') {
    n.fake.fail.delete('connect');
    await n.launch(
      podUid,
      answering(() => domainJson(ref)),
    );
  } else if (kind === 'dead') {
    await n.pod(podUid, { launcherSocket: SocketState.PRESENT });
    n.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
  } else if (kind === 'missing') {
    await n.pod(podUid, { launcherSocket: SocketState.ABSENT });
  } else if (kind === 'file') {
    await n.pod(podUid, { launcherSocket: SocketState.REFUSED });
  } else {
    throw new Error(`socket ${kind}`);
  }
}

describe('stale_sockets', () => {
  type Input = {
    socket: string;
    firstSeenUnresponsiveSecondsAgo: number | null;
    ghostRecordExists: boolean;
    watchdogTimeoutSeconds: number;
  };
  type Expected = { events: { domain: Summary }[]; markerFileCreated: boolean; stillTracked: boolean };
  const cases = loadVectors<Input, Expected>('wire', 'stale_sockets');
  const now = 1_000_000;
  it.each(cases)('WIRE-017 $name', ({ input, expected }) => {
    // Launchers without a ghost record are not looked at.
    if (!input.ghostRecordExists) {
      expect(expected).toEqual({ events: [], markerFileCreated: false, stillTracked: false });
      return;
    }
    const since =
      input.firstSeenUnresponsiveSecondsAgo === null
        ? undefined
        : now - input.firstSeenUnresponsiveSecondsAgo;
    // What is not a socket is never dialled, so nothing proves that nobody listens: the launcher hangs.
    const liveness = input.socket === 'listening' ? 'alive' : input.socket === 'file' ? 'hung' : 'dead';
    const { gone, deadSince } = judgeStaleness(since, liveness, now, input.watchdogTimeoutSeconds);
    if (input.socket === 'file') {
      expect({ gone, deadSince }).toEqual({ gone: false, deadSince: undefined });
      return;
    }
    expect(gone).toBe(expected.events.length > 0);
    expect(gone).toBe(expected.markerFileCreated);
    expect(deadSince !== undefined).toBe(expected.stillTracked);
  });

  it('looks every 11 s with the default watchdog', () => {
    expect([30, 10, 1].map(staleCheckSeconds)).toEqual([11, 4, 1]);
  });
});

describe('domain-watcher', () => {
  type Step = number | 'tick' | 'up' | 'down';
  type Input = { op: string; steps: Step[]; watchdogTimeoutSeconds: number; ghostRecords?: object[] };
  type Tick = {
    events: { deletionTimestampSet: boolean; name: string; namespace: string; uid: string }[];
    markerFile: boolean;
  };
  const cases = loadVectors<Input, Tick[]>('reconcile', 'domain-watcher');

  it.each(cases.filter(({ input }) => input.op === 'staleSocketTimeline'))(
    'WIRE-015 WIRE-017 REC-045 $name',
    async ({ input, expected }) => {
      const n = await startNode(input.watchdogTimeoutSeconds);
      const vm = { namespace: 'ns', name: 'vm', uid: 'u1' };
      n.record(vm, podUid);
      await socketOf(n, 'dead');
      const ticks: Tick[] = [];
      for (const step of input.steps) {
        if (step === 'up') await socketOf(n, 'listening');
        else if (step === 'down') await socketOf(n, 'dead');
        else if (typeof step === 'number') n.advance(step);
        else {
          const before = n.writes.length;
          await n.watcher.checkStale();
          ticks.push({
            events: n.writes.slice(before).map(([, domain]) => ({
              type: 'MODIFIED',
              deletionTimestampSet: domain?.ObjectMeta.deletionTimestamp !== undefined,
              name: domain?.ObjectMeta.name ?? '',
              namespace: domain?.ObjectMeta.namespace ?? '',
              uid: domain?.ObjectMeta.uid ?? '',
            })),
            markerFile: n.fake.count('markUnresponsive') > 0,
          });
        }
      }
      expect(ticks).toEqual(expected);
    },
    20_000,
  );

  it('WIRE-017 list []', async () => {
    const n = await startNode();
    await n.watcher.start(AbortSignal.timeout(5_000));
    expect(n.store.keys()).toEqual([]);
  });
});
