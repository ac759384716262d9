/** The process that measures the helper, seen from the process that gives the orders. */
import { type ChildProcess, fork } from 'node:child_process';
import { join } from 'node:path';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { agentUser } from '../harness/system/system.js';
import type { Order } from './peer.js';

const orderMs = 60_000;

interface Reply {
  readonly times?: readonly number[];
  readonly error?: string;
}

export class Measurer {
  private readonly child: ChildProcess;

  /** Runs as the agent's user; there must be no agent, since the helper serves one at a time. */
  constructor(socketDir: string) {
    this.child = fork(join(repositoryRoot(), 'dist/test/bench/peer.js'), [socketDir], {
      uid: agentUser,
      gid: agentUser,
      cwd: '/',
    });
  }

  /** One order at a time. Resolves to milliseconds. */
  async measure(order: Order): Promise<readonly number[]> {
    const reply = await new Promise<Reply>((resolve) => {
      const settle = (answer: Reply) => {
        clearTimeout(timer);
        this.child.off('exit', onExit).off('message', settle);
        resolve(answer);
      };
      const onExit = () => settle({ error: 'the process ended' });
      const timer = setTimeout(() => settle({ error: `no answer within ${orderMs} ms` }), orderMs);
      this.child.on('exit', onExit).on('message', settle);
      this.child.send(order);
    });
    if (reply.times === undefined) throw new Error(`measuring ${order.measure} failed: ${reply.error}`);
    return reply.times;
  }

  async stop(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.kill('SIGKILL');
    await ended;
  }
}
