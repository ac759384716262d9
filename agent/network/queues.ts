/** Queue counts of taps (KubeVirt pkg/virt-launcher converter/network/virtio-queues.go). */
import type { Vmi } from '../api/vmi.js';
import { containsInfoSource } from './infosource.js';
import { interfaceStatuses, type VmiInterface } from './vmi-network.js';

const maxQueues = 256;

/** Queues of a new interface; 0 for single-queue. */
export function queueCapacity(vmi: Vmi): number {
  if (vmi.spec.domain?.devices?.networkInterfaceMultiqueue !== true) return 0;
  const cpu = vmi.spec.domain.cpu;
  return Math.min((cpu?.sockets || 1) * (cpu?.cores || 1) * (cpu?.threads || 1), maxQueues);
}

/** An interface in the domain keeps its queues, also when CPUs were added and on a migration target. */
export function interfaceQueues(vmi: Vmi, iface: VmiInterface): number {
  if (iface.model && iface.model !== 'virtio') return 0;
  const status = interfaceStatuses(vmi).find((entry) => entry.name === iface.name);
  if (status !== undefined && containsInfoSource(status.infoSource, 'domain')) {
    return Math.min(status.queueCount ?? 0, maxQueues);
  }
  return queueCapacity(vmi);
}
