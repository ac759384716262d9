import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  fstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { connect, Socket } from 'node:net';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type InotifyEvent, loadNative, type Peer, type RefusedRequest } from '../../native/binding.js';
import { NativeChild } from './native-child.js';

const native = loadNative();
const deadlineMs = 10_000;

/** Resolves to what the returned function is called with; rejects when that takes too long. */
function once<T>(what: string): [Promise<T>, (value: T) => void] {
  let settle: (value: T) => void = () => {};
  const promise = new Promise<T>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${what}: not within ${deadlineMs} ms`)), deadlineMs);
    settle = (value) => {
      clearTimeout(timer);
      resolve(value);
    };
  });
  return [promise, settle];
}

describe('unprivileged channels', () => {
  let directory: string;
  const cleanups: (() => void)[] = [];
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'native-'));
  });
  afterEach(() => {
    for (const cleanup of cleanups.splice(0).reverse()) cleanup();
    rmSync(directory, { recursive: true, force: true });
  });

  const listen = (name: string, type: 'stream' | 'seqpacket'): [string, number] => {
    const path = join(directory, name);
    return [path, native.listenUnix({ path, type, mode: 0o660, gid: process.getgid?.() ?? 0, backlog: 128 })];
  };

  it('accepts connections and tells who they are', async () => {
    const [path, fd] = listen('helper.sock', 'stream');
    expect(statSync(path).mode & 0o7777).toBe(0o660);
    const [connected, settle] = once<[number, Peer]>('a connection');
    const acceptor = native.acceptConnections(fd, (connection, peer) => settle([connection, peer]));
    cleanups.push(() => acceptor.stop());
    const client = connect(path);
    cleanups.push(() => client.destroy());
    const [connection, peer] = await connected;
    expect(peer).toEqual({ pid: process.pid, uid: process.getuid?.(), gid: process.getgid?.() });
    const server = new Socket({ fd: connection });
    cleanups.push(() => server.destroy());
    const [received, gotBytes] = once<string>('bytes');
    server.once('data', (bytes) => gotBytes(bytes.toString()));
    client.write('hello');
    expect(await received).toBe('hello');
  });

  it('takes a burst of connections in order and stops at once', async () => {
    const [path, fd] = listen('helper.sock', 'stream');
    const fds: number[] = [];
    const [all, settle] = once<void>('all connections');
    const acceptor = native.acceptConnections(fd, (connection) => {
      fds.push(connection);
      if (fds.length === 100) settle();
    });
    const clients = Array.from({ length: 100 }, () => connect(path));
    await all;
    acceptor.stop();
    acceptor.stop();
    for (const connection of fds) native.close(connection);
    for (const client of clients) client.destroy();
    const [refused, gotError] = once<string>('refusal');
    connect(path).once('error', (error: NodeJS.ErrnoException) => gotError(error.code ?? ''));
    expect(await refused).toBe('ECONNREFUSED');
  });

  it('replaces an old socket, nothing else', () => {
    const [path, first] = listen('helper.sock', 'stream');
    native.close(first);
    const [, second] = listen('helper.sock', 'stream');
    native.close(second);
    rmSync(path);
    writeFileSync(path, 'precious');
    expect(() => listen('helper.sock', 'stream')).toThrow(
      expect.objectContaining({ code: 'EEXIST', refused: true }),
    );
    expect(readFileSync(path, 'utf8')).toBe('precious');
    rmSync(path);
    symlinkSync('/nonexistent', path);
    expect(() => listen('helper.sock', 'stream')).toThrow(expect.objectContaining({ code: 'EEXIST' }));
  });

  const serve = (timeoutMs: number, file: string): [string, (Uint8Array | RefusedRequest)[]] => {
    const [path, fd] = listen('fd.sock', 'seqpacket');
    const requests: (Uint8Array | RefusedRequest)[] = [];
    const server = native.serveDescriptors(
      fd,
      { maxBytes: 32, timeoutMs, maxConnections: 8, uid: process.getuid?.() ?? 0 },
      (request, peer, reply) => {
        requests.push(request);
        if (typeof request === 'string') return reply(constants.errno[request], null);
        if (peer.pid !== process.pid) return reply(1, null);
        if (request[0] === 0) return; // never answers
        if (request[0] === 1) return reply(2, null); // ENOENT
        reply(0, openSync(file, 'r'));
        reply(0, openSync(file, 'r')); // the second is closed unsent
      },
    );
    cleanups.push(() => server.stop());
    return [path, requests];
  };

  it('hands descriptors over for tickets', async () => {
    const file = join(directory, 'file');
    writeFileSync(file, 'content');
    const [path, requests] = serve(5000, file);
    const ticket = Uint8Array.from([7, ...randomBytes(31)]);
    const fds = await Promise.all(
      Array.from({ length: 8 }, () => native.claimDescriptor(path, ticket, deadlineMs)),
    );
    expect(requests[0]).toEqual(ticket);
    for (const fd of fds) {
      expect(fstatSync(fd).ino).toBe(statSync(file).ino);
      closeSync(fd);
    }
    await expect(native.claimDescriptor(path, Uint8Array.of(1), deadlineMs)).rejects.toMatchObject({
      code: 'ENOENT',
      operation: 'claim descriptor',
      message: 'claim descriptor: No such file or directory (ENOENT)',
    });
    await expect(native.claimDescriptor(path, new Uint8Array(33), deadlineMs)).rejects.toMatchObject({
      code: 'EMSGSIZE',
    });
    expect(requests.at(-1)).toBe('EMSGSIZE');
    await expect(native.claimDescriptor(path, new Uint8Array(0), deadlineMs)).rejects.toMatchObject({
      code: 'EMSGSIZE',
      refused: true,
    });
    await expect(
      native.claimDescriptor(join(directory, 'none'), Uint8Array.of(9), deadlineMs),
    ).rejects.toMatchObject({ code: 'ENOENT', operation: `connect ${join(directory, 'none')}` });
  });

  it('gives up on a side that is silent', async () => {
    const [path] = serve(50, '/dev/null');
    await expect(native.claimDescriptor(path, Uint8Array.of(0), deadlineMs)).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    });
    const [silent, fd] = listen('silent.sock', 'seqpacket');
    cleanups.push(() => native.close(fd));
    await expect(native.claimDescriptor(silent, Uint8Array.of(0), 50)).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    });
  });

  it('reports inotify events and the end of a watch', async () => {
    const child = await NativeChild.start([directory], 1);
    cleanups.push(() => void child.stop());
    const watched = join(directory, 'pods');
    mkdirSync(watched);
    const [dirfd] = await child.call<number[]>('directories');
    const inotify = await child.call<number>('watch');
    const call = { caps: 1n << 2n, deadlineMs: 5000 };
    const created = 0x100;
    const wd = await child.call<number>('watchDirectory', call, inotify, dirfd, ['pods'], created | 0x400);
    writeFileSync(join(watched, 'launcher-sock'), '');
    expect(await child.call<InotifyEvent[]>('events', 1)).toEqual([
      { wd, mask: created, name: 'launcher-sock' },
    ]);
    for (let i = 0; i < 1000; i++) writeFileSync(join(watched, `f${i}`), '');
    const many = await child.call<InotifyEvent[]>('events', 1000);
    expect(many.map((event) => event.name)).toEqual(Array.from({ length: 1000 }, (_, i) => `f${i}`));
    expect(await child.call<number>('largestBatch')).toBeLessThanOrEqual(256);
    expect((await child.failure('watchDirectory', call, inotify, dirfd, ['pods', 'f1'], created)).code).toBe(
      'ENOTDIR',
    );
    symlinkSync('pods', join(directory, 'link'));
    expect(await child.failure('watchDirectory', call, inotify, dirfd, ['link'], created)).toMatchObject({
      code: 'ELOOP',
      refused: true,
    });
    const modifiers = await child.failure('watchDirectory', call, inotify, dirfd, ['pods'], 0x80000000);
    expect(modifiers).toMatchObject({ code: 'EINVAL', refused: true });
    rmSync(watched, { recursive: true });
    const last = await child.call<InotifyEvent[]>('events', 2);
    expect(last.map((event) => event.mask)).toEqual([0x400, 0x8000]);
    await child.call('removeWatch', inotify, wd);
  });

  it('keeps the process alive only while something is active', async () => {
    const script = `
      const native = require(process.argv[1]);
      const fd = native.listenUnix({ path: process.argv[2], type: 'stream', mode: 0o600, gid: process.getgid(), backlog: 1 });
      const acceptor = native.acceptConnections(fd, (connection) => {
        console.log('active');
        require('node:fs').closeSync(connection);
        acceptor.stop();
      });
      console.log('listening');`;
    const addon = createRequire(import.meta.url).resolve('../../build/Release/privsep.node');
    const child = spawn(process.execPath, ['-e', script, addon, join(directory, 's')]);
    cleanups.push(() => child.kill('SIGKILL'));
    let output = '';
    child.stdout.on('data', (bytes) => {
      output += String(bytes);
    });
    // Nothing but the acceptor keeps it until this comes.
    child.stdout.once('data', () => connect(join(directory, 's')).on('error', () => undefined));
    const [ended, settle] = once<number | null>('the process to end');
    child.once('close', (code) => settle(code));
    expect(await ended).toBe(0);
    expect(output).toBe('listening\nactive\n');
  });

  it('ends cleanly in the middle of everything', async () => {
    const script = `
      const native = require(process.argv[1]);
      native.startPrivilegedThreads({ count: 2, permitted: 0n });
      const fd = native.listenUnix({ path: process.argv[2], type: 'seqpacket', mode: 0o600, gid: process.getgid(), backlog: 9 });
      const limits = { maxBytes: 9, timeoutMs: 9000, maxConnections: 9, uid: process.getuid() };
      native.serveDescriptors(fd, limits, () => process.exit(7));
      native.createInotify(() => {});
      for (let i = 0; i < 8; i++) native.claimDescriptor(process.argv[2], Uint8Array.of(1), 9000).catch(() => {});
      const dir = require('node:fs').openSync('/tmp', 'r');
      for (let i = 0; i < 200; i++) native.listDirectory({ caps: 0n, deadlineMs: 9000 }, dir, [], 60000).catch(() => {});`;
    const addon = createRequire(import.meta.url).resolve('../../build/Release/privsep.node');
    const child = spawn(process.execPath, ['-e', script, addon, join(directory, 's')]);
    cleanups.push(() => child.kill('SIGKILL'));
    const [ended, settle] = once<[number | null, string | null]>('the process to end');
    child.once('exit', (code, signal) => settle([code, signal]));
    expect(await ended).toEqual([7, null]);
  });
});
