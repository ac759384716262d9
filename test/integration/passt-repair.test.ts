/** passt's TCP connections through a migration: the helper does what passt-repair does, with real sockets. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { MigrationSide, NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { declaredBy } from '../../privhelper/declarations.js';
import { FakePasst, passtDirectory, tcpRepair } from '../harness/passt/fake-passt.js';
import { waitFor } from '../harness/pods/run.js';
import { failureOf, HelperProcess, type LauncherProcess, TestPod } from './privhelper-fixture.js';

const { SOURCE, TARGET } = MigrationSide;
const deadlineMs = 20_000;

describe.runIf(process.getuid?.() === 0)("repair of passt's connections", () => {
  let helper: HelperProcess;
  let pod: TestPod;
  let launcher: LauncherProcess;
  const running: FakePasst[] = [];

  const volume = () => pod.volume('libvirt-runtime');
  const repair = (side: MigrationSide, timeoutMs?: number) =>
    helper
      .client(NetworkService)
      .repairPasst({ pod: pod.ref, side }, timeoutMs === undefined ? {} : { timeoutMs });

  async function passt(connections: number, name?: string, ofPod = true): Promise<FakePasst> {
    const made = await FakePasst.start(volume(), launcher.pid, connections, name);
    running.push(made);
    if (ofPod) pod.adopt(made.pid);
    return made;
  }

  const begun = () =>
    helper.audited(
      'the repair',
      ({ event, method, pod: of }) =>
        event === 'begin' && method === 'NetworkService.RepairPasst' && of === pod.podUid,
    );

  const descriptors = () => readdirSync(`/proc/${helper.pid}/fd`);
  const threads = () => readdirSync(`/proc/${helper.pid}/task`).length;

  beforeAll(async () => {
    helper = new HelperProcess();
    await helper.start();
  });
  beforeEach(async () => {
    pod = new TestPod(helper, ['sockets', 'libvirt-runtime']);
    launcher = await pod.launcher();
  });
  afterEach(async () => {
    await Promise.all(running.splice(0).map((each) => each.kill()));
    await pod.destroy();
    helper.disconnect();
  });
  afterAll(async () => {
    await helper.destroy();
  });

  it('NET-028 NET-035 switches every socket on the source until passt is done, and gives it nothing', async () => {
    const before = threads();
    const inherited = new Set(descriptors());
    const source = await passt(300);
    const repairing = repair(SOURCE);
    const on = await source.send(tcpRepair.on);
    // More than fit into one message.
    expect(on).toEqual({ answers: [1, 1], ancillary: 0, states: Array(300).fill(1) });

    // The pod's other calls go on, and nothing but one thread came into being.
    await helper.client(PodService).identify({ pod: pod.ref });
    expect(await failureOf(repair(SOURCE))).toMatchObject({ code: Code.ResourceExhausted, unchanged: true });
    expect(threads()).toBe(before + 1);
    const children = readdirSync(`/proc/${helper.pid}/task`).map((tid) =>
      readFileSync(`/proc/${helper.pid}/task/${tid}/children`, 'utf8'),
    );
    expect(children.join('')).toBe('');
    for (const fd of descriptors().filter((each) => !inherited.has(each))) {
      const flags = /^flags:\t(\d+)$/m.exec(readFileSync(`/proc/${helper.pid}/fdinfo/${fd}`, 'utf8'))?.[1];
      expect(Number.parseInt(flags ?? '', 8) & 0o2000000, `close-on-exec of ${fd}`).not.toBe(0);
    }

    const off = await source.send(tcpRepair.offWithoutProbe);
    expect(off).toEqual({ answers: [-1, -1], ancillary: 0, states: Array(300).fill(0) });
    await source.stop();
    expect((await repairing).switched).toBe(600n);
    await waitFor('its thread to end', deadlineMs, () => threads() === before);
  });

  it('NET-028 waits on the target until passt is there', async () => {
    const repairing = repair(TARGET);
    await begun();
    const target = await passt(1);
    expect(await target.send(tcpRepair.on)).toMatchObject({ answers: [1], states: [1] });
    expect(await target.send(tcpRepair.off)).toMatchObject({ answers: [0], states: [0] });
    await target.stop();
    expect((await repairing).switched).toBe(2n);
  });

  it('NET-028 fails on a source without passt, and can be started again; the first socket by name counts', async () => {
    expect(await failureOf(repair(SOURCE))).toMatchObject({ code: Code.NotFound, unchanged: true });
    mkdirSync(join(volume(), passtDirectory), { recursive: true });
    expect(await failureOf(repair(SOURCE))).toMatchObject({ code: Code.NotFound, errnoName: 'ENOENT' });
    await passt(0, 'b.socket.repair');
    const first = await passt(1, 'a.socket.repair');
    await passt(0, '0.socket');
    const repairing = repair(SOURCE);
    expect(await first.send(tcpRepair.on)).toMatchObject({ answers: [1] });
    await first.stop();
    expect((await repairing).switched).toBe(1n);
  });

  it('NET-028 ends by its deadline, which is 60 s', async () => {
    expect(declaredBy(NetworkService.method.repairPasst).deadlineMs).toBe(60_000);
    const before = threads();
    await passt(0);
    expect(await failureOf(repair(SOURCE, 300))).toMatchObject({ code: Code.DeadlineExceeded });
    await waitFor('its thread to end', deadlineMs, () => threads() === before);
    expect((await failureOf(repair(TARGET, 300))).code).toBe(Code.DeadlineExceeded);
  });

  it.each([
    ['a file', tcpRepair.on, 'file'],
    ['a unix socket', tcpRepair.on, 'unix'],
    ['a UDP socket', tcpRepair.on, 'udp'],
    ['a TCP socket of another network namespace, beside one of its own', tcpRepair.on, 'foreign'],
    ['nothing', tcpRepair.on, 'none'],
    ['a value that TCP_REPAIR does not have', 2, 'tcp'],
  ])('refuses and audits a passt that hands over %s', async (_what, value, offered) => {
    const hostile = await passt(1);
    const repairing = failureOf(repair(SOURCE));
    expect(await hostile.send(value, offered)).toEqual({ answers: [], ancillary: 0, states: [0] });
    expect(await repairing).toMatchObject({ code: Code.PermissionDenied, refused: true, unchanged: true });
    await helper.audited(
      'the refusal',
      ({ pod: of, method, decision }) =>
        of === pod.podUid && method === 'NetworkService.RepairPasst' && decision === 'refused',
    );
  });

  it('refuses a listener that is not of the pod, a link, and a link on the way, on either side', async () => {
    const outside = mkdtempSync(join(tmpdir(), 'outside-'));
    const refused = async (prepare?: () => Promise<unknown>) => {
      for (const side of [SOURCE, TARGET]) {
        await prepare?.();
        const failure = await failureOf(repair(side));
        expect(failure).toMatchObject({ code: Code.PermissionDenied, refused: true, unchanged: true });
      }
    };
    const directory = join(volume(), passtDirectory);
    try {
      await refused(() => passt(0, 'a.socket.repair', false));
      renameSync(join(directory, 'a.socket.repair'), join(outside, 'a.socket.repair'));
      symlinkSync(join(outside, 'a.socket.repair'), join(directory, 'a.socket.repair'));
      await refused();
      rmSync(directory, { recursive: true });
      symlinkSync(outside, directory);
      await refused();
    } finally {
      rmSync(outside, { recursive: true });
    }
  });

  it('does not keep a helper that is told to stop', async () => {
    const repairing = failureOf(repair(TARGET)).catch((error: Error) => error);
    await begun();
    expect(await helper.stop()).toBe(0);
    await repairing;
    await helper.start();
  });
});
