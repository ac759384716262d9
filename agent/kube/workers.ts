import type { Logger } from '../log/log.js';
import type { WorkQueue } from './workqueue.js';

/**
 * Processes the queue with `count` workers until it is shut down. A key whose handler throws is logged and
 * queued again with back-off; success restarts its back-off (KubeVirt pkg/virt-handler/vm.go Execute).
 */
export async function runWorkers(
  count: number,
  queue: WorkQueue,
  logger: Logger,
  handler: (key: string) => Promise<void>,
): Promise<void> {
  const worker = async () => {
    for (let key = await queue.get(); key !== undefined; key = await queue.get()) {
      try {
        await handler(key);
        queue.forget(key);
      } catch (error) {
        logger.warning(`re-enqueuing VirtualMachineInstance ${key}`, error);
        queue.addRateLimited(key);
      } finally {
        queue.done(key);
      }
    }
  };
  await Promise.all(Array.from({ length: count }, worker));
}
