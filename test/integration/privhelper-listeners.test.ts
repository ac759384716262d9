/** Listeners of migrations that the helper makes in a pod, and what it takes away again. */
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type ListenOptions } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodListener, SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { failureOf, HelperProcess, type LauncherProcess, qemuUser, TestPod } from './privhelper-fixture.js';

const otherVmi = '99999999-9999-4999-8999-999999999999';
const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };

const listeners: [string, PodListener, (vmi: string) => string][] = [
  ['control', PodListener.MIGRATION_CONTROL, (vmi) => `${vmi}-source.sock`],
  ['memory', PodListener.MIGRATION_MEMORY, (vmi) => `${vmi}-49152-source.sock`],
  ['block', PodListener.MIGRATION_BLOCK, (vmi) => `${vmi}-49153-source.sock`],
];

describe.runIf(process.getuid?.() === 0)('listeners in a pod', () => {
  let helper: HelperProcess;
  /** Outside of every pod: nothing here may be changed. */
  let outside: string;
  const pods: TestPod[] = [];
  const client = () => helper.client(SocketService);

  function pod(): TestPod {
    const made = new TestPod(helper);
    pods.push(made);
    return made;
  }

  async function launcherPod(): Promise<[TestPod, LauncherProcess]> {
    const made = pod();
    return [made, await made.launcher()];
  }

  beforeAll(async () => {
    helper = new HelperProcess();
    outside = mkdtempSync(join(tmpdir(), 'canary-'));
    await helper.start();
  });
  afterEach(async () => {
    await Promise.all(pods.splice(0).map((each) => each.destroy()));
    helper.disconnect();
  });
  afterAll(async () => {
    await helper.destroy();
    rmSync(outside, { recursive: true });
  });

  it.each(listeners)('for migrations: %s', async (_name, listener, name) => {
    const [a, launcher] = await launcherPod();
    const request = { pod: a.ref, listener };
    const directory = a.volume('public/migrationproxy');
    const path = join(directory, name(a.vmiUid));
    const { ticket } = await client().listen(request);
    const fd = await helper.claim(ticket?.value ?? new Uint8Array());
    const made = statSync(path);
    expect([made.isSocket(), made.uid, made.gid, made.mode & 0o777]).toEqual([
      true,
      qemuUser,
      qemuUser,
      0o755,
    ]);
    const parent = statSync(directory);
    expect([parent.uid, parent.gid, parent.mode & 0o777]).toEqual([qemuUser, qemuUser, 0o755]);
    const server = createServer();
    const received = new Promise<string>((resolve) => {
      server.on('connection', (socket) => socket.on('data', (chunk) => resolve(chunk.toString())));
    });
    await new Promise<void>((resolve) => server.listen({ fd } as ListenOptions, resolve));
    try {
      await launcher.tell('send', `public/migrationproxy/${name(a.vmiUid)}`, 'pages');
      expect(await received).toBe('pages');
      expect(await client().closeListener(request)).toMatchObject({ changed: true });
      expect(readdirSync(directory)).toEqual([]);
      expect(await client().closeListener(request)).toMatchObject({ changed: false });
    } finally {
      await new Promise((resolve) => server.close(resolve));
    }
  });

  it('AFT-004 are taken away only as the inode that was made, whatever the pod puts in its place', async () => {
    const [a, launcher] = await launcherPod();
    const request = { pod: a.ref, listener: PodListener.MIGRATION_MEMORY };
    const directory = a.volume('public/migrationproxy');
    const name = `${a.vmiUid}-49152-source.sock`;

    await client().listen(request);
    const elsewhere = join(outside, 'elsewhere');
    mkdirSync(elsewhere);
    writeFileSync(join(elsewhere, name), 'precious');
    renameSync(directory, `${directory}.aside`);
    symlinkSync(elsewhere, directory);
    expect(await failureOf(client().closeListener(request))).toMatchObject({
      ...refused,
      errnoName: 'ELOOP',
    });
    expect(await helper.client(PodService).release({ pod: a.ref })).toMatchObject({ changed: true });
    expect(readFileSync(join(elsewhere, name), 'utf8')).toBe('precious');
    expect(lstatSync(join(`${directory}.aside`, name)).isSocket()).toBe(true);

    unlinkSync(directory);
    await client().listen(request);
    unlinkSync(join(directory, name));
    await launcher.tell('listen', `public/migrationproxy/${name}`);
    const theirs = lstatSync(join(directory, name)).ino;
    expect(await client().closeListener(request)).toMatchObject({ changed: false });
    expect(lstatSync(join(directory, name)).ino).toBe(theirs);

    await client().listen(request);
    unlinkSync(join(directory, name));
    mkdirSync(join(directory, name, 'tree'), { recursive: true });
    expect(await client().closeListener(request)).toMatchObject({ changed: false });
    expect(existsSync(join(directory, name, 'tree'))).toBe(true);
  });

  it('MIG-032 are made in no other place, over nothing but a socket and under no other name', async () => {
    const [a] = await launcherPod();
    const request = { pod: a.ref, listener: PodListener.MIGRATION_BLOCK };
    const directory = a.volume('public/migrationproxy');
    const name = `${a.vmiUid}-49153-source.sock`;
    const place = `public/migrationproxy/${name}`;
    const target = join(outside, 'target');
    mkdirSync(target);
    for (const to of [target, join(outside, 'absent')]) {
      symlinkSync(to, directory);
      expect(await failureOf(client().listen(request))).toMatchObject({ ...refused, errnoName: 'ELOOP' });
      expect(lstatSync(directory).isSymbolicLink()).toBe(true);
      unlinkSync(directory);
    }
    expect(readdirSync(target)).toEqual([]);
    expect(existsSync(join(outside, 'absent'))).toBe(false);
    await helper.auditedRefusal(a, 'Listen', place);

    mkdirSync(directory);
    writeFileSync(join(directory, name), 'a file');
    expect(await failureOf(client().listen(request))).toMatchObject({ ...refused, errnoName: 'EEXIST' });
    expect(readFileSync(join(directory, name), 'utf8')).toBe('a file');

    const malformed = { code: Code.InvalidArgument, refused: true, unchanged: true };
    expect(await failureOf(client().listen({ ...request, listener: 99 as PodListener }))).toMatchObject({
      ...malformed,
      field: 'listener',
    });
    const notUuid = { podUid: a.podUid, vmiUid: '../x' };
    expect(await failureOf(client().listen({ ...request, pod: notUuid }))).toMatchObject({
      ...malformed,
      field: 'pod.vmi_uid',
    });
    // A pod of another VMI, and one that nobody listens in.
    const foreign = { podUid: a.podUid, vmiUid: otherVmi };
    expect(await failureOf(client().listen({ ...request, pod: foreign }))).toMatchObject(refused);
    const silent = pod();
    expect(await failureOf(client().listen({ ...request, pod: silent.ref }))).toMatchObject({
      code: Code.NotFound,
    });
    expect(readdirSync(silent.volume('public'))).toEqual([]);
    expect(readdirSync(a.volume('public'))).toEqual(['migrationproxy']);
  });

  it('are all taken away when the pod is released', async () => {
    const [a] = await launcherPod();
    await client().listen({ pod: a.ref, listener: PodListener.NOTIFY });
    for (const [, listener] of listeners) await client().listen({ pod: a.ref, listener });
    expect(readdirSync(a.volume('public/migrationproxy'))).toHaveLength(3);
    expect(await helper.client(PodService).release({ pod: a.ref })).toMatchObject({ changed: true });
    expect(readdirSync(a.volume('public/migrationproxy'))).toEqual([]);
    expect(readdirSync(a.volume('public'))).toEqual(['migrationproxy']);
  });
});
