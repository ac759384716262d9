/** Small helpers of the harness: running a program, waiting for a condition. */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from 'node:child_process';
import { promisify } from 'node:util';

const execFileAsync = promisify(execFile);
const commandTimeoutMs = 20_000;
const maxOutputBytes = 4 * 1024 * 1024;

interface RunOptions {
  readonly timeoutMs?: number;
  /** What the program reads from standard input; without it that is empty. */
  readonly input?: string;
}

/** Runs a program to its end. Resolves to its output; the error of a failed one carries what it said. */
export async function run(
  command: string,
  args: readonly string[],
  { timeoutMs = commandTimeoutMs, input = '' }: RunOptions = {},
): Promise<string> {
  const running = execFileAsync(command, args, {
    timeout: timeoutMs,
    maxBuffer: maxOutputBytes,
    encoding: 'utf8',
  });
  // One that ends without reading breaks the pipe; its own error tells why.
  running.child.stdin?.on('error', () => undefined).end(input);
  const { stdout } = await running;
  return stdout;
}

/** `true` when the program ended with 0. */
export async function succeeds(command: string, args: readonly string[]): Promise<boolean> {
  return run(command, args).then(
    () => true,
    () => false,
  );
}

/** Polls until `condition` gives a value. Throws naming `what` when `timeoutMs` have passed. */
export async function waitFor<T>(
  what: string,
  timeoutMs: number,
  condition: () => T | undefined | false | Promise<T | undefined | false>,
): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const value = await condition();
    if (value !== undefined && value !== false) return value;
    if (performance.now() > deadline) throw new Error(`${what}: not within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export interface ProcessExit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** A child of the harness with its end as a promise. */
export interface Spawned {
  readonly child: ChildProcess;
  readonly pid: number;
  readonly exited: Promise<ProcessExit>;
}

export function start(command: string, args: readonly string[], options: SpawnOptions): Spawned {
  const child = spawn(command, args, options);
  const exited = new Promise<ProcessExit>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }));
    child.once('error', () => resolve({ code: null, signal: null }));
  });
  if (child.pid === undefined) throw new Error(`cannot start ${command}`);
  return { child, pid: child.pid, exited };
}

/** Sends a signal; a process that is gone already is fine. */
export function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}
