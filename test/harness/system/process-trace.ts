/** Watching, with strace, whether processes try to execute programs. */
import { join } from 'node:path';
import { readdirIfThere, readIfThere } from '../pods/proc.js';
import { type Spawned, signal, start, waitFor } from '../pods/run.js';

const attachMs = 20_000;

/** Every attempt to make a process or to execute a program, whatever came of it. */
export class ProcessTrace {
  private constructor(
    private readonly strace: Spawned,
    private readonly pids: readonly number[],
    private readonly log: string,
  ) {}

  /** Resolves when every thread of the processes is traced. `directory`: where the trace is kept. */
  static async attach(pids: readonly number[], directory: string): Promise<ProcessTrace> {
    const log = join(directory, `processes-${pids.join('-')}.trace`);
    const calls = 'execve,execveat,fork,vfork,clone,clone3';
    const strace = start(
      'strace',
      [
        ...['-f', '-qq', '-e', `trace=${calls}`, '-e', 'signal=none', '-o', log],
        ...pids.flatMap((pid) => ['-p', String(pid)]),
      ],
      { stdio: ['ignore', 'ignore', 'inherit'] },
    );
    const trace = new ProcessTrace(strace, pids, log);
    await waitFor('strace to attach', attachMs, () => trace.complete);
    return trace;
  }

  /** Whether every thread is traced now. */
  get complete(): boolean {
    return this.pids.every((pid) => {
      const threads = readdirIfThere(`/proc/${pid}/task`);
      const tracer = new RegExp(`^TracerPid:\\t${this.strace.pid}$`, 'm');
      return (
        threads.length > 0 &&
        threads.every((tid) => {
          const status = readIfThere(`/proc/${pid}/task/${tid}/status`);
          return status === '' || tracer.test(status);
        })
      );
    });
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
