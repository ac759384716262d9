/**
 * A vitest pool that gives each test file a host of its own: a process in its own network namespace and in its own
 * cgroup of every hierarchy. So files that look at the links, cgroups and processes of "the host" may run side by
 * side, and leftovers.ts can tell which file left something there. Mounts stay the machine's, because what the host
 * has mounted is what process 1 sees. Needs root.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import type { PoolOptions, PoolRunnerInitializer, PoolWorker, WorkerRequest } from 'vitest/node';
import { makeCgroup, removeCgroup } from '../pods/cgroup.js';

const stopMs = 5000;

/** Enters the cgroups and becomes the program. */
const enter = [
  'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 71; shift; done; shift',
  'ip link set lo up || exit 71',
  'exec "$@"',
].join('\n');

export const ownHost: PoolRunnerInitializer = {
  name: 'own-host',
  createPoolWorker: (options) => new OwnHost(options),
};

class OwnHost implements PoolWorker {
  readonly name = ownHost.name;
  readonly cacheFs = true;
  readonly #cgroup = `vitest-${randomBytes(4).toString('hex')}`;
  #child: ChildProcess | undefined;

  constructor(private readonly options: PoolOptions) {}

  get #process(): ChildProcess {
    if (this.#child === undefined) throw new Error('the process of the test file does not run');
    return this.#child;
  }

  async start(): Promise<void> {
    if (this.#child !== undefined) return;
    const { distPath, env, execArgv, project } = this.options;
    const own = ['--net', '--', 'sh', '-c', enter, 'sh', ...makeCgroup(this.#cgroup), '--'];
    const child = fork(join(distPath, 'workers/forks.js'), [], {
      execPath: 'unshare',
      execArgv: [...own, process.execPath, ...execArgv],
      env,
      stdio: 'pipe',
      serialization: 'advanced',
    });
    const { outputStream, errorStream } = project.vitest.logger;
    child.stdout?.pipe(outputStream, { end: false });
    child.stderr?.pipe(errorStream, { end: false });
    this.#child = child;
  }

  async stop(): Promise<void> {
    const child = this.#process;
    if (child.exitCode === null && child.signalCode === null) {
      const exited = once(child, 'exit');
      const timer = setTimeout(() => child.kill('SIGKILL'), stopMs);
      child.kill();
      await exited;
      clearTimeout(timer);
    }
    this.#child = undefined;
    await removeCgroup(this.#cgroup, stopMs);
  }

  on(event: string, callback: (message: unknown) => void): void {
    this.#process.on(event, callback);
  }

  off(event: string, callback: (message: unknown) => void): void {
    this.#process.off(event, callback);
  }

  send(message: WorkerRequest): void {
    this.#process.send(message);
  }

  deserialize(data: unknown): unknown {
    return data;
  }
}
