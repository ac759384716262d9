/** Watching and disturbing the system calls of processes with strace. */
import { join } from 'node:path';
import { readdirIfThere, readIfThere } from '../pods/proc.js';
import { type Spawned, signal, start, waitFor } from '../pods/run.js';

const attachMs = 20_000;

/** Resolves when every thread of the processes is traced. */
async function attach(pids: readonly number[], options: readonly string[]): Promise<Spawned> {
  const strace = start('strace', ['-f', '-qq', ...options, ...pids.flatMap((pid) => ['-p', String(pid)])], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  await waitFor('strace to attach', attachMs, () => pids.every((pid) => isTraced(pid, strace.pid)));
  return strace;
}

function isTraced(pid: number, tracer: number): boolean {
  const threads = readdirIfThere(`/proc/${pid}/task`);
  const line = new RegExp(`^TracerPid:\\t${tracer}$`, 'm');
  return (
    threads.length > 0 &&
    threads.every((tid) => {
      const status = readIfThere(`/proc/${pid}/task/${tid}/status`);
      return status === '' || line.test(status);
    })
  );
}

/** Every attempt to make a process or to execute a program, whatever came of it. */
export class ProcessTrace {
  private constructor(
    private readonly strace: Spawned,
    private readonly pids: readonly number[],
    private readonly log: string,
  ) {}

  /** `directory`: where the trace is kept. */
  static async attach(pids: readonly number[], directory: string): Promise<ProcessTrace> {
    const log = join(directory, `processes-${pids.join('-')}.trace`);
    const calls = 'execve,execveat,fork,vfork,clone,clone3';
    const strace = await attach(pids, ['-e', `trace=${calls}`, '-e', 'signal=none', '-o', log]);
    return new ProcessTrace(strace, pids, log);
  }

  /** Whether every thread is traced now. */
  get complete(): boolean {
    return this.pids.every((pid) => isTraced(pid, this.strace.pid));
  }

  /** Ends the trace. Resolves to the lines of strace about anything but new threads. */
  async stop(): Promise<string[]> {
    signal(this.strace.pid, 'SIGINT');
    await this.strace.exited;
    return readIfThere(this.log)
      .split('\n')
      .filter((line) => /^\d+ +\w+\(/.test(line) && !line.includes('CLONE_THREAD'));
  }
}

/**
 * From now on the process is killed in the moment when one of its threads is about to make a system call for
 * the `nth` time, which is then not made. Resolves when that is armed.
 */
export async function killInSystemCall(
  pid: number,
  call: string,
  nth: number,
): Promise<{ readonly death: Promise<void> }> {
  const inject = `inject=${call}:signal=SIGKILL:when=${nth}`;
  const strace = await attach([pid], ['-e', `trace=${call}`, '-e', inject, '-o', '/dev/null']);
  // strace ends with the last process that it traces.
  return { death: strace.exited.then(() => undefined) };
}
