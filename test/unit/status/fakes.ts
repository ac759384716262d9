import { createLogger, type Logger } from '../../../agent/log/log.js';
import type { StatusPorts } from '../../../agent/reconcile/status/pass.js';

export function silentLog(lines: string[] = []): Logger {
  return createLogger({
    component: 'test',
    level: 'debug',
    write: (line) => lines.push(line),
    now: () => new Date(0),
  });
}

export interface FakeOptions {
  /** Milliseconds since the epoch. */
  readonly now?: number;
  readonly lines?: string[];
}

/** Ports that know nothing and fail nothing. */
export function fakePorts({ now = 0, lines = [] }: FakeOptions = {}): StatusPorts {
  return {
    launchers: {
      get: async () => {
        throw new Error('no launcher');
      },
    },
    facts: { selinuxContext: async () => undefined, isoSize: () => Promise.reject(new Error('no ISO here')) },
    hotplug: { isMounted: async () => false },
    containerDisks: { computeChecksums: () => ({ containerDisks: new Map() }) },
    netStat: { updateStatus: async () => {} },
    backupTrackers: { list: () => [], requireRedefinition: async () => {} },
    clock: { now: () => now },
    log: silentLog(lines),
  };
}
