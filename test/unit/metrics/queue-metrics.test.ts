import { expect, it } from 'vitest';
import { WorkQueue } from '../../../agent/kube/workqueue.js';
import { QueueMetrics } from '../../../agent/metrics/queue-metrics.js';
import { Registry } from '../../../agent/metrics/registry.js';
import { FakeTimers } from '../kube/fake-timers.js';

it('a queue is measured as client-go measures it', async () => {
  const timers = new FakeTimers();
  const registry = new Registry();
  const queue = new WorkQueue(timers, new QueueMetrics(registry, timers).of('virt-handler-vm'));
  const value = (metric: string) => {
    const line = new RegExp(`^kubevirt_workqueue_${metric}\\{name="virt-handler-vm"\\} (.*)$`, 'm');
    return Number(line.exec(registry.text())?.[1] ?? Number.NaN);
  };

  queue.add('a');
  queue.add('a');
  queue.add('b');
  expect(value('depth')).toBe(2);
  expect(value('adds_total')).toBe(2);
  timers.advance(2_000);
  expect(await queue.get()).toBe('a');
  expect(value('queue_duration_seconds_sum')).toBe(2);
  expect(value('depth')).toBe(1);
  expect(await queue.get()).toBe('b');
  timers.advance(3_000);
  expect(value('longest_running_processor_seconds')).toBe(3);
  expect(value('unfinished_work_seconds')).toBe(6);
  queue.add('a');
  queue.add('a');
  expect(value('adds_total')).toBe(3);
  expect(value('depth')).toBe(1);
  queue.done('b');
  queue.done('a');
  expect(value('work_duration_seconds_count')).toBe(2);
  expect(value('work_duration_seconds_sum')).toBe(6);
  expect(value('unfinished_work_seconds')).toBe(0);
  expect(await queue.get()).toBe('a');
  queue.addRateLimited('a');
  queue.addAfter('a', 10_000);
  expect(value('retries_total')).toBe(2);
  expect(registry.text()).toContain(
    'kubevirt_workqueue_queue_duration_seconds_bucket{name="virt-handler-vm",le="1e-08"} 1\n',
  );
});
