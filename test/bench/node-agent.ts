/** The agent as a process of its own, over a helper that hands out paths. Answers questions about its memory. */

import { rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { runAgent } from '../../agent/agent.js';
import { parseFlags } from '../../agent/flags.js';
import type { DescriptorChannel } from '../../agent/helper/descriptors.js';
import { createLogger } from '../../agent/log/log.js';

export interface MemoryReport {
  /** Bytes after a full garbage collection. */
  readonly heapUsed: number;
  readonly rss: number;
  readonly descriptors: number;
}

/** Sent once the caches are complete. */
const readyMessage = 'ready';

/** Tickets are paths. */
const paths: DescriptorChannel = {
  connected: (ticket) =>
    new Promise<Socket>((resolve, reject) => {
      const socket = connect(Buffer.from(ticket).toString());
      socket.once('connect', () => resolve(socket));
      socket.once('error', reject);
    }),
  listening: async (ticket) => {
    const path = Buffer.from(ticket).toString();
    await rm(path, { force: true });
    return { path };
  },
  file: () => Promise.reject(new Error('no files here')),
};

const stop = new AbortController();
process.once('SIGTERM', () => stop.abort());
process.on('message', () => {
  globalThis.gc?.();
  const { heapUsed, rss } = process.memoryUsage();
  const report: MemoryReport = { heapUsed, rss, descriptors: process.getActiveResourcesInfo().length };
  process.send?.(report);
});

await runAgent(
  {
    flags: parseFlags(process.argv.slice(2), process.env),
    env: process.env,
    descriptors: paths,
    log: createLogger({
      component: 'virt-handler',
      level: 'info',
      write: (line) => {
        process.stderr.write(line);
        if (line.includes('virt-agent is ready')) process.send?.(readyMessage);
      },
      now: () => new Date(),
    }),
    setVerbosity: () => {},
    onStep: () => {},
  },
  stop.signal,
);
process.disconnect();
