/** Programs in C++ that do the helper's native work, without helper and protocol. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { run } from '../harness/pods/run.js';

const buildMs = 600_000;
const answerMs = 60_000;

type Name = 'privsep_net_bench' | 'privsep_disk_bench';

/** One of them, running: it is asked between the helper's own measurements, so that both meet the same machine. */
export class BareLoop {
  private readonly child: ChildProcessByStdio<Writable, Readable, null>;
  private readonly answers: Interface;

  private constructor(
    private readonly name: Name,
    path: string,
    args: readonly string[],
  ) {
    this.child = spawn(path, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.answers = createInterface({ input: this.child.stdout });
  }

  /** Builds the program beside the addon first: seconds at the first time, nothing later. */
  static async start(name: Name, args: readonly string[] = []): Promise<BareLoop> {
    const root = repositoryRoot();
    const build = join(root, 'build', 'bench');
    await run('cmake', ['-S', join(root, 'native'), '-B', build, '-DCMAKE_BUILD_TYPE=Release']);
    await run('cmake', ['--build', build, '--target', name, '-j2'], { timeoutMs: buildMs });
    return new BareLoop(name, join(build, name), args);
  }

  /** One order at a time. Resolves to milliseconds. */
  async measure(order: string): Promise<number> {
    const answer = await new Promise<string>((resolve, reject) => {
      const settle = (end: () => void) => {
        clearTimeout(timer);
        this.answers.off('line', onLine).off('close', onClose);
        end();
      };
      const fail = (reason: string) => settle(() => reject(new Error(`${this.name} ${order}: ${reason}`)));
      const onLine = (line: string) => settle(() => resolve(line));
      const onClose = () => fail('the program ended');
      const timer = setTimeout(() => fail(`no answer within ${answerMs} ms`), answerMs);
      this.answers.on('line', onLine).on('close', onClose);
      this.child.stdin.write(`${order}\n`);
    });
    return Number(answer) / 1000;
  }

  stop(): void {
    this.child.stdin.end();
  }
}
