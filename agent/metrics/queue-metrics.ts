/** How a work queue does, under the names of client-go's work queue metrics as KubeVirt exports them. */
import type { Clock } from '../clock.js';
import type { QueueObserver } from '../kube/workqueue.js';
import { type Counter, exponentialBounds, type Gauge, type Histogram, type Registry } from './registry.js';

/** The metrics that all queues of the process share; one label tells which queue. */
export class QueueMetrics {
  readonly #depth: Gauge;
  readonly #adds: Counter;
  readonly #retries: Counter;
  readonly #waited: Histogram;
  readonly #worked: Histogram;
  readonly #longest: Gauge;
  readonly #unfinished: Gauge;

  constructor(
    registry: Registry,
    private readonly clock: Clock,
  ) {
    const name = (suffix: string) => `kubevirt_workqueue_${suffix}`;
    const bounds = exponentialBounds(1e-8, 10, 10);
    this.#depth = registry.gauge(name('depth'), 'Current depth of workqueue', ['name']);
    this.#adds = registry.counter(name('adds_total'), 'Total number of adds handled by workqueue', ['name']);
    this.#retries = registry.counter(name('retries_total'), 'Total number of retries handled by workqueue', [
      'name',
    ]);
    this.#waited = registry.histogram(
      name('queue_duration_seconds'),
      'How long an item stays in workqueue before being requested.',
      bounds,
      ['name'],
    );
    this.#worked = registry.histogram(
      name('work_duration_seconds'),
      'How long in seconds processing an item from workqueue takes.',
      bounds,
      ['name'],
    );
    this.#longest = registry.gauge(
      name('longest_running_processor_seconds'),
      'How many seconds has the longest running processor for workqueue been running.',
      ['name'],
    );
    this.#unfinished = registry.gauge(
      name('unfinished_work_seconds'),
      'How many seconds of work have been in progress without being observed by work_duration. ' +
        'Large values indicate stuck threads. ' +
        'The number of stuck threads can be deduced by observing the rate at which this value increases.',
      ['name'],
    );
  }

  /** What the queue of this name tells its happenings to. */
  of(queue: string): QueueObserver {
    const addedAt = new Map<string, number>();
    const startedAt = new Map<string, number>();
    const secondsSince = (at: number | undefined) => (at === undefined ? 0 : (this.clock.now() - at) / 1000);
    const running = () => [...startedAt.values()].map(secondsSince);
    this.#depth.follow(() => addedAt.size, queue);
    this.#longest.follow(() => Math.max(0, ...running()), queue);
    this.#unfinished.follow(() => running().reduce((sum, seconds) => sum + seconds, 0), queue);
    return {
      added: (key) => {
        addedAt.set(key, this.clock.now());
        this.#adds.increment(queue);
      },
      started: (key) => {
        this.#waited.observe(secondsSince(addedAt.get(key)), queue);
        addedAt.delete(key);
        startedAt.set(key, this.clock.now());
      },
      done: (key) => {
        this.#worked.observe(secondsSince(startedAt.get(key)), queue);
        startedAt.delete(key);
      },
      retried: () => this.#retries.increment(queue),
    };
  }
}
