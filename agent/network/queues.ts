/** Queue counts of taps (KubeVirt pkg/virt-launcher converter/network/virtio-queues.go). */
import { quantityValue } from '../api/quantity.js';
import type { Vmi } from '../api/vmi.js';
import { containsInfoSource } from './infosource.js';
import { interfaceStatuses, type VmiInterface } from './vmi-network.js';

const maxQueues = 256;

/** Queues of a new interface; 0 for single-queue. */
export function queueCapacity(vmi: Vmi): number {
  if (vmi.spec.domain?.devices?.networkInterfaceMultiqueue !== true) return 0;
  return Math.min(requestedVcpus(vmi), maxQueues);
}

/**
 * As the launcher counts (converter/vcpu GetCPUTopology), so that a tap and the domain agree on whether it has several
 * queues. The memory overhead has another rule for a CPU without a topology.
 */
function requestedVcpus(vmi: Vmi): number {
  const { cpu, resources } = vmi.spec.domain;
  if (cpu?.sockets || cpu?.cores || cpu?.threads) {
    return (cpu.sockets || 1) * (cpu.cores || 1) * (cpu.threads || 1);
  }
  // Without a topology the CPUs of the pod are the sockets.
  const { cpu: limit } = resources?.limits ?? {};
  const { cpu: request } = resources?.requests ?? {};
  return Number(quantityValue(String(limit ?? request ?? 1)) ?? 1n);
}

/** An interface in the domain keeps its queues, also when CPUs were added and on a migration target. */
export function interfaceQueues(vmi: Vmi, iface: VmiInterface): number {
  if (iface.model && iface.model !== 'virtio') return 0;
  const status = interfaceStatuses(vmi).findLast(
    ({ name, infoSource }) => name === iface.name && containsInfoSource(infoSource, 'domain'),
  );
  return status === undefined ? queueCapacity(vmi) : Math.min(status.queueCount ?? 0, maxQueues);
}
