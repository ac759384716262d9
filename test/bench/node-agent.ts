/** The agent as a process of its own, over a helper that hands out paths. Answers questions about itself. */
import { rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { runAgent } from '../../agent/agent.js';
import { parseFlags } from '../../agent/flags.js';
import type { DescriptorChannel } from '../../agent/helper/descriptors.js';
import { createLogger } from '../../agent/log/log.js';
import { loadNative } from '../../native/binding.js';

export interface MemoryReport {
  /** Bytes after a full garbage collection. */
  readonly heapUsed: number;
  readonly rss: number;
  readonly descriptors: number;
}

/** How late timers were while the loop was watched, milliseconds. */
export interface LoopDelay {
  readonly p99: number;
  readonly max: number;
}

/** The loop is watched from the one to the other: a timer that comes each millisecond costs, too. */
export type Question = 'memory' | 'watch loop' | 'loop delay';

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
const loopDelay = monitorEventLoopDelay({ resolution: 1 });

process.on('message', (question: Question) => {
  switch (question) {
    case 'memory':
      return process.send?.(memory());
    case 'watch loop':
      loopDelay.reset();
      return process.send?.(loopDelay.enable());
    case 'loop delay':
      return process.send?.(delay());
  }
});

function memory(): MemoryReport {
  globalThis.gc?.();
  const { heapUsed, rss } = process.memoryUsage();
  return { heapUsed, rss, descriptors: process.getActiveResourcesInfo().length };
}

function delay(): LoopDelay {
  const report = { p99: loopDelay.percentile(99) / 1e6, max: loopDelay.max / 1e6 };
  loopDelay.disable();
  return report;
}

await runAgent(
  {
    flags: parseFlags(process.argv.slice(2), process.env),
    env: process.env,
    descriptors: paths,
    relay: loadNative(),
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
