import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runWorkers } from '../../../agent/kube/workers.js';
import { WorkQueue } from '../../../agent/kube/workqueue.js';
import { FakeTimers, settle } from './fake-timers.js';
import { testLogger } from './test-logger.js';

describe('WorkQueue', () => {
  it('REC-001 holds a key once however often it is added, and hands keys out in order', async () => {
    const queue = new WorkQueue(new FakeTimers());
    for (const key of ['a', 'b', 'a', 'c', 'b']) queue.add(key);
    expect(queue.length).toBe(3);
    expect([await queue.get(), await queue.get(), await queue.get()]).toEqual(['a', 'b', 'c']);
    expect(queue.length).toBe(0);
  });

  it('REC-001 queues a key added while it is processed once more, after it is done', async () => {
    const queue = new WorkQueue(new FakeTimers());
    queue.add('a');
    await queue.get();
    queue.add('a');
    queue.add('a');
    expect(queue.length).toBe(0);
    queue.done('a');
    expect(queue.length).toBe(1);
    expect(await queue.get()).toBe('a');
    queue.done('a');
    expect(queue.length).toBe(0);
  });

  it('REC-001 never processes a key twice at a time with many workers', async () => {
    const timers = new FakeTimers();
    const queue = new WorkQueue(timers);
    const active = new Set<string>();
    let processed = 0;
    let together = 0;
    const running = runWorkers(10, queue, testLogger(), async (key) => {
      if (active.has(key)) together++;
      active.add(key);
      await settle();
      active.delete(key);
      processed++;
    });
    for (let round = 0; round < 5; round++) {
      for (let key = 0; key < 20; key++) queue.add(`key-${key % 7}`);
      await new Promise((resolve) => setImmediate(resolve));
    }
    // Each of them once, and what was added meanwhile once more.
    while (processed < 14) await settle();
    await queue.shutDown();
    await running;
    expect(together).toBe(0);
  });

  it('REC-002 tries a failing key again after 5 ms doubling, and after success from the start', async () => {
    const timers = new FakeTimers();
    const queue = new WorkQueue(timers);
    const lines: string[] = [];
    const at: number[] = [];
    let failing = true;
    const running = runWorkers(1, queue, testLogger(lines), async () => {
      at.push(timers.now());
      if (failing) throw new Error('no luck');
    });
    queue.add('ns/a');
    await settle();
    const delays: number[] = [];
    for (let attempt = 0; attempt < 6; attempt++) {
      const wait = timers.nextIn ?? Number.NaN;
      delays.push(wait);
      if (attempt === 4) failing = false;
      if (attempt === 5) break;
      timers.advance(wait);
      await settle();
      if (attempt === 4) {
        failing = true;
        queue.add('ns/a');
        await settle();
      }
    }
    expect(delays).toEqual([5, 10, 20, 40, 80, 5]);
    expect(lines.join('')).toContain('re-enqueuing VirtualMachineInstance ns/a');
    expect(lines.join('')).toContain('no luck');
    await queue.shutDown();
    await running;
    expect(timers.pendingCount).toBe(0);
    expect(at).toHaveLength(7);
  });

  it('REC-003 keeps the earliest deadline of a key, whichever came first', () => {
    const timers = new FakeTimers();
    const queue = new WorkQueue(timers);
    queue.addAfter('later-second', 1000);
    queue.addAfter('later-second', 5000);
    queue.addAfter('sooner-second', 5000);
    queue.addAfter('sooner-second', 1000);
    timers.advance(999);
    expect(queue.length).toBe(0);
    timers.advance(1);
    expect(queue.length).toBe(2);
    expect(timers.pendingCount).toBe(0);
  });

  it('leaves a pending deadline in place when the key is added directly', async () => {
    const timers = new FakeTimers();
    const queue = new WorkQueue(timers);
    queue.addAfter('a', 1000);
    queue.add('a');
    await queue.get();
    queue.done('a');
    timers.advance(1000);
    expect(queue.length).toBe(1);
  });

  it('on shutdown takes nothing new, drops what waits or is delayed, and waits for what is processed', async () => {
    const timers = new FakeTimers();
    const queue = new WorkQueue(timers);
    queue.add('a');
    queue.add('b');
    queue.addAfter('c', 10);
    expect(await queue.get()).toBe('a');
    queue.add('a');
    let idle = false;
    const down = queue.shutDown().then(() => {
      idle = true;
    });
    queue.add('d');
    queue.addAfter('e', 10);
    queue.addRateLimited('f');
    expect(timers.pendingCount).toBe(0);
    expect(await queue.get()).toBeUndefined();
    await settle();
    expect(idle).toBe(false);
    queue.done('a');
    await down;
    expect(await queue.get()).toBeUndefined();
    expect(queue.length).toBe(0);
  });

  it('ends waiting workers on shutdown', async () => {
    const queue = new WorkQueue(new FakeTimers());
    const waiting = [queue.get(), queue.get()];
    await queue.shutDown();
    expect(await Promise.all(waiting)).toEqual([undefined, undefined]);
  });

  it('REC-001 behaves as the model for any sequence of calls', async () => {
    const key = fc.constantFrom('a', 'b', 'c');
    const step = fc.oneof(
      fc.record({ op: fc.constant('add' as const), key }),
      fc.record({ op: fc.constant('after' as const), key, ms: fc.integer({ min: -1, max: 50 }) }),
      fc.record({ op: fc.constant('get' as const) }),
      fc.record({ op: fc.constant('done' as const), key }),
      fc.record({ op: fc.constant('advance' as const), ms: fc.integer({ min: 0, max: 40 }) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const timers = new FakeTimers();
        const queue = new WorkQueue(timers);
        const model = new Model();
        const got: string[] = [];
        for (const step of steps) {
          switch (step.op) {
            case 'add':
              queue.add(step.key);
              model.add(step.key);
              break;
            case 'after':
              queue.addAfter(step.key, step.ms);
              model.addAfter(step.key, step.ms);
              break;
            case 'get':
              // Without a key waiting the call stays pending until one comes.
              void queue.get().then((key) => key !== undefined && got.push(key));
              model.get();
              break;
            case 'done':
              if (!model.processing.has(step.key)) break;
              queue.done(step.key);
              model.done(step.key);
              break;
            case 'advance':
              timers.advance(step.ms);
              model.advance(step.ms);
          }
          await Promise.resolve();
          expect(queue.length).toBe(model.queue.length);
          expect(timers.pendingCount).toBe(model.delayed.size);
          expect(got).toEqual(model.got);
        }
      }),
    );
  });
});

