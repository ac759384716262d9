/** QEMU's control protocol (QMP) over a unix socket. */
import { connect, type Socket } from 'node:net';
import { createInterface } from 'node:readline';

export interface QmpEvent {
  readonly event: string;
  readonly data?: Record<string, unknown>;
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export class QmpError extends Error {
  override readonly name = 'QmpError';
}

const commandTimeoutMs = 10_000;

export class Qmp {
  readonly #pending = new Map<number, Pending>();
  #next = 1;
  /** Resolves when the connection has ended. */
  readonly closed: Promise<void>;

  private constructor(
    private readonly socket: Socket,
    onEvent: (event: QmpEvent) => void,
    onGreeting: () => void,
  ) {
    this.closed = new Promise((resolve) => {
      socket.once('close', () => {
        for (const { reject } of this.#pending.values())
          reject(new QmpError('QEMU closed its control socket'));
        this.#pending.clear();
        resolve();
      });
    });
    socket.on('error', () => socket.destroy());
    createInterface({ input: socket }).on('line', (line) => {
      const message = JSON.parse(line) as Record<string, unknown>;
      if ('QMP' in message) onGreeting();
      else if (typeof message['event'] === 'string') onEvent(message as unknown as QmpEvent);
      else this.#answer(message);
    });
  }

  #answer(message: Record<string, unknown>): void {
    const id = Number(message['id']);
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    const error = message['error'] as { desc?: string } | undefined;
    if (error === undefined) pending?.resolve(message['return']);
    else pending?.reject(new QmpError(error.desc ?? 'unknown QMP error'));
  }

  /** Connects and leaves the negotiation mode. */
  static async connect(path: string, onEvent: (event: QmpEvent) => void): Promise<Qmp> {
    const socket = connect(path);
    const qmp = await new Promise<Qmp>((resolve, reject) => {
      socket.once('error', reject);
      const made: Qmp = new Qmp(socket, onEvent, () => resolve(made));
      void made.closed.then(() => reject(new QmpError('QEMU closed its control socket at once')));
    });
    await qmp.execute('qmp_capabilities');
    return qmp;
  }

  execute(command: string, args?: Record<string, unknown>): Promise<unknown> {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new QmpError(`${command}: no answer within ${commandTimeoutMs} ms`));
      }, commandTimeoutMs);
      const settle =
        <T>(done: (value: T) => void) =>
        (value: T) => {
          clearTimeout(timer);
          done(value);
        };
      if (this.socket.destroyed) {
        settle(reject)(new QmpError('QEMU closed its control socket'));
        return;
      }
      this.#pending.set(id, { resolve: settle(resolve), reject: settle(reject) });
      this.socket.write(`${JSON.stringify({ execute: command, arguments: args, id })}\n`);
    });
  }

  close(): void {
    this.socket.destroy();
  }
}
