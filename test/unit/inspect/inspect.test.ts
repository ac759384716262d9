import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { UsageError } from '../../../agent/flags.js';
import { InspectServer } from '../../../agent/inspect/server.js';
import { inspectSocketName, timelineCommand } from '../../../agent/inspect/timeline-command.js';
import { Registry } from '../../../agent/metrics/registry.js';
import { TimelineRecorder } from '../../../agent/timeline/timeline.js';
import { testLogger } from '../kube/test-logger.js';

describe('the socket that a running agent answers on', () => {
  let directory: string;
  let path: string;
  let server: InspectServer;
  let at = 0;
  const timelines = new TimelineRecorder({ now: () => 0, monotonic: () => at });
  const metrics = new Registry();
  metrics.gauge('answer', 'The answer.').set(42);
  for (const uid of ['u1', 'u2']) {
    timelines.mark({ namespace: 'ns', name: 'vm', uid }, `seen ${uid}`, 'agent');
    at += 5;
    timelines.mark({ namespace: 'ns', name: 'vm', uid }, 'network set up', 'helper');
  }

  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-inspect-'));
    path = join(directory, inspectSocketName);
    writeFileSync(path, 'left behind');
    server = new InspectServer({ path, metrics, timelines, log: testLogger() });
    await server.start();
  });
  afterEach(async () => {
    await server.stop();
    rmSync(directory, { recursive: true });
  });

  const ask = (requestPath: string, method = 'GET') =>
    new Promise<{ status: number | undefined; text: string }>((resolve, reject) => {
      const request = http.request({ socketPath: path, path: requestPath, method }, (response) => {
        let text = '';
        response.on('data', (chunk) => {
          text += chunk;
        });
        response.on('end', () => resolve({ status: response.statusCode, text }));
      });
      request.on('error', reject).end();
    });
  const command = (...args: string[]) => timelineCommand([...args, '--kubevirt-private-dir', directory]);

  it('belongs to its user alone', () => {
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  it('serves metrics and timelines and nothing else', async () => {
    expect(await ask('/metrics')).toEqual({
      status: 200,
      text: '# HELP answer The answer.\n# TYPE answer gauge\nanswer 42\n',
    });
    expect((await ask('/timeline/ns/vm')).status).toBe(200);
    expect(await ask('/timeline/ns/other')).toEqual({ status: 404, text: 'no timeline of ns/other\n' });
    for (const other of ['/', '/timeline/ns', '/timeline/../x', '/timeline/ns/vm/x', '/timeline/%2e/vm']) {
      expect((await ask(other)).status).toBe(404);
    }
    expect((await ask('/metrics', 'POST')).status).toBe(405);
  });

  it('prints the newest timeline of the name as table, JSON and SVG', async () => {
    expect(await command('ns/vm')).toBe(
      [
        'since takeover  step took  who     step',
        '        0.0 ms    +0.0 ms  agent   seen u2',
        '        5.0 ms    +5.0 ms  helper  network set up',
        '',
      ].join('\n'),
    );
    expect(JSON.parse(await command('ns/vm', '--output', 'json'))).toMatchObject({ vmi: { uid: 'u2' } });
    expect(await command('ns/vm', '-o', 'svg')).toContain('<svg');
  });

  it('tells what is wrong', async () => {
    await expect(command('ns/other')).rejects.toThrow('no timeline of ns/other');
    for (const args of [[], ['vm'], ['ns/vm', 'ns/vm2'], ['ns/vm', '--output', 'xml'], ['ns/vm', '--no']]) {
      await expect(command(...args)).rejects.toThrow(UsageError);
    }
    await expect(timelineCommand(['ns/vm', '--kubevirt-private-dir', '/nonexistent'])).rejects.toThrow(
      'the agent does not answer on /nonexistent/agent.sock',
    );
  });

  it('drops a client that never asks', async () => {
    const silent = connect(path);
    const closed = new Promise((resolve) => silent.once('close', resolve));
    silent.write('GET /metrics HTTP/1.1\r\n');
    silent.resume();
    await closed;
  }, 15_000);
});
