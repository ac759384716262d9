/** What launchers send that is refused. The log says which launcher it was. */
import type { NotifyMetrics } from '../notify/server.js';
import type { Counter, Registry } from './registry.js';

export class RegistryNotifyMetrics implements NotifyMetrics {
  readonly #refused: Counter;

  constructor(registry: Registry) {
    this.#refused = registry.counter(
      'virt_privsep_notify_refused_total',
      'Events of launchers that were refused: those that name another VMI, and those above the rate.',
      ['reason'],
    );
  }

  eventRefused(why: Parameters<NotifyMetrics['eventRefused']>[0]): void {
    this.#refused.increment(why);
  }
}
