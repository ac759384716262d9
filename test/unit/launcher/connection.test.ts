import { mkdtempSync, rmSync } from 'node:fs';
import http2 from 'node:http2';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { LauncherConnection } from '../../../agent/launcher/connection.js';
import { eventually } from './peers.js';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'connection-'));
});
afterEach(() => {
  vi.useRealTimers();
  rmSync(directory, { recursive: true, force: true });
});

it('WIRE-023 no PING is sent in a day of silence', async () => {
  const path = join(directory, 'launcher-sock');
  const server = http2.createServer();
  let pings = 0;
  let sessions = 0;
  server.on('session', (session) => {
    sessions++;
    session.on('ping', () => pings++);
    session.on('error', () => undefined);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  vi.useFakeTimers({ toFake: ['setTimeout', 'setInterval', 'Date', 'performance'] });
  const socket = await new Promise<Socket>((resolve) => {
    const dialled = connect(path, () => resolve(dialled));
  });
  const connection = new LauncherConnection(socket);
  await vi.advanceTimersByTimeAsync(24 * 3_600_000);
  vi.useRealTimers();
  await eventually(() => sessions === 1, 'the connection arrives');
  // What was sent before this request has arrived before it.
  await connection.negotiate().catch(() => undefined);
  expect(pings).toBe(0);
  expect(connection.alive).toBe(true);
  connection.close();
  server.close();
}, 20_000);
