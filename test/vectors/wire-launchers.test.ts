import { afterEach, describe, expect, it } from 'vitest';
import type { PodState } from '../../agent/helper/pod-state.js';
import {
  findSocket,
  hasPodDirectory,
  isSocketUnresponsive,
  launcherSocketPath,
  podUidOfSocket,
} from '../../agent/launcher/sockets.js';
import { SocketState } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { answering, domainJson, TestNode, vmiWithPods } from '../unit/launcher/node.js';
import { failure } from '../unit/launcher/peers.js';
import { loadVectors } from './load.js';

/** What the helper reports for the kinds of entries that the vectors put on disk. */
function podState(
  podUid: string,
  socketsDir: string,
  launcherSock: string,
  marker = 'missing',
): PodState | undefined {
  if (socketsDir === 'missing') return undefined;
  const base = {
    podUid,
    containerDisks: [],
    kernelBoot: false,
    containerDiskBinary: false,
    launcherExited: false,
  };
  if (socketsDir === 'file')
    return { ...base, directory: false, launcherSocket: 'absent', unresponsiveMarker: false };
  if (socketsDir !== 'dir') {
    return { ...base, directory: false, launcherSocket: 'refused', unresponsiveMarker: false };
  }
  const launcherSocket =
    launcherSock === 'socket' ? 'present' : launcherSock === 'missing' ? 'absent' : 'refused';
  return { ...base, directory: true, launcherSocket, unresponsiveMarker: marker !== 'missing' };
}

describe('find_socket', () => {
  type Pod = { uid: string; host: string; launcherSock: string; socketsDir: string };
  type Input = { activePods: Pod[]; nodeName: string };
  type Expected = { error?: string; socket: string; podDir?: string; podDirError?: string };
  const cases = loadVectors<Input, Expected>('wire', 'find_socket');
  // KubeVirt does not look at the file type; here a file or directory is not a socket.
  const odd = ({ activePods }: Input) => activePods.some((pod) => ['file', 'dir'].includes(pod.launcherSock));

  it.each(cases)('WIRE-001 $name', ({ input, expected }) => {
    const states = new Map(
      input.activePods.map((pod) => [pod.uid, podState(pod.uid, pod.socketsDir, pod.launcherSock)]),
    );
    const activePods = Object.fromEntries(input.activePods.map((pod) => [pod.uid, pod.host]));
    const search = findSocket(activePods, input.nodeName, (uid) => states.get(uid), undefined);
    if (expected.podDir !== undefined) {
      expect(hasPodDirectory(activePods, (uid) => states.get(uid))).toBe(expected.podDir !== '');
    }
    if (odd(input)) {
      const sockets = input.activePods.filter(
        (pod) => pod.launcherSock === 'socket' && (input.nodeName === '' || pod.host === input.nodeName),
      );
      const kinds = ['none', 'found', 'multiple'] as const;
      expect(search.kind).toBe(kinds[Math.min(sockets.length, 2)]);
      return;
    }
    if (search.kind === 'found') expect(launcherSocketPath(search.podUid)).toBe(expected.socket);
    else
      expect(expected.error).toContain(
        search.kind === 'none' ? 'No command socket' : 'Found multiple sockets',
      );
  });

  it('WIRE-001 a pod UID that is not a plain path segment is never looked at', () => {
    const looked: string[] = [];
    const state = (uid: string) => {
      looked.push(uid);
      return podState(uid, 'dir', 'socket');
    };
    for (const uid of ['../pod-b', 'a/b', '.', '..', '', 'a\0b', 'x'.repeat(65)]) {
      expect(findSocket({ [uid]: 'node01' }, 'node01', state, undefined)).toEqual({ kind: 'none' });
      expect(hasPodDirectory({ [uid]: 'node01' }, state)).toBe(false);
      expect(podUidOfSocket(launcherSocketPath(uid))).toBeUndefined();
    }
    expect(looked).toEqual([]);
  });
});

