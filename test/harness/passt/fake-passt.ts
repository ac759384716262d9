/** passt as the repair of a migration sees it, with real TCP connections of a pod's network namespace. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { waitFor } from '../pods/run.js';

const deadlineMs = 20_000;
const program = new URL('fake-passt.py', import.meta.url).pathname;

/** Below the volume libvirt-runtime, where libvirt lets passt make its sockets. */
export const passtDirectory = 'qemu/run/passt';

/** Values of TCP_REPAIR, linux/tcp.h. */
export const tcpRepair = { on: 1, off: 0, offWithoutProbe: -1 } as const;

export interface Exchange {
  /** Bytes that came back. */
  readonly answers: readonly number[];
  /** Ancillary messages that came with them. */
  readonly ancillary: number;
  /** TCP_REPAIR of each connection afterwards. */
  readonly states: readonly number[];
}

export class FakePasst {
  private readonly lines: string[] = [];
  private ended = false;

  private constructor(private readonly child: ChildProcess) {
    if (child.stdout !== null)
      createInterface({ input: child.stdout }).on('line', (line) => this.lines.push(line));
    child.once('close', () => {
      this.ended = true;
    });
  }

  /** Listens below `volume` and has that many TCP connections in the network namespace of a process. */
  static async start(
    volume: string,
    netnsPid: number,
    connections: number,
    name = '1-vm-net0.socket.repair',
  ): Promise<FakePasst> {
    const args = [program, join(volume, passtDirectory), name, `${netnsPid}`, `${connections}`];
    const passt = new FakePasst(spawn('/usr/bin/python3', args, { stdio: ['pipe', 'pipe', 'inherit'] }));
    await passt.line(0);
    return passt;
  }

  get pid(): number {
    return this.child.pid ?? 0;
  }

  /** Hands over what it is told and waits for the answers, after the connection that is waited for before the first. */
  async send(value: number, what = 'tcp'): Promise<Exchange> {
    const before = this.lines.length;
    this.child.stdin?.write(`${JSON.stringify([value, what])}\n`);
    return JSON.parse(await this.line(before)) as Exchange;
  }

  /** Closes everything, as passt does once it has sent its state. */
  async stop(): Promise<void> {
    if (this.ended) return;
    this.child.stdin?.end();
    await once(this.child, 'close');
  }

  async kill(): Promise<void> {
    if (this.ended) return;
    this.child.kill('SIGKILL');
    await once(this.child, 'close');
  }

  private line(at: number): Promise<string> {
    return waitFor('passt to go on', deadlineMs, () => {
      if (this.ended) throw new Error('passt has ended');
      return this.lines[at];
    });
  }
}