/** client-go's queue in the plainest form: a list, a set of dirty keys, a set of keys in work. */
class Model {
  queue: string[] = [];
  readonly processing = new Set<string>();
  readonly dirty = new Set<string>();
  readonly delayed = new Map<string, number>();
  readonly got: string[] = [];
  private now = 0;
  private getters = 0;

  add(key: string): void {
    if (this.dirty.has(key)) return;
    this.dirty.add(key);
    if (!this.processing.has(key)) this.queue.push(key);
    this.serve();
  }

  addAfter(key: string, ms: number): void {
    if (ms <= 0) this.add(key);
    else this.delayed.set(key, Math.min(this.delayed.get(key) ?? Number.POSITIVE_INFINITY, this.now + ms));
  }

  get(): void {
    this.getters++;
    this.serve();
  }

  done(key: string): void {
    this.processing.delete(key);
    if (this.dirty.has(key)) this.queue.push(key);
    this.serve();
  }

  advance(ms: number): void {
    this.now += ms;
    const due = [...this.delayed].filter(([, at]) => at <= this.now).sort((a, b) => a[1] - b[1]);
    for (const [key] of due) {
      this.delayed.delete(key);
      this.add(key);
    }
  }

  private serve(): void {
    while (this.getters > 0 && this.queue.length > 0) {
      const key = this.queue.shift() as string;
      this.getters--;
      this.dirty.delete(key);
      this.processing.add(key);
      this.got.push(key);
    }
  }
}