describe('socket_unresponsive', () => {
  type Input = { socketsDir: string; launcherSock: string; marker: string };
  type Expected = { unresponsive: boolean; unresponsiveAfterMark: boolean; markError: string };
  const cases = loadVectors<Input, Expected>('wire', 'socket_unresponsive');
  it.each(cases)('WIRE-007 $name', ({ input, expected }) => {
    const state = podState('pod', input.socketsDir, input.launcherSock, input.marker);
    expect(isSocketUnresponsive(state)).toBe(expected.unresponsive);
    if (expected.markError !== '') return;
    expect(isSocketUnresponsive(podState('pod', input.socketsDir, input.launcherSock, 'file'))).toBe(
      expected.unresponsiveAfterMark,
    );
  });
});

const ref = { namespace: 'ns', name: 'vm', uid: 'u1' };
let node: TestNode | undefined;
afterEach(async () => {
  await node?.stop();
  node = undefined;
});

async function startNode(nodeName?: string): Promise<TestNode> {
  node = new TestNode(nodeName === undefined ? {} : { nodeName });
  await node.start();
  return node;
}

describe('launcher_unresponsive', () => {
  type Input = {
    cachedEntry: 'none' | 'ready' | 'not-ready';
    notInitializedForSeconds: number;
    socket: string;
    socketsDirExists: boolean;
    unresponsiveMarker: boolean;
  };
  type Expected = {
    unresponsive: boolean;
    initialized: boolean;
    cacheAfter: { notInitializedSinceAgeSeconds: number };
  };
  const cases = loadVectors<Input, Expected>('wire', 'launcher_unresponsive');
  it.each(cases)('WIRE-007 $name', async ({ input, expected }) => {
    const n = await startNode();
    const pods = { 'pod-a': 'node01' };
    const vmi = vmiWithPods(ref, pods);
    if (input.cachedEntry === 'ready') {
      await n.pod('pod-a', {});
      await n.clients.isUnresponsive(vmi);
    } else if (input.cachedEntry === 'not-ready') {
      await n.pod('pod-a', { launcherSocket: SocketState.ABSENT });
      await n.clients.isUnresponsive(vmi);
    }
    n.advance(input.notInitializedForSeconds);
    for (const podUid of Object.keys(pods)) {
      if (input.socketsDirExists) {
        await n.pod(podUid, {
          directory: true,
          launcherSocket: input.socket === 'missing' ? SocketState.ABSENT : SocketState.PRESENT,
          unresponsiveMarker: input.unresponsiveMarker,
        });
      } else {
        await n.gone(podUid);
      }
    }
    expect(await n.clients.isUnresponsive(vmi)).toEqual({
      unresponsive: expected.unresponsive,
      initialized: expected.initialized,
    });
    const since = n.clients.notInitializedSince('u1') ?? 0;
    expect((n.clock.now() - since) / 1000).toBe(expected.cacheAfter.notInitializedSinceAgeSeconds);
  });
});

describe('launcher-socket', () => {
  type Step = { op: string; pod?: string; seconds?: number };
  type Input = { activePods: Record<string, string>; nodeName: string; steps: Step[] };
  type Probe = { unresponsive: boolean; initialized: boolean };
  const cases = loadVectors<Input, Probe[]>('reconcile', 'launcher-socket').filter(
    ({ input }) => 'steps' in input,
  );
  it.each(cases)('REC-042 REC-043 $name', async ({ input, expected }) => {
    const n = await startNode(input.nodeName);
    let vmi = vmiWithPods(ref, input.activePods);
    const probes: Probe[] = [];
    for (const { op, pod = '', seconds = 0 } of input.steps) {
      if (op === 'probe') probes.push(await n.clients.isUnresponsive(vmi));
      else if (op === 'advance') n.advance(seconds);
      else if (op === 'mkdir') await n.pod(pod, { launcherSocket: SocketState.ABSENT });
      else if (op === 'socket') await n.pod(pod, { directory: true, launcherSocket: SocketState.PRESENT });
      else if (op === 'mark') await n.pod(pod, { unresponsiveMarker: true });
      else if (op === 'symlinkdir')
        await n.pod(pod, { directory: false, launcherSocket: SocketState.REFUSED });
      else if (op === 'rmpod') await n.gone(pod);
      else if (op === 'rmsocket') await n.pod(pod, { launcherSocket: SocketState.ABSENT });
      else if (op === 'close') await n.clients.close(ref);
      else throw new Error(`step ${op}`);
      vmi = vmiWithPods(ref, input.activePods);
    }
    expect(probes).toEqual(expected.map(({ unresponsive, initialized }) => ({ unresponsive, initialized })));
  });

  type FindInput = { activePods: { uid: string; node: string; onDisk: string }[]; nodeName: string };
  const finds = loadVectors<FindInput, { error: string | null; socket: string }>(
    'reconcile',
    'launcher-socket',
  ).filter(({ input }) => Array.isArray(input.activePods));
  it.each(finds)('WIRE-001 $name', ({ input, expected }) => {
    const kinds: Record<string, string> = { socket: 'socket', dir: 'missing' };
    const states = new Map(
      input.activePods.map(({ uid, onDisk }) => [
        uid,
        podState(uid, onDisk === 'absent' ? 'missing' : 'dir', kinds[onDisk] ?? 'missing'),
      ]),
    );
    const activePods = Object.fromEntries(input.activePods.map((pod) => [pod.uid, pod.node]));
    const search = findSocket(activePods, input.nodeName, (uid) => states.get(uid), undefined);
    if (search.kind === 'found') expect(`<root>/${search.podUid}`).toBe(expected.socket.split('/volumes')[0]);
    else
      expect(expected.error).toContain(
        search.kind === 'none' ? 'No command socket' : 'Found multiple sockets',
      );
  });
});

