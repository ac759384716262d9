import { spawn } from 'node:child_process';
import { readdirSync, writeFileSync } from 'node:fs';
import { createServer, type ListenOptions, Socket } from 'node:net';
import { constants } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { InspectService } from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import {
  ConnectResponseSchema,
  ListenResponseSchema,
} from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { loadNative } from '../../../native/binding.js';
import { run, waitFor } from '../../harness/pods/run.js';
import { agentUser, qemuUser } from '../../integration/privhelper-fixture.js';
import { descriptorsOf, memoryOf, processorTime } from './host-snapshot.js';
import { methodNamed, methods } from './methods.js';
import type { Behaviour, WholePod } from './pod.js';
import { World } from './world.js';

const deadlineMs = 20_000;
const ticketTtlMs = 1000;

const hasPassRights = loadNative()
  .probeKernel()
  .some(({ name, error }) => name === 'SO_PASSRIGHTS' && error === '');
const connect = methodNamed('SocketService.Connect');
const identify = methodNamed('PodService.Identify');

describe.runIf(process.getuid?.() === 0)('peers that hang, pour, die or take each other’s place', () => {
  let world: World;
  let pod: WholePod;

  beforeAll(async () => {
    world = await World.create({ ticketTtlMs });
  });
  afterAll(async () => {
    await world?.destroy();
  });
  beforeEach(async () => {
    pod = await world.pod();
    await world.remember();
  });
  afterEach(async () => {
    await world.expectUnchanged();
    await world.expectHealthy();
  });

  async function ticket(): Promise<Uint8Array> {
    const { message, text } = await world.callFor(connect, pod);
    if (message === undefined) throw new Error(text);
    return fromBinary(ConnectResponseSchema, message).ticket?.value ?? new Uint8Array();
  }

  describe('tickets', () => {
    it('STO-033 refuses one that is forged, expired, or used', async () => {
      const start = world.helper.audit().length;
      const good = await ticket();
      for (const at of [0, 15, 31]) {
        const forged = Uint8Array.from(good, (byte, i) => (i === at ? byte ^ 1 : byte));
        await expect(world.helper.claim(forged)).rejects.toMatchObject({ code: 'EACCES' });
      }
      world.helper.native.close(await world.helper.claim(good));
      await expect(world.helper.claim(good)).rejects.toMatchObject({ code: 'EACCES' });
      const late = await ticket();
      await waitFor('the descriptor to be closed', deadlineMs, async () => {
        const { usage } = await world.helper.operator(InspectService).getHelper({});
        return usage.find(({ name }) => name === 'descriptors unclaimed')?.used === 0;
      });
      await expect(world.helper.claim(late)).rejects.toMatchObject({ code: 'EACCES' });
      await world.expectRefusals(5, start);
    });

    it('STO-033 refuses one in the hands of another process of the agent’s user, and closes what it was for', async () => {
      const start = world.helper.audit().length;
      const stolen = await ticket();
      const program = `
        import sys, socket
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
        s.send(bytes.fromhex(sys.argv[2]))
        data, fds, *_ = socket.recv_fds(s, 64, 4)
        sys.exit(100 + data[0] if not fds else 99)`.replaceAll(/^ {8}/gm, '');
      const words = [
        '-c',
        program,
        join(world.helper.socketDir, 'fd.sock'),
        Buffer.from(stolen).toString('hex'),
      ];
      const thief = spawn('/usr/bin/python3', words, { uid: agentUser, gid: agentUser, stdio: 'inherit' });
      const code = await new Promise((resolve) => thief.once('exit', resolve));
      expect(code).toBe(100 + 13);
      await expect(world.helper.claim(stolen)).rejects.toMatchObject({ code: 'EACCES' });
      await world.expectRefusals(2, start);
    });
  });

  it('STO-002 AFT-008 does nothing to a process that has got the launcher’s number', async () => {
    await world.callFor(identify, pod);
    const { pid } = pod.launcher;
    await pod.launcher.kill();
    const impostor = await takeNumber(pid);
    try {
      const links = readdirSync(`/proc/${pid}/fd`);
      for (const hostile of methods.filter(({ subject }) => subject.endsWith('launcher'))) {
        const answer = await world.callFor(hostile, pod);
        expect(answer.message, hostile.name).toBeUndefined();
        expect(['ESRCH', 'ECONNREFUSED'], `${hostile.name} ${answer.text}`).toContain(
          answer.failure?.errnoName,
        );
      }
      // Of its own it may close what it likes.
      expect(readdirSync(`/proc/${pid}/fd`).filter((fd) => !links.includes(fd))).toEqual([]);
    } finally {
      impostor.kill();
    }
  });

  it('serves another pod while one has stopped with a full backlog', async () => {
    // Not pinned, so that each call has to be answered by the launcher itself.
    await pod.launcher.listen('sockets/small', 'echo', 1);
    pod.moveListener('sockets/small');
    const letGo = await pod.fillBacklog();
    let waiting = 0;
    const calls = Array.from({ length: 6 }, async () => {
      waiting += 1;
      const answer = await world.callFor(identify, pod);
      waiting -= 1;
      return answer;
    });
    const { code } = await world.callFor(identify, world.bystander);
    expect(code).toBe('');
    expect(waiting).toBeGreaterThan(0);
    for (const answer of await Promise.all(calls)) {
      expect(answer.failure, `${answer.code} ${answer.text}`).toMatchObject({
        errnoName: 'EAGAIN',
        unchanged: true,
      });
    }
    await letGo();
    expect((await world.callFor(identify, pod)).code).toBe('');
  });

  it.each<Behaviour>(['mute', 'drip', 'flood'])(
    'AFT-008 WIRE-016 is not held up or filled by a launcher that is %s, and passes none of its bytes on',
    async (behaviour) => {
      await pod.launcher.listen('sockets/other', behaviour);
      pod.moveListener('sockets/other');
      for (const hostile of methods.filter(({ uses }) => uses.length > 0)) {
        const { code, text } = await world.callFor(hostile, pod);
        expect(['', 'permission_denied', 'not_found'], `${hostile.name} ${text}`).toContain(code);
        pod.restore();
      }
      await world.callFor(identify, pod);
      const held = () => descriptorsOf(world.helper.pid).length;
      const before = held();
      const [used, memory] = [processorTime(world.helper.pid), memoryOf(world.helper.pid)];
      const fd = await world.helper.claim(await ticket());
      // The agent has the connection, the helper nothing of it once those of the calls are closed.
      await waitFor('the helper to hold no more than before', deadlineMs, () => held() <= before);
      const socket = new Socket({ fd, readable: true, writable: true });
      socket.write('hello');
      if (behaviour === 'flood') {
        let received = 0;
        socket.on('data', ({ length }) => {
          received += length;
        });
        await waitFor('256 MiB', deadlineMs, () => received > 256 << 20);
        // 256 MiB through a process of Node's take it hundreds of milliseconds; a few calls some.
        expect(processorTime(world.helper.pid) - used).toBeLessThan(20);
        expect(memoryOf(world.helper.pid) - memory).toBeLessThan(32 << 20);
      }
      socket.destroy();
    },
  );

  /** What comes of a socket that a process of a user sends over a connection, and what the process does next. */
  function lingerAt(user: number, type: 'SOCK_STREAM' | 'SOCK_SEQPACKET', path: string) {
    const words = [new URL('lingering.py', import.meta.url).pathname, 'connect', type, basename(path)];
    const child = spawn('/usr/bin/python3', words, {
      uid: user,
      gid: user,
      // Paths of sockets are short.
      cwd: dirname(path),
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let said = '';
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString();
    });
    return {
      said: () => waitFor(`${path} to be sent a socket`, deadlineMs, () => said.trim() || undefined),
      kill: () => child.kill('SIGKILL'),
    };
  }

  /** The first bytes of a connection. */
  const firstBytes = (socket: Socket) =>
    new Promise<string>((resolve, reject) => {
      socket.once('data', (chunk) => resolve(chunk.toString())).once('error', reject);
    });

  it('AFT-008 STO-033 writes down who asks for no descriptor, for too long or as somebody else', async () => {
    const start = world.helper.audit().length;
    await expect(world.helper.claim(new Uint8Array(34))).rejects.toMatchObject({ code: 'EMSGSIZE' });
    const program = `
      import sys, socket
      s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
      print(s.recv(1)[0])`.replaceAll(/^ {6}/gm, '');
    const silent = (uid: number) => {
      const words = [
        '--reuid',
        `${uid}`,
        '--regid',
        `${uid}`,
        '--clear-groups',
        '/usr/bin/python3',
        '-c',
        program,
      ];
      return run('setpriv', [...words, join(world.helper.socketDir, 'fd.sock')]);
    };
    const { EACCES, ETIMEDOUT } = constants.errno;
    expect(Number(await silent(0))).toBe(EACCES);
    expect(Number(await silent(agentUser))).toBe(ETIMEDOUT);
    await world.expectRefusals(3, start);
    const claims = world.helper.audit().slice(start);
    expect(claims.filter(({ method }) => method === 'claim descriptor')).toMatchObject([
      { decision: 'refused', message: 'message is longer than a ticket' },
      { decision: 'refused', peer: { uid: 0 }, message: 'uid is not the agent' },
      { decision: 'refused', peer: { uid: agentUser }, message: 'no ticket came within 2000 ms' },
    ]);
    world.helper.native.close(await world.helper.claim(await ticket()));
  });

  describe.runIf(hasPassRights)('a socket that keeps whoever closes it last', () => {
    it('AFT-008 is not sent over a connection to launcher-sock', async () => {
      await pod.launcher.listen('sockets/other', 'linger');
      pod.moveListener('sockets/other');
      const socket = new Socket({ fd: await world.helper.claim(await ticket()) });
      expect(await firstBytes(socket)).toBe('x');
      expect(await pod.launcher.lingering('sockets/other')).toBe('EPERM');
      socket.destroy();
    });

    it('AFT-008 is not sent over the notify pipe', async () => {
      const { message, text } = await world.callFor(methodNamed('SocketService.Listen'), pod);
      if (message === undefined) throw new Error(text);
      const { ticket: value } = fromBinary(ListenResponseSchema, message);
      const fd = await world.helper.claim(value?.value ?? new Uint8Array());
      const server = createServer();
      const connected = new Promise<Socket>((resolve) => server.once('connection', resolve));
      server.listen({ fd } as ListenOptions);
      const notify = pod.path('public/domain-notify-pipe.sock');
      const launcher = lingerAt(qemuUser, 'SOCK_STREAM', notify);
      try {
        expect(await launcher.said()).toBe('EPERM');
        expect(await firstBytes(await connected)).toBe('x');
      } finally {
        (await connected).destroy();
        server.close();
        launcher.kill();
      }
    });

    it.each([
      ['helper.sock', 'SOCK_STREAM'],
      ['fd.sock', 'SOCK_SEQPACKET'],
    ] as const)('AFT-008 is not sent to the helper over %s', async (name, type) => {
      await world.disconnect();
      const agent = lingerAt(agentUser, type, join(world.helper.socketDir, name));
      expect(await agent.said()).toBe('EPERM');
      agent.kill();
      await waitFor('the helper to notice', deadlineMs, async () => {
        const { agentPid } = await world.helper.operator(InspectService).getHelper({});
        return agentPid === 0;
      });
      expect((await world.callFor(identify, pod)).code).toBe('');
    });
  });

  it('is told apart from a helper before it by tickets of none', async () => {
    const old = await ticket();
    await world.disconnect();
    await world.restartHelper();
    await expect(world.helper.claim(old)).rejects.toMatchObject({ code: 'EACCES' });
    expect((await world.callFor(identify, world.bystander)).code).toBe('');
    expect((await world.callFor(identify, pod)).code).toBe('');
    await world.remember();
  });
});

/** A process with that number, outside every pod. */
async function takeNumber(pid: number) {
  return waitFor(`a process with number ${pid}`, deadlineMs, () => {
    writeFileSync('/proc/sys/kernel/ns_last_pid', `${pid - 1}`);
    const made = spawn('sleep', ['infinity'], { stdio: 'ignore' });
    if (made.pid === pid) return made;
    made.kill('SIGKILL');
    return undefined;
  });
}
