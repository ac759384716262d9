/** One task at a time for each key, in order of arrival, with a bound on those that wait. */
import { exhausted } from '../failure.js';

export class KeyedQueue {
  private readonly lines = new Map<string, { tail: Promise<unknown>; length: number }>();

  constructor(private readonly maxWaiting: number) {}

  /** Rejects with RESOURCE_EXHAUSTED when too many tasks wait for the key. */
  run<T>(key: string, task: () => Promise<T>): Promise<T> {
    const line = this.lines.get(key) ?? { tail: Promise.resolve(), length: 0 };
    if (line.length > this.maxWaiting) {
      return Promise.reject(exhausted('queue call', `${this.maxWaiting} calls wait for pod ${key}`));
    }
    this.lines.set(key, line);
    line.length += 1;
    const result = line.tail.then(task);
    line.tail = result.then(
      () => this.leave(key, line),
      () => this.leave(key, line),
    );
    return result;
  }

  private leave(key: string, line: { length: number }): void {
    line.length -= 1;
    if (line.length === 0) this.lines.delete(key);
  }
}
