import { mkdtempSync, rmSync } from 'node:fs';
import { connect as connectHttp2, createServer, type ServerHttp2Session } from 'node:http2';
import { connect, createServer as createSocketServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { endWhenSilent } from '../../../privhelper/server/liveness.js';
import { waitFor } from '../../harness/pods/run.js';

const intervalMs = 20;
const deadlineMs = 10_000;
const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
/** WINDOW_UPDATE with 8 bytes in place of 4. */
const wrongSize = Buffer.from([0, 0, 8, 8, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);

describe('a connection without a sign of life', () => {
  let directory: string;
  let listener: Server;
  let socket: Socket | undefined;
  let session: ServerHttp2Session | undefined;

  const path = () => join(directory, 'server.sock');

  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-liveness-'));
    const server = createServer();
    server.on('session', (opened) => {
      session = opened;
      endWhenSilent(opened, intervalMs);
    });
    listener = createSocketServer((accepted) => {
      socket = accepted;
      server.emit('connection', accepted);
    });
    await new Promise<void>((resolve) => {
      listener.listen(path(), resolve);
    });
  });
  afterEach(() => {
    session?.destroy();
    listener.close();
    rmSync(directory, { recursive: true });
  });

  it('is ended after a frame of the wrong size, also when its other side has gone', async () => {
    const client = connect(path());
    client.end(Buffer.concat([preface, settings, wrongSize]), () => client.destroy());
    await waitFor('socket to be closed', deadlineMs, () => socket?.destroyed);
  });

  it('is ended when it never says anything', async () => {
    const client = connect(path());
    await waitFor('socket to be closed', deadlineMs, () => socket?.destroyed);
    client.destroy();
  });

  it('does not include one that answers', async () => {
    const client = connectHttp2('http://server', { createConnection: () => connect(path()) });
    let pings = 0;
    client.on('ping', () => {
      pings += 1;
    });
    await waitFor('pings', deadlineMs, () => pings >= 4);
    expect(client.destroyed).toBe(false);
    client.destroy();
  });
});
