/** A process in a container's cgroup that opens device nodes: what the container may open. */
import { type ChildProcess, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { waitFor } from '../pods/run.js';

const deadlineMs = 20_000;

/**
 * Reads JSON lines: `["open", path]` answers the error of opening, empty for none; `["watch", ...paths]` opens them
 * over and over until the next line, and then answers how often it was all of them, and what failed.
 */
const program = `
const fs = require('node:fs');
const say = (value) => process.stdout.write(JSON.stringify(value) + '\\n');
const open = (path) => {
  try { fs.closeSync(fs.openSync(path, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK)); return ''; }
  catch (error) { return error.code; }
};
let watching = false;
const watch = (paths, rounds, failures) => {
  for (let i = 0; i < 50; i++) {
    for (const path of paths) { const code = open(path); if (code !== '') failures.push(path + ' ' + code); }
  }
  if (watching) setImmediate(watch, paths, rounds + 50, failures);
  else say({ rounds: rounds + 50, failures: failures.slice(0, 10) });
};
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const [verb, ...paths] = JSON.parse(line);
  if (verb === 'open') say(open(paths[0]));
  if (verb === 'watch') { watching = true; say('watching'); watch(paths, 0, []); }
  if (verb === 'stop') watching = false;
}).on('close', () => process.exit(0));
say('started');
`;

/** Error of opening a device that is denied. */
export const denied = 'EPERM';

export class Opener {
  readonly #answers: unknown[] = [];
  #heard = 0;

  private constructor(private readonly child: ChildProcess) {
    if (child.stdout === null) throw new Error('no output');
    createInterface({ input: child.stdout }).on('line', (line) => this.#answers.push(JSON.parse(line)));
  }

  /** @param cgroups directories into which the process is put; in others it stays where the test is */
  static async start(cgroups: readonly string[]): Promise<Opener> {
    const child = spawn(process.execPath, ['-e', program], { stdio: ['pipe', 'pipe', 'inherit'] });
    const opener = new Opener(child);
    await opener.#answer();
    for (const cgroup of cgroups) writeFileSync(join(cgroup, 'cgroup.procs'), `${child.pid}`);
    return opener;
  }

  /** The error of opening the node, empty for none. */
  async open(path: string): Promise<string> {
    this.#tell('open', path);
    return String(await this.#answer());
  }

  /** Opens the nodes over and over while `body` runs. Resolves to how often, and to what failed. */
  async during(
    paths: readonly string[],
    body: () => Promise<unknown>,
  ): Promise<{ rounds: number; failures: string[] }> {
    this.#tell('watch', ...paths);
    await this.#answer();
    try {
      await body();
    } finally {
      this.#tell('stop');
    }
    return (await this.#answer()) as { rounds: number; failures: string[] };
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await waitFor(
      'opener to end',
      deadlineMs,
      () => this.child.signalCode !== null || this.child.exitCode !== null,
    );
  }

  #tell(...words: string[]): void {
    this.child.stdin?.write(`${JSON.stringify(words)}\n`);
  }

  async #answer(): Promise<unknown> {
    const index = this.#heard++;
    await waitFor('answer of the opener', deadlineMs, () => this.#answers.length > index);
    return this.#answers[index];
  }
}
