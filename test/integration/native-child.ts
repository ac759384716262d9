/** Starts native-child.mjs and calls the addon in it. */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
export const addonPath = here('../../build/Release/privsep.node');

const capability = {
  CHOWN: 0,
  DAC_OVERRIDE: 1,
  DAC_READ_SEARCH: 2,
  FOWNER: 3,
  NET_BIND_SERVICE: 10,
  NET_ADMIN: 12,
  SYS_CHROOT: 18,
  SYS_PTRACE: 19,
  SYS_ADMIN: 21,
} as const;

export function caps(...names: (keyof typeof capability)[]): bigint {
  return names.reduce((mask, name) => mask | (1n << BigInt(capability[name])), 0n);
}

export const permitted = caps(...(Object.keys(capability) as (keyof typeof capability)[]));
export const helperUid = 64_100;

/** What went wrong in a call, as a plain object. */
export interface CallFailure {
  readonly code: string;
  readonly errno: number;
  readonly operation: string;
  readonly refused: boolean;
  readonly unchanged: boolean;
  readonly message: string;
}

interface Answer {
  readonly id?: number;
  readonly value?: unknown;
  readonly error?: CallFailure;
}

export class NativeChild {
  readonly #pending = new Map<number, { resolve(value: unknown): void; reject(error: CallFailure): void }>();
  #nextId = 1;

  private constructor(private readonly process: ChildProcess) {
    process.on('message', (answer: Answer) => {
      const pending = this.#pending.get(answer.id ?? 0);
      if (pending === undefined) return;
      this.#pending.delete(answer.id ?? 0);
      if (answer.error === undefined) pending.resolve(answer.value);
      else pending.reject(answer.error);
    });
  }

  /**
   * Resolves when the child is locked down. `directories` are opened before, as root. `selinux`: as on a node where it
   * is active.
   */
  static async start(directories: readonly string[] = [], count = 4, selinux = false): Promise<NativeChild> {
    const ids = { uid: helperUid, gid: helperUid };
    const options = { count, permitted: String(permitted), ...ids, directories, selinux };
    const child = fork(here('native-child.mjs'), [addonPath, JSON.stringify(options)], {
      serialization: 'advanced',
      execArgv: [],
    });
    await new Promise<void>((resolve, reject) => {
      child.once('message', () => resolve());
      child.once('exit', (code, signal) => reject(new Error(`native-child ended: ${code ?? signal}`)));
    });
    return new NativeChild(child);
  }

  get pid(): number {
    return this.process.pid ?? 0;
  }

  /** Calls a method of the addon or one of the child's own. Rejects with a CallFailure. */
  async call<T>(method: string, ...args: unknown[]): Promise<T> {
    const id = this.#nextId++;
    return (await new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.process.send({ id, method, args });
    })) as T;
  }

  /** The failure of a call that must fail. */
  async failure(method: string, ...args: unknown[]): Promise<CallFailure> {
    const outcome = await this.call(method, ...args).then(
      (value) => ({ value }),
      (error: CallFailure) => error,
    );
    if ('value' in outcome) throw new Error(`${method} gave ${String(outcome.value)}`);
    return outcome;
  }

  async stop(): Promise<void> {
    const exited = new Promise((resolve) => this.process.once('exit', resolve));
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill('SIGKILL');
    await exited;
  }
}
