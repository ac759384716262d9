import {
  existsSync,
  lstatSync,
  readFileSync,
  statSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type ListenOptions } from 'node:net';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { HelperService } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { AppendOnly, InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { PodService, SocketState } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodListener, PodSocket, SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { olderFiles } from '../../privhelper/audit/file.js';
import { inspection, table } from '../../privhelper/dispatch.js';
import { run, waitFor } from '../harness/pods/run.js';
import { echo, failureOf, HelperProcess, helperUser, qemuUser, TestPod } from './privhelper-fixture.js';

const isRoot = process.getuid?.() === 0;
const notifyName = 'domain-notify-pipe.sock';
const notify = ({ ref }: TestPod) => ({ pod: ref, listener: PodListener.NOTIFY });

/** Permitted set of this process. */
function ownCapabilities(): bigint {
  const [, digits = '0'] = /^CapPrm:\t(\S+)$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? [];
  return BigInt(`0x${digits}`);
}

describe.runIf(isRoot)('the helper on real kernel objects', () => {
  let helper: HelperProcess;
  const pods: TestPod[] = [];

  function pod(...volumes: string[]): TestPod {
    const made = volumes.length === 0 ? new TestPod(helper) : new TestPod(helper, volumes);
    pods.push(made);
    return made;
  }

  beforeAll(async () => {
    helper = new HelperProcess();
    await helper.start();
  });
  afterEach(async () => {
    await Promise.all(pods.splice(0).map((each) => each.destroy()));
    helper.disconnect();
  });
  afterAll(async () => {
    await helper.destroy();
  });

  it('STO-035 says once, at its start, what the kernel lacks and what it does instead', async () => {
    // The choices are made call by call, by what the kernel answers; the line tells which they will be.
    const lines = helper.stderr.split('\n').filter((line) => line.includes(' is missing ('));
    const lacking = helper.native
      .probeKernel()
      .filter(({ error }) => !['', 'EPERM', 'EACCES'].includes(error));
    expect(lines.map((line) => JSON.parse(line).msg.split(' is missing')[0])).toEqual(
      lacking.map(({ name }) => name),
    );
  });

  it('has capabilities in its privileged threads only, and none in effect', async () => {
    // With SYS_RESOURCE where there is one to be had.
    const union = 0x8ac168fn | (ownCapabilities() & (1n << 24n));
    const threads = helper.threads();
    const privileged = threads.filter((thread) => thread.get('CapPrm') !== '0'.repeat(16));
    // Four threads and the one that replaces them.
    expect(privileged).toHaveLength(5);
    for (const thread of threads) {
      expect(thread.get('Uid')?.split('\t')).toEqual(new Array(4).fill(`${helperUser}`));
      expect(thread.get('Gid')?.split('\t')).toEqual(new Array(4).fill(`${helperUser}`));
      expect(thread.get('Groups')?.trim()).toBe('');
      for (const set of ['CapEff', 'CapInh', 'CapAmb']) expect(thread.get(set)).toBe('0'.repeat(16));
      expect(thread.get('NoNewPrivs')).toBe('1');
      expect(thread.get('Seccomp')).toBe('2');
      if (!privileged.includes(thread)) continue;
      expect(BigInt(`0x${thread.get('CapPrm')}`)).toBe(union);
      expect(BigInt(`0x${thread.get('CapBnd')}`) & ~union).toBe(0n);
    }
  });

  it('tells its health and what it can be asked to do', async () => {
    const client = helper.client(HelperService);
    const health = await client.health({});
    const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
    expect(health.version).toBe(manifest.version);
    expect(health.instanceId).toMatch(/^[0-9a-f-]{36}$/);
    const { methods } = await client.describe({});
    expect(methods).toHaveLength(table.length + inspection.length);
    expect(methods.every(({ declaration }) => declaration !== undefined)).toBe(true);
  });

  it('STO-001 identifies the listener of launcher-sock, once', async () => {
    const a = pod();
    const client = helper.client(PodService);
    expect(await failureOf(client.identify({ pod: a.ref }))).toMatchObject({
      code: Code.NotFound,
      refused: false,
    });
    await a.launcher();
    expect(await client.identify({ pod: a.ref })).toMatchObject({
      changed: true,
      uid: qemuUser,
      gid: qemuUser,
    });
    expect(await client.identify({ pod: a.ref })).toMatchObject({ changed: false });
  });

  it('hands out a connection to the launcher by ticket', async () => {
    const a = pod();
    await a.launcher();
    const client = helper.client(SocketService);
    const { ticket } = await client.connect({ pod: a.ref, socket: PodSocket.LAUNCHER_COMMAND });
    expect(ticket?.value).toHaveLength(32);
    const fd = await helper.claim(ticket?.value ?? new Uint8Array());
    expect(await echo(fd, 'hello launcher')).toBe('hello launcher');
    const line = await helper.audited(
      'claim',
      ({ method, pod: uid }) => method === 'claim descriptor' && uid === a.podUid,
    );
    expect(line).toMatchObject({ vmi: a.vmiUid, peer: { uid: 65531, pid: process.pid } });
  });

  it.each([qemuUser, 0])('WIRE-008 listens in a pod whose launcher has uid %i', async (uid) => {
    const a = pod();
    const launcher = await a.launcher({ uid });
    const client = helper.client(SocketService);
    const { ticket } = await client.listen(notify(a));
    const fd = await helper.claim(ticket?.value ?? new Uint8Array());
    const path = join(a.volume('public'), notifyName);
    const info = statSync(path);
    expect(info.isSocket()).toBe(true);
    expect([info.uid, info.gid, info.mode & 0o777]).toEqual([uid, uid, 0o755]);
    const server = createServer();
    const received = new Promise<string>((resolve) => {
      server.on('connection', (socket) => socket.on('data', (chunk) => resolve(chunk.toString())));
    });
    await new Promise<void>((resolve) => server.listen({ fd } as ListenOptions, resolve));
    try {
      await launcher.tell('send', `public/${notifyName}`, 'event');
      expect(await received).toBe('event');
      expect(await client.closeListener(notify(a))).toMatchObject({ changed: true });
      expect(existsSync(path)).toBe(false);
    } finally {
      await new Promise((resolve) => server.close(resolve));
    }
  });

  it('WIRE-009 closing removes the socket that the helper made, no other, and twice is harmless', async () => {
    const a = pod();
    await a.launcher();
    const client = helper.client(SocketService);
    const path = join(a.volume('public'), notifyName);
    await client.listen(notify(a));
    unlinkSync(path);
    writeFileSync(path, 'of the launcher');
    expect(await client.closeListener(notify(a))).toMatchObject({ changed: false });
    expect(readFileSync(path, 'utf8')).toBe('of the launcher');
    expect(await client.closeListener(notify(a))).toMatchObject({ changed: false });
  });

  it('makes the notify socket anew in place of an old one', async () => {
    const a = pod();
    await a.launcher();
    const client = helper.client(SocketService);
    await client.listen(notify(a));
    const first = lstatSync(join(a.volume('public'), notifyName)).ino;
    await client.listen(notify(a));
    expect(lstatSync(join(a.volume('public'), notifyName)).ino).not.toBe(first);
    expect(await client.closeListener(notify(a))).toMatchObject({ changed: true });
  });

  it('streams a pod from its appearance to the exit of its launcher and its end', async () => {
    const before = pod();
    const abort = new AbortController();
    const client = helper.client(PodService);
    const events = client.watch({}, { signal: abort.signal })[Symbol.asyncIterator]();
    const next = async () => (await events.next()).value?.event;
    const state = async (
      matches: (pod: { podUid: string; launcherSocket: SocketState; launcherExited: boolean }) => boolean,
    ) => {
      for (;;) {
        const event = await next();
        if (event?.case === 'pod' && matches(event.value)) return event.value;
      }
    };
    try {
      // The helper may see the first pod, and the end of earlier ones, just before or after it is synced.
      const awaited = new Set(['synced', before.podUid]);
      while (awaited.size > 0) {
        const event = await next();
        awaited.delete(event?.case === 'pod' ? event.value.podUid : (event?.case ?? ''));
      }
      const a = pod();
      await state(({ podUid }) => podUid === a.podUid);
      const launcher = await a.launcher();
      await state(
        ({ podUid, launcherSocket }) => podUid === a.podUid && launcherSocket === SocketState.PRESENT,
      );
      await client.identify({ pod: a.ref });
      await launcher.kill();
      await state(({ podUid, launcherExited }) => podUid === a.podUid && launcherExited);
      await a.destroy();
      for (;;) {
        const event = await next();
        if (event?.case === 'gonePodUid' && event.value === a.podUid) break;
      }
    } finally {
      abort.abort();
    }
  });

  it('marks a pod whose launcher is gone, and refuses while one answers', async () => {
    const a = pod();
    const launcher = await a.launcher();
    const client = helper.client(PodService);
    const marker = join(a.volume('sockets'), 'launcher-unresponsive');
    expect(await failureOf(client.markUnresponsive({ pod: a.ref }))).toMatchObject({ refused: true });
    expect(existsSync(marker)).toBe(false);
    await launcher.kill();
    expect(await client.markUnresponsive({ pod: a.ref })).toMatchObject({ changed: true });
    expect(existsSync(marker)).toBe(true);
    expect(await client.markUnresponsive({ pod: a.ref })).toMatchObject({ changed: false });
    expect(await client.stat({ podUid: a.podUid })).toMatchObject({ pod: { unresponsiveMarker: true } });
  });

  it('STO-012 unmounting and releasing a pod that is gone altogether succeeds', async () => {
    const a = pod();
    await a.launcher();
    await helper.client(PodService).identify({ pod: a.ref });
    await a.destroy();
    const storage = helper.client(StorageService);
    expect(await storage.unmountContainerDisks({ pod: a.ref })).toMatchObject({ changed: false });
    await helper.client(PodService).release({ pod: a.ref });
    expect(await helper.client(PodService).release({ pod: a.ref })).toMatchObject({ changed: false });
  });

  it('STO-008 removes what the record names although nobody knows the pod any more', async () => {
    const a = pod();
    const entry = (index: number) => ({
      targetFile: join(a.volume('container-disks'), `disk_${index}.img`),
      socketFile: `/pods/${a.podUid}/volumes/kubernetes.io~empty-dir/container-disks/disk_${index}.sock`,
    });
    const record = join(helper.stateDir, a.vmiUid);
    writeFileSync(entry(0).targetFile, '');
    const storage = helper.client(StorageService);
    // Without a record the pod is not known to be a launcher pod.
    await storage.unmountContainerDisks({ pod: a.ref });
    expect(existsSync(entry(0).targetFile)).toBe(true);
    writeFileSync(record, JSON.stringify({ mountTargetEntries: [entry(0)], usesSafePaths: true }), {
      mode: 0o644,
    });
    expect(await storage.unmountContainerDisks({ pod: a.ref })).toMatchObject({ changed: true });
    expect(existsSync(entry(0).targetFile)).toBe(false);
    expect(existsSync(record)).toBe(false);
  });

  it('audits each call with its begin and its end', async () => {
    const a = pod();
    await a.launcher();
    await helper.client(PodService).identify({ pod: a.ref });
    const lines = helper.audit().filter(({ pod: uid }) => uid === a.podUid);
    expect(lines).toMatchObject([
      { event: 'begin', method: 'PodService.Identify', vmi: a.vmiUid },
      { event: 'end', method: 'PodService.Identify', decision: 'allowed' },
    ]);
    expect(lines[0]?.['call']).toBe(lines[1]?.['call']);
    expect(lines[1]?.['duration_ms']).toBeGreaterThan(0);
    expect(String(lines[0]?.['time'])).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    expect(statSync(helper.auditFile).mode & 0o777).toBe(0o600);
  });

  it('keeps its audit files append-only over rotation and restart', async () => {
    const small = new HelperProcess(undefined, { flags: { '--audit-max-bytes': '4096' } });
    const flags = async (path: string) => (await run('lsattr', [path])).split(' ')[0];
    const files = () => [...olderFiles(small.auditFile), small.auditFile];
    const allProtected = () =>
      waitFor('flag of every file', 10_000, async () =>
        (await Promise.all(files().map(flags))).every((each) => each?.includes('a')),
      );
    try {
      await small.start();
      await allProtected();
      expect(() => truncateSync(small.auditFile)).toThrow(/EPERM/);
      expect(() => unlinkSync(small.auditFile)).toThrow(/EPERM/);
      await waitFor('more rotations than files are kept', 30_000, async () => {
        await small.client(HelperService).health({});
        return olderFiles(small.auditFile).length >= 4 && small.client(HelperService).health({});
      });
      await allProtected();
      expect(files()).toHaveLength(5);
      await small.stop('SIGKILL');
      await small.start();
      await small.client(HelperService).health({});
      await allProtected();
      expect(await small.operator(InspectService).getHelper({})).toMatchObject({
        auditAppendOnly: AppendOnly.SET,
      });
    } finally {
      await small.destroy();
    }
  });

  it('is made whole again after it was killed', async () => {
    const a = pod();
    const launcher = await a.launcher();
    const before = await helper.client(HelperService).health({});
    await helper.client(SocketService).listen(notify(a));
    await helper.stop('SIGKILL');
    await helper.start();
    const after = await helper.client(HelperService).health({});
    expect(after.instanceId).not.toBe(before.instanceId);
    expect(await helper.client(PodService).identify({ pod: a.ref })).toMatchObject({ changed: true });
    const { ticket } = await helper.client(SocketService).listen(notify(a));
    const fd = await helper.claim(ticket?.value ?? new Uint8Array());
    const server = createServer();
    await new Promise<void>((resolve) => server.listen({ fd } as ListenOptions, resolve));
    const connected = new Promise<void>((resolve) => {
      server.once('connection', (socket) => socket.resume().on('end', resolve));
    });
    await launcher.tell('send', `public/${notifyName}`, 'again');
    await connected;
    await new Promise((resolve) => server.close(resolve));
  });

  it('stops when told, with its calls done', async () => {
    await helper.client(HelperService).health({});
    expect(await helper.stop('SIGTERM')).toBe(0);
    await helper.start();
    await waitFor(
      'helper to answer',
      5000,
      async () => (await helper.client(HelperService).health({})).version,
    );
  });
});
