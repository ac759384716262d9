/** A claim on a server that stops answering when it is told to. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, rmdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { run, waitFor } from '../pods/run.js';

const deadlineMs = 20_000;
const compileMs = 120_000;

export class StoppingFileSystem {
  #said: string[] = [];

  private constructor(
    private readonly server: ChildProcess,
    /** Where it is mounted. */
    readonly directory: string,
  ) {
    server.stdout?.on('data', (chunk: Buffer) => {
      this.#said.push(...chunk.toString().trim().split('\n'));
    });
  }

  /** @param program its server; made when it is not there */
  static async mount(directory: string, program: string): Promise<StoppingFileSystem> {
    if (!existsSync(program)) {
      const source = fileURLToPath(new URL('stopping-fs.cc', import.meta.url));
      const flags = ['-std=c++17', '-O1', '-Wall', '-Wextra', '-Werror'];
      await run('c++', [...flags, '-o', program, source], { timeoutMs: compileMs });
    }
    mkdirSync(directory);
    const server = spawn(program, [directory], { stdio: ['pipe', 'pipe', 'inherit'] });
    const mounted = new StoppingFileSystem(server, directory);
    await mounted.#hear('ready', 1);
    return mounted;
  }

  #hear(word: string, times: number): Promise<true> {
    return waitFor(`file system to say ${word} ${times} times`, deadlineMs, () => {
      if (this.server.exitCode !== null) throw new Error(`file system ended with ${this.server.exitCode}`);
      return this.#said.filter((each) => each === word).length >= times;
    });
  }

  /** From now on whoever asks it waits until it ends. */
  async fallSilent(): Promise<void> {
    this.server.stdin?.write('\n');
    await this.#hear('silent', 1);
  }

  /** Resolves when so many requests have got no answer. */
  async asked(times: number): Promise<void> {
    await this.#hear('asked', times);
  }

  /** Whoever waits for it gets an error; so does whoever asks it later. */
  async end(): Promise<void> {
    if (this.server.exitCode !== null || this.server.signalCode !== null) return;
    const exited = once(this.server, 'exit');
    this.server.kill('SIGKILL');
    await exited;
  }

  async unmount(): Promise<void> {
    await this.end();
    await run('umount', ['--lazy', this.directory]);
    rmdirSync(this.directory);
  }
}
