/** Limits of locked memory on a machine that withholds CAP_SYS_RESOURCE: the helper's wish is noted, not granted. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { sysResource } from '../../../privhelper/declarations.js';
import { readThreads } from '../../../privhelper/privileges.js';
import { run } from '../pods/run.js';

/** Whether root may raise limits on this machine. */
export const mayLift = readThreads().some(({ permitted }) => (permitted & sysResource) !== 0n);

export class NotedLimits {
  private constructor(
    private readonly log: string,
    /** What the helper is to be started with. */
    readonly env: Readonly<Record<string, string>>,
  ) {}

  /** @param directory for the library and the notes */
  static async create(directory: string): Promise<NotedLimits> {
    const log = join(directory, 'prlimit.log');
    writeFileSync(log, '');
    if (mayLift) return new NotedLimits(log, {});
    process.stderr.write('no CAP_SYS_RESOURCE on this machine: limits are asked for, not set\n');
    const source = fileURLToPath(new URL('prlimit.c', import.meta.url));
    const library = join(directory, 'prlimit.so');
    await run('gcc', ['-shared', '-fPIC', '-O1', '-Wall', '-Werror', '-o', library, source]);
    return new NotedLimits(log, { LD_PRELOAD: library, PRLIMIT_LOG: log });
  }

  /** `<pid> <soft> <hard>` for each call, in order; none where the machine lets the limit be raised. */
  lines(): string[] {
    return readFileSync(this.log, 'utf8').split('\n').filter(Boolean);
  }

  clear(): void {
    writeFileSync(this.log, '');
  }
}
