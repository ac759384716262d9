/** The launcher's event loop: one event at a time, in order; each looks at the domain when its turn comes. */
import type { MetadataDocument } from './domain-document.js';
import { timestamp } from './domain-document.js';
import { type DomainName, notify, type Observation, type PanicState, type Trigger } from './notifications.js';
import type { Notifier } from './notifier.js';

/** Events beyond these are dropped, as libvirt's are when the real launcher's channel is full. */
const queueLimit = 10;

export interface EventLoopOptions {
  readonly name: DomainName;
  readonly uid: string;
  readonly notifier: Notifier;
  readonly observe: () => Observation;
  readonly metadata: () => MetadataDocument;
  readonly now: () => Date;
  /** A new domain, or the final deletion was notified (or could not be). */
  readonly onSignal: (type: 'ADDED' | 'MODIFIED') => void;
  readonly log: (line: string) => void;
}

export class EventLoop {
  readonly #queue: Trigger[] = [];
  #running = false;
  #stopped = false;
  #seenLibvirtEvent = false;
  #panic: PanicState = { count: 0, info: null };

  constructor(private readonly options: EventLoopOptions) {}

  push(trigger: Trigger): void {
    if (this.#stopped) return;
    // Changes of metadata alone are not told before libvirt's first event.
    if (trigger.lifecycle !== undefined) this.#seenLibvirtEvent = true;
    else if (!this.#seenLibvirtEvent) return;
    if (this.#queue.length >= queueLimit) {
      this.options.log('event dropped: the queue is full');
      return;
    }
    this.#queue.push(trigger);
    if (!this.#running) void this.#run();
  }

  stop(): void {
    this.#stopped = true;
    this.#queue.length = 0;
  }

  async #run(): Promise<void> {
    this.#running = true;
    for (let trigger = this.#queue.shift(); trigger !== undefined; trigger = this.#queue.shift()) {
      await this.#process(trigger);
    }
    this.#running = false;
  }

  async #process(trigger: Trigger): Promise<void> {
    const { options } = this;
    const notification = notify(
      options.name,
      options.uid,
      trigger,
      options.observe(),
      options.metadata(),
      this.#panic,
      timestamp(options.now()),
    );
    this.#panic = notification.panic;
    for (const event of notification.k8sEvents) {
      await options.notifier.sendK8sEvent({ ...options.name, uid: options.uid }, event);
    }
    if (notification.domainEvent !== undefined) {
      const { type, domain } = notification.domainEvent;
      const { Status, Reason } = domain['Status'] as { Status: string; Reason: string };
      const delivered = await options.notifier.sendDomainEvent(notification.domainEvent);
      options.log(`event ${type} ${Status}/${Reason} ${delivered ? 'delivered' : 'not delivered'}`);
    }
    if (notification.signal !== undefined) options.onSignal(notification.signal);
  }
}
