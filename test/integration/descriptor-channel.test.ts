import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { NativeDescriptorChannel } from '../../agent/helper/descriptors.js';
import { loadNative } from '../../native/binding.js';

const native = loadNative();
const timeoutMs = 5_000;

let directory: string;
let fdSocket: string;
let channel: NativeDescriptorChannel;
const cleanups: (() => void)[] = [];
/** Ticket -> the descriptor that it stands for. */
const tickets = new Map<string, number>();

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'fd-channel-'));
  fdSocket = join(directory, 'fd.sock');
  const listening = native.listenUnix({ path: fdSocket, type: 'seqpacket', mode: 0o600, gid: 0, backlog: 8 });
  const served = native.serveDescriptors(
    listening,
    { maxBytes: 64, timeoutMs, maxConnections: 8, uid: process.getuid?.() ?? 0 },
    (request, _, reply) => {
      const ticket = Buffer.from(request as Uint8Array).toString();
      const fd = tickets.get(ticket);
      tickets.delete(ticket);
      // 2: ENOENT
      if (fd === undefined) reply(2, null);
      else reply(0, fd);
    },
  );
  cleanups.push(() => served.stop());
  channel = new NativeDescriptorChannel(native, fdSocket, timeoutMs);
});
afterEach(() => {
  for (const cleanup of cleanups.splice(0)) cleanup();
  rmSync(directory, { recursive: true, force: true });
});

function listen(name: string): { path: string; fd: number } {
  const path = join(directory, name);
  return { path, fd: native.listenUnix({ path, type: 'stream', mode: 0o600, gid: 0, backlog: 8 }) };
}

function firstData(socket: Socket): Promise<string> {
  return new Promise((resolve, reject) => {
    socket.once('data', (data) => resolve(data.toString())).once('error', reject);
  });
}

describe('a claimed descriptor', () => {
  it('that is connected carries bytes both ways', async () => {
    const { path, fd } = listen('peer.sock');
    const accepted = new Promise<number>((resolve) => {
      const accepting = native.acceptConnections(fd, (connection) => resolve(connection));
      cleanups.push(() => accepting.stop());
    });
    const peer = connect(path);
    cleanups.push(() => peer.destroy());
    tickets.set('connected', await accepted);
    const socket = await channel.connected(Buffer.from('connected'));
    cleanups.push(() => socket.destroy());
    socket.write('from the agent');
    expect(await firstData(peer)).toBe('from the agent');
    peer.write('from the launcher');
    expect(await firstData(socket)).toBe('from the launcher');
  });

  it('that listens is served, and closing it leaves the socket file to the helper', async () => {
    const { path, fd } = listen('notify.sock');
    tickets.set('listening', fd);
    const server = createServer((socket) => socket.end('served'));
    await channel
      .listening(Buffer.from('listening'))
      .then((options) => new Promise<void>((resolve) => server.listen(options, resolve)));
    expect(await firstData(connect(path))).toBe('served');
    await new Promise((resolve) => server.close(resolve));
    const refused = await new Promise<NodeJS.ErrnoException>((resolve) =>
      connect(path).once('error', resolve),
    );
    expect(refused.code).toBe('ECONNREFUSED');
  });

  it('is handed out once; a second claim fails with the errno of the refusal', async () => {
    tickets.set('once', listen('once.sock').fd);
    const { fd } = (await channel.listening(Buffer.from('once'))) as unknown as { fd: number };
    native.close(fd);
    await expect(channel.listening(Buffer.from('once'))).rejects.toMatchObject({ code: 'ENOENT' });
  });
});
