import { spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { constants, connect as http2Connect } from 'node:http2';
import { connect as netConnect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Device, DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HelperService } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { HotplugService, PlugKind } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { MigrationSide, NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService, SocketState } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodProcess, ResourceService } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { PodListener, PodSocket, SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { run, waitFor } from '../harness/pods/run.js';
import {
  agentUser,
  asUser,
  failureOf,
  HelperProcess,
  qemuUser,
  TestPod,
} from '../integration/privhelper-fixture.js';

const isRoot = process.getuid?.() === 0;
const notifyName = 'domain-notify-pipe.sock';

describe.runIf(isRoot)('what the helper refuses', () => {
  let helper: HelperProcess;
  /** Outside of every pod: nothing here may be contacted or changed. */
  let outside: string;
  const pods: TestPod[] = [];

  function pod(): TestPod {
    const made = new TestPod(helper);
    pods.push(made);
    return made;
  }

  /** Every method that acts on a pod's launcher. */
  function operations({ ref }: TestPod): [string, () => Promise<unknown>][] {
    const attachmentPodUid = '66666666-6666-4666-8666-666666666666';
    const plug = { attachmentPodUid, volume: 'data', kind: PlugKind.DISK };
    const bridge = { case: 'bridge', value: { dhcp: { ipamDisabled: true } } } as const;
    const attachments = [{ network: 'default', podInterface: 'eth0', primary: true, binding: bridge }];
    const storage = () => helper.client(StorageService);
    return [
      ['Identify', () => helper.client(PodService).identify({ pod: ref })],
      ['GetSelinuxContext', () => helper.client(PodService).getSelinuxContext({ pod: ref })],
      [
        'Connect',
        () => helper.client(SocketService).connect({ pod: ref, socket: PodSocket.LAUNCHER_COMMAND }),
      ],
      ['Listen', () => helper.client(SocketService).listen({ pod: ref, listener: PodListener.NOTIFY })],
      [
        'RepairPasst',
        () => helper.client(NetworkService).repairPasst({ pod: ref, side: MigrationSide.TARGET }),
      ],
      ['Observe', () => helper.client(NetworkService).observe({ pod: ref })],
      ['Apply', () => helper.client(NetworkService).apply({ pod: ref, attachments })],
      ['StatContainerDisks', () => storage().statContainerDisks({ pod: ref, kernelBoot: true })],
      [
        'MountContainerDisks',
        () => storage().mountContainerDisks({ pod: ref, disks: [{}], kernelArtifacts: ['/vmlinuz'] }),
      ],
      ['PlugFilesystem', () => helper.client(HotplugService).plugFilesystem({ pod: ref, ...plug })],
      [
        'PlugBlock',
        () => helper.client(HotplugService).plugBlock({ pod: ref, attachmentPodUid, volume: 'data' }),
      ],
      ['List', () => helper.client(HotplugService).list({ pod: ref })],
      ['Unplug', () => helper.client(HotplugService).unplug({ pod: ref, ...plug })],
      [
        'SetMemlock',
        () => helper.client(ResourceService).setMemlock({ pod: ref, process: PodProcess.VIRTQEMUD }),
      ],
      ['IsolateEmulator', () => helper.client(ResourceService).isolateEmulator({ pod: ref, cpus: [0] })],
      ['ScheduleVcpus', () => helper.client(ResourceService).scheduleVcpus({ pod: ref })],
      ['AffinePit', () => helper.client(ResourceService).affinePit({ pod: ref })],
      ['Claim', () => helper.client(DeviceService).claim({ pod: ref, devices: [Device.TUN] })],
      ['SetPolicy', () => helper.client(DeviceService).setPolicy({ pod: ref })],
    ];
  }

  /** Names of the operations that were not refused. */
  async function notRefused(a: TestPod): Promise<string[]> {
    const passed: string[] = [];
    for (const [name, call] of operations(a)) {
      const failure = await failureOf(call()).catch(() => undefined);
      if (!failure?.refused || failure.code !== Code.PermissionDenied)
        passed.push(`${name}: ${failure?.message}`);
    }
    return passed;
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

  describe('peers', () => {
    it('refuses and audits a connection of another user, root included', async () => {
      for (const uid of [0, qemuUser]) {
        chmodSync(join(helper.socketDir, 'helper.sock'), 0o666);
        chmodSync(helper.socketDir, 0o755);
        const closed = new Promise((resolve, reject) => {
          const socket = asUser(uid, () => netConnect(join(helper.socketDir, 'helper.sock')));
          socket.on('close', resolve).on('error', reject).resume();
        });
        await closed;
        await helper.audited(
          `peer ${uid}`,
          ({ method, peer, decision }) =>
            method === 'connect' && decision === 'refused' && (peer as { uid: number }).uid === uid,
        );
      }
    });

    it('takes one agent process at a time', async () => {
      await helper.client(HelperService).health({});
      const program = `
        const socket = require('node:net').connect(process.argv[1]);
        socket.on('close', () => process.exit(7)).on('error', () => process.exit(8)).resume();
      `;
      const child = spawn(process.execPath, ['-e', program, join(helper.socketDir, 'helper.sock')], {
        uid: agentUser,
        gid: agentUser,
        stdio: 'ignore',
      });
      const code = await new Promise((resolve) => child.on('exit', resolve));
      expect(code).toBe(7);
      await helper.audited('second agent', ({ message }) =>
        String(message).includes('another agent process'),
      );
      await helper.client(HelperService).health({});
    });

    it('refuses forged, used and foreign tickets', async () => {
      const a = pod();
      await a.launcher();
      const client = helper.client(SocketService);
      const connect = async () => {
        const { ticket } = await client.connect({ pod: a.ref, socket: PodSocket.LAUNCHER_COMMAND });
        return ticket?.value ?? new Uint8Array();
      };
      await expect(helper.claim(new Uint8Array(32).fill(1))).rejects.toMatchObject({ code: 'EACCES' });
      await expect(helper.claim(new Uint8Array(5))).rejects.toMatchObject({ code: 'EINVAL' });
      await expect(helper.claim(new Uint8Array(33))).rejects.toThrow();
      const used = await connect();
      helper.native.close(await helper.claim(used));
      await expect(helper.claim(used)).rejects.toMatchObject({ code: 'EACCES' });
      // Another user does not even get to present a ticket, and the agent's stays valid.
      const good = await connect();
      chmodSync(join(helper.socketDir, 'fd.sock'), 0o666);
      chmodSync(helper.socketDir, 0o755);
      await expect(helper.claim(good, qemuUser)).rejects.toMatchObject({ code: 'EACCES' });
      await helper.audited(
        'the other user',
        ({ method, peer, message }) =>
          method === 'claim descriptor' &&
          message === 'uid is not the agent' &&
          (peer as { uid: number }).uid === qemuUser,
      );
      helper.native.close(await helper.claim(good));
    });

    it('closes a descriptor that nobody claims in time', async () => {
      const a = pod();
      await a.launcher();
      const { ticket } = await helper
        .client(SocketService)
        .connect({ pod: a.ref, socket: PodSocket.LAUNCHER_COMMAND });
      const sockets = async () =>
        Number(await run('sh', ['-c', `ls -l /proc/${helper.pid}/fd | grep -c socket:`]));
      const before = await sockets();
      await waitFor('descriptor to be closed', 15_000, async () => (await sockets()) < before);
      await expect(helper.claim(ticket?.value ?? new Uint8Array())).rejects.toMatchObject({ code: 'EACCES' });
    });
  });

  describe('requests', () => {
    it.each([
      '',
      '..',
      '../../../etc',
      'kube-system',
      '11111111-1111-4111-8111-11111111111/',
      `${'a'.repeat(70_000)}`,
    ])('WIRE-022 refuses and audits pod UID %.40j', async (podUid) => {
      const vmiUid = '11111111-1111-4111-8111-111111111111';
      const failure = await failureOf(helper.client(PodService).identify({ pod: { podUid, vmiUid } }));
      expect(failure).toMatchObject({ code: Code.InvalidArgument, field: 'pod.pod_uid', refused: true });
      const lines = helper.audit().filter(({ field }) => field === 'pod.pod_uid');
      expect(lines.at(-1)).toMatchObject({ event: 'refusal', method: 'PodService.Identify' });
      if (podUid.length > 10) expect(readFileSync(helper.auditFile, 'utf8')).not.toContain(podUid);
    });

    it('REC-051 refuses pods that are not there', async () => {
      const podUid = '99999999-9999-4999-8999-999999999999';
      const failure = await failureOf(
        helper.client(PodService).identify({ pod: { podUid, vmiUid: podUid } }),
      );
      expect(failure.code).toBe(Code.NotFound);
    });

    /** Sends raw bytes as a request. Resolves to the HTTP status, or the code of a reset stream. */
    function raw(headers: Record<string, string>, body: Buffer): Promise<{ status: number; text: string }> {
      const session = http2Connect('http://helper', {
        createConnection: () => asUser(agentUser, () => netConnect(join(helper.socketDir, 'helper.sock'))),
      });
      session.on('error', () => undefined);
      return new Promise<{ status: number; text: string }>((resolve) => {
        const stream = session.request({ [constants.HTTP2_HEADER_METHOD]: 'POST', ...headers });
        let status = 0;
        let text = '';
        stream.on('response', (answer) => {
          status = Number(answer[':status']);
        });
        stream.on('data', (chunk: Buffer) => {
          text += chunk.toString();
        });
        stream.on('error', () => undefined);
        stream.on('close', () => resolve({ status, text }));
        stream.end(body);
      }).finally(() => session.destroy());
    }

    const identify = '/virtprivsep.privhelper.v1.PodService/Identify';
    const binary = { 'content-type': 'application/proto' };

    it.each([
      ['truncated protobuf', { ':path': identify, ...binary }, Buffer.from([0x0a, 0x7f, 0x01]), 400],
      ['invalid UTF-8', { ':path': identify, ...binary }, Buffer.from([0x0a, 0x03, 0x0a, 0x01, 0xff]), 400],
      ['random bytes', { ':path': identify, ...binary }, Buffer.alloc(100, 0xff), 400],
      ['a message over 1 MiB', { ':path': identify, ...binary }, Buffer.alloc((1 << 20) + 1), 429],
      [
        'an unknown method',
        { ':path': '/virtprivsep.privhelper.v1.PodService/Exec', ...binary },
        Buffer.alloc(0),
        404,
      ],
      ['JSON', { ':path': identify, 'content-type': 'application/json' }, Buffer.from('{}'), 415],
      ['gRPC', { ':path': identify, 'content-type': 'application/grpc' }, Buffer.alloc(5), 415],
      [
        'a compressed body',
        { ':path': identify, ...binary, 'content-encoding': 'gzip' },
        Buffer.alloc(10),
        501,
      ],
    ])('answers %s and audits it', async (what, headers, body, status) => {
      const before = helper.audit().length;
      const answer = await raw(headers, body);
      expect(answer.status, `${what}: ${answer.text}`).toBe(status);
      const line = await waitFor('audit line', 5000, () =>
        helper
          .audit()
          .slice(before)
          .find(({ event }) => event === 'refusal'),
      );
      expect(line).toMatchObject({ method: headers[':path'].slice(1), decision: 'refused' });
      await helper.client(HelperService).health({});
    });

    it('ends a connection that speaks no HTTP/2, and stays up', async () => {
      const socket = asUser(agentUser, () => netConnect(join(helper.socketDir, 'helper.sock')));
      const closed = new Promise((resolve) => socket.on('close', resolve).on('error', () => undefined));
      socket.resume().write(Buffer.alloc(100_000, 0x41));
      await closed;
      await helper.client(HelperService).health({});
    });
  });

  describe('launchers', () => {
    it('STO-003 refuses a listener whose cgroup is not the pod’s, or another pod’s', async () => {
      const b = pod();
      for (const cgroupOf of [null, b.podUid]) {
        const a = pod();
        await a.launcher({ cgroupOf });
        expect(await notRefused(a)).toEqual([]);
      }
    });

    it('REC-051 refuses a launcher of another user', async () => {
      const a = pod();
      await a.launcher({ uid: 1234 });
      expect(await notRefused(a)).toEqual([]);
    });

    it.each(['', 'volumes', 'volumes/kubernetes.io~empty-dir', 'volumes/kubernetes.io~empty-dir/sockets'])(
      'REC-051 refuses a link to another pod at <pod>/%s',
      async (path) => {
        const [a, b] = [pod(), pod()];
        await b.launcher();
        rmSync(join(a.directory, path), { recursive: true });
        symlinkSync(join(b.directory, path), join(a.directory, path).replace(/\/$/, ''));
        expect(await notRefused(a)).toEqual([]);
      },
    );

    it('REC-051 refuses a launcher-sock that is no socket', async () => {
      const a = pod();
      writeFileSync(a.launcherSock, '');
      expect(await notRefused(a)).toEqual([]);
      unlinkSync(a.launcherSock);
      mkdirSync(a.launcherSock);
      expect(await notRefused(a)).toEqual([]);
    });

    it('refuses to name a pod for another VMI while its launcher lives', async () => {
      const a = pod();
      const launcher = await a.launcher();
      const client = helper.client(PodService);
      await client.identify({ pod: a.ref });
      const other = { podUid: a.podUid, vmiUid: '77777777-7777-4777-8777-777777777777' };
      expect(await failureOf(client.identify({ pod: other }))).toMatchObject({
        code: Code.PermissionDenied,
        field: 'pod.vmi_uid',
      });
      await client.release({ pod: a.ref });
      expect(await failureOf(client.identify({ pod: other }))).toMatchObject({ refused: true });
      expect(await failureOf(client.release({ pod: other }))).toMatchObject({ refused: true });
      expect(launcher.pid).toBeGreaterThan(0);
    });

    it('NET-031 refuses to enter the host’s network namespace', async () => {
      const a = pod();
      await a.launcher({ hostNetwork: true });
      const links = await run('ip', ['-o', 'link']);
      const client = helper.client(NetworkService);
      expect(await failureOf(client.observe({ pod: a.ref }))).toMatchObject({ refused: true });
      const bridge = { case: 'bridge', value: {} } as const;
      const attachments = [{ network: 'default', podInterface: 'eth0', primary: true, binding: bridge }];
      expect(await failureOf(client.apply({ pod: a.ref, attachments }))).toMatchObject({ refused: true });
      expect(await run('ip', ['-o', 'link'])).toBe(links);
    });

    it('NET-031 refuses to enter a network namespace of a user namespace that the launcher made', async () => {
      const a = pod();
      const launcher = await a.launcher({ ownUserNamespace: true });
      const links = () => run('nsenter', [`--net=/proc/${launcher.pid}/ns/net`, '--', 'ip', '-o', 'link']);
      const before = await links();
      const client = helper.client(NetworkService);
      const bridge = { case: 'bridge', value: {} } as const;
      const attachments = [{ network: 'default', podInterface: 'eth0', primary: true, binding: bridge }];
      const calls = [() => client.observe({ pod: a.ref }), () => client.apply({ pod: a.ref, attachments })];
      for (const call of calls) {
        expect(await failureOf(call())).toMatchObject({
          operation: 'network namespace of the pod belongs to another user namespace',
          refused: true,
          unchanged: true,
        });
      }
      expect(await links()).toBe(before);
      for (const method of ['NetworkService.Observe', 'NetworkService.Apply']) {
        await helper.audited(
          `the refusal of ${method}`,
          (line) => line.pod === a.podUid && line.method === method && line.decision === 'refused',
        );
      }
    });

    it('WIRE-008 refuses a link at the place of the notify socket and leaves its target alone', async () => {
      const a = pod();
      await a.launcher();
      const canary = join(outside, 'notify-canary');
      writeFileSync(canary, 'canary', { mode: 0o600 });
      const path = join(a.volume('public'), notifyName);
      symlinkSync(canary, path);
      const before = statSync(canary);
      expect(
        await failureOf(helper.client(SocketService).listen({ pod: a.ref, listener: PodListener.NOTIFY })),
      ).toMatchObject({
        refused: true,
      });
      expect(lstatSync(path).isSymbolicLink()).toBe(true);
      const after = statSync(canary);
      expect([after.uid, after.gid, after.mode, after.mtimeMs]).toEqual([
        before.uid,
        before.gid,
        before.mode,
        before.mtimeMs,
      ]);
      expect(readFileSync(canary, 'utf8')).toBe('canary');
    });

    it('looks at pods without ever contacting them', async () => {
      const abort = new AbortController();
      const events = helper.client(PodService).watch({}, { signal: abort.signal })[Symbol.asyncIterator]();
      const a = pod();
      const foreign = await a.launcher();
      for (;;) {
        const { event } = (await events.next()).value ?? {};
        if (event?.case !== 'pod' || event.value.podUid !== a.podUid) continue;
        if (event.value.launcherSocket === SocketState.PRESENT) break;
      }
      abort.abort();
      await helper.client(PodService).stat({ podUid: a.podUid });
      expect(foreign.words.map(([word]) => word)).not.toContain('connection');
      expect(existsSync(join(a.volume('public'), notifyName))).toBe(false);
    });
  });
});