describe('get_launcher_client', () => {
  type Expected = { error: string | null; ghostRecordFiles: string[]; clientReturned: boolean };
  const cases = loadVectors<{ situation: string }, Expected>('wire', 'get_launcher_client');
  const vmi = vmiWithPods(ref, { 'pod-a': 'node01' });
  const running = answering(() => domainJson(ref));

  /**
   * Cases about what v1.9.0 does inside the pod (isolation, resolving /var/run/kubevirt, the proxy behind the
   * pipe): here the helper does that through the volume's descriptor. Its refusal is what is left to see.
   */
  const inThePod: Record<string, string> = {
    'isolation detection fails': 'connect',
    'share dir missing in pod': 'listen',
    'pipe path is a symlink': 'listen',
  };
  const notHere = new Set(['proxy: notify server down']);

  it.each(cases.filter(({ name }) => !notHere.has(name)))(
    'WIRE-009 AFT-020 $name',
    async ({ name, expected }) => {
      const n = await startNode();
      const both = vmiWithPods(ref, { 'pod-a': 'node01', 'pod-b': 'node01' });
      const refused = inThePod[name];
      if (refused !== undefined) n.fake.fail.set(refused, failure(name, 'EPERM', true));
      if (name === 'ghost record exists with other uid') n.record({ ...ref, uid: 'old' }, 'pod-of-old');
      if (name === 'ghost record exists identical') n.record(ref, 'pod-a');
      // Of the same VMI with a socket that is gone: the record is replaced.
      const replaced = /^ghost record exists .*socket/.test(name);
      if (replaced) n.record(ref, 'pod-of-old');
      const launcher = name === 'no socket' ? undefined : await n.launch('pod-a', running);
      if (name === 'version 42 only' && launcher !== undefined)
        launcher.versions = Buffer.from([0x0a, 0x01, 42]);
      if (name === 'two sockets on node') await n.launch('pod-b', running);
      if (name === 'socket dead')
        n.fake.fail.set('connect', failure('connect launcher-sock', 'ECONNREFUSED'));
      const outcome = await n.clients.get(name === 'two sockets on node' ? both : vmi).then(
        () => null,
        (error: Error) => error.message,
      );
      if (expected.error === null || replaced) expect(outcome).toBeNull();
      else if (refused !== undefined || name === 'socket dead') expect(outcome).not.toBeNull();
      else expect(outcome).toBe(expected.error);
      // A failed connect keeps the record of what may be a running VM.
      const keeps = refused !== undefined || ['version 42 only', 'socket dead'].includes(name);
      expect(n.recordFiles()).toEqual(keeps ? ['u1'] : expected.ghostRecordFiles);
      await n.clients.close(ref);
      await n.clients.forget(ref);
      if (outcome === null) expect(n.recordFiles()).toEqual([]);
    },
  );
});
