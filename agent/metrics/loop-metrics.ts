/** What the reconcile loop counts, under KubeVirt's names (KubeVirt pkg/monitoring/metrics/virt-handler). */
import type { VmiRef } from '../api/vmi.js';
import type { LoopMetrics } from '../reconcile/ports.js';
import type { Counter, Registry } from './registry.js';

export class RegistryLoopMetrics implements LoopMetrics {
  readonly #synced: Counter;
  readonly #panics: Counter;

  constructor(registry: Registry) {
    this.#synced = registry.counter(
      'kubevirt_vmi_sync_total',
      'Total number of times a VirtualMachineInstance has been synced.',
      ['namespace', 'name'],
    );
    this.#panics = registry.counter(
      'kubevirt_vmi_guest_os_panic_total',
      'Total number of guest OS panic events detected, partitioned by VMI and panic type.',
      ['namespace', 'name', 'type', 'bugcheck_code'],
    );
  }

  vmiSynced({ namespace, name }: VmiRef): void {
    this.#synced.increment(namespace, name);
  }

  /** The panics of a VMI stay: they are read after it is gone. */
  forgetVmi(key: string): void {
    const [namespace = '', name = ''] = key.split('/');
    this.#synced.remove(namespace, name);
  }

  guestPanicked({ namespace, name }: VmiRef, type: string, bugcheckCode: string): void {
    this.#panics.increment(namespace, name, type, bugcheckCode);
  }
}
