/**
 * What a call costs before anything of ours is in it: unix sockets that are answered at once, and how they are asked.
 * Both ends run in Node, as helper and agent do, each in its own process.
 */
import { chmodSync } from 'node:fs';
import http2 from 'node:http2';
import net from 'node:net';
import { join } from 'node:path';

/** About those of Health. */
const message = Buffer.alloc(64);

const echoSocket = (directory: string) => join(directory, 'echo.sock');
const http2Socket = (directory: string) => join(directory, 'http2.sock');

/** Answers in `directory`, to everybody. Resolves to what ends it. */
export async function serveFloor(directory: string): Promise<() => void> {
  const echo = net.createServer((socket) => socket.pipe(socket));
  const unary = http2.createServer();
  unary.on('stream', (stream) => {
    stream.resume();
    stream.on('end', () => {
      stream.respond({
        ':status': 200,
        'content-type': 'application/proto',
        'content-length': message.length,
      });
      stream.end(message);
    });
  });
  await listen(echo, echoSocket(directory));
  await listen(unary, http2Socket(directory));
  return () => {
    echo.close();
    unary.close();
  };
}

async function listen(server: net.Server, path: string): Promise<void> {
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(path, resolve));
  chmodSync(path, 0o666);
}

/** A message there and back, over one connection. */
export function echoCall(directory: string): { call: () => Promise<void>; close: () => void } {
  const socket = net.connect(echoSocket(directory));
  const call = () =>
    new Promise<void>((resolve) => {
      socket.once('data', () => resolve());
      socket.write(message);
    });
  return { call, close: () => socket.destroy() };
}

/** A unary call that does nothing, over one session. */
export function unaryCall(directory: string): { call: () => Promise<void>; close: () => void } {
  const session = http2.connect('http://localhost', {
    createConnection: () => net.connect(http2Socket(directory)),
    settings: { enablePush: false },
  });
  const call = () =>
    new Promise<void>((resolve, reject) => {
      const stream = session.request({
        ':method': 'POST',
        ':path': '/floor.Floor/Call',
        'content-type': 'application/proto',
      });
      stream.resume();
      stream.on('end', resolve);
      stream.on('error', reject);
      stream.end(message);
    });
  return { call, close: () => session.destroy() };
}
