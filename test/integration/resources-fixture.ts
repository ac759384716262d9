/** Stand-ins for the processes of a launcher pod whose limits, CPUs and scheduling the helper sets. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Container } from '../harness/pods/pod.js';
import { childrenOf } from '../harness/pods/proc.js';
import { waitFor } from '../harness/pods/run.js';
import { qemuUser } from './privhelper-fixture.js';

export const namedProgram = fileURLToPath(new URL('../harness/pods/named-process.py', import.meta.url));
const deadlineMs = 20_000;

export interface ThreadState {
  readonly tid: number;
  readonly comm: string;
  /** SCHED_OTHER 0, SCHED_FIFO 1; sched(7). */
  readonly policy: number;
  readonly priority: number;
  readonly cpus: string;
  /** Path in the hierarchy of the cpusets. */
  readonly cpuset: string;
}

/** A process with a name, threads with names, and ways to change these. */
export class NamedProcess {
  #said = '';
  #daemon: number | undefined;
  private constructor(private readonly child: ChildProcess) {
    child.stdout?.on('data', (chunk: Buffer) => {
      this.#said += chunk.toString();
    });
  }

  /**
   * A child of this process, which is the parent of the launchers of TestPods as the monitor is in a pod. `cgroups`:
   * directories that it is to be in.
   */
  static async start(comm: string, threads: readonly string[], cgroups: readonly string[]) {
    const user = ['--reuid', `${qemuUser}`, '--regid', `${qemuUser}`, '--clear-groups'];
    const child = spawn('setpriv', [...user, '/usr/bin/python3', namedProgram, comm, ...threads], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const named = new NamedProcess(child);
    await named.#hear('ready');
    for (const directory of cgroups) writeFileSync(join(directory, 'cgroup.procs'), `${named.pid}`);
    return named;
  }

  /** In a container of a harness pod, as virtqemud starts QEMU: daemonized, so that it is a child of process 1 there. Ends with the pod. */
  static async inContainer({ pid, cgroups }: Container, comm: string, threads: readonly string[]) {
    const enter = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"';
    const user = ['setpriv', '--reuid', `${qemuUser}`, '--regid', `${qemuUser}`, '--clear-groups'];
    const daemon = [
      'sh',
      '-c',
      'tail -f /dev/null | "$@" &',
      'sh',
      '/usr/bin/python3',
      '/harness/named-process.py',
    ];
    const child = spawn(
      'sh',
      [
        ...['-c', enter, 'sh', ...cgroups, '--', 'nsenter', '--target', `${pid}`, '--pid', '--mount', '--'],
        ...[...user, ...daemon, comm, ...threads],
      ],
      { stdio: ['pipe', 'pipe', 'inherit'] },
    );
    const named = new NamedProcess(child);
    await named.#hear('ready');
    named.#daemon = childrenOf(pid).find(
      (each) => readFileSync(`/proc/${each}/comm`, 'utf8') === `${comm.slice(0, 15)}\n`,
    );
    return named;
  }

  get pid(): number {
    return this.#daemon ?? this.child.pid ?? 0;
  }

  begin(thread: string): Promise<void> {
    return this.#tell(thread);
  }

  end(thread: string): Promise<void> {
    return this.#tell(`-${thread}`);
  }

  threads(): ThreadState[] {
    return threadsOf(this.pid);
  }

  thread(comm: string): ThreadState {
    const found = this.threads().find((each) => each.comm === comm);
    if (found === undefined) throw new Error(`no thread ${comm}`);
    return found;
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await waitFor('a named process to end', deadlineMs, () => this.child.signalCode !== null);
  }

  async #tell(line: string): Promise<void> {
    const before = this.#said.length;
    this.child.stdin?.write(`${line}\n`);
    await this.#hear('done', before);
  }

  #hear(word: string, after = 0): Promise<true> {
    return waitFor(`a named process to say ${word}`, deadlineMs, () =>
      this.#said.slice(after).includes(`${word}\n`) ? true : undefined,
    );
  }
}

export function threadsOf(pid: number): ThreadState[] {
  return readdirSync(`/proc/${pid}/task`).map((tid) => {
    const read = (name: string) => readFileSync(`/proc/${pid}/task/${tid}/${name}`, 'utf8');
    const stat = read('stat');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return {
      tid: Number(tid),
      comm: read('comm').trimEnd(),
      priority: Number(fields[37]),
      policy: Number(fields[38]),
      cpus: /^Cpus_allowed_list:\t(.*)$/m.exec(read('status'))?.[1] ?? '',
      cpuset: /^\d+:cpuset:(.*)$/m.exec(read('cgroup'))?.[1] ?? '',
    };
  });
}

/**
 * Where the kernel shares out real-time CPU time among cgroups of v1, a pod has none unless it is given some, and
 * every real-time thread in it is refused (Linux Documentation/scheduler/sched-rt-group.rst).
 */
export function allowRealtime(cgroups: readonly string[]): void {
  const container = cgroups.find((directory) => existsSync(join(directory, 'cpu.rt_runtime_us')));
  if (container === undefined) return;
  const pod = dirname(container);
  const file = (directory: string) => join(directory, 'cpu.rt_runtime_us');
  const above: string[] = [];
  for (let each = dirname(pod); existsSync(file(each)); each = dirname(each)) {
    if (Number(readFileSync(file(each), 'utf8')) > 0) break;
    above.unshift(each);
  }
  for (const each of above) writeFileSync(file(each), '200000');
  writeFileSync(file(pod), '4000');
  writeFileSync(file(container), '2000');
}

/** Soft and hard limit of locked memory. */
export function memlockOf(pid: number): string {
  return (
    /^Max locked memory +(\S+) +(\S+)/m
      .exec(readFileSync(`/proc/${pid}/limits`, 'utf8'))
      ?.slice(1)
      .join(' ') ?? ''
  );
}
