/**
 * Memory that a VM takes beside what its guest has, and how much of all it may lock (KubeVirt pkg/hypervisor/kvm).
 * Bytes throughout. All pure.
 */
import { quantityNanos, quantityValue } from '../api/quantity.js';
import type { Vmi, VmiSpec } from '../api/vmi.js';
import type { HypervisorName } from '../cluster/config.js';

export interface OverheadSettings {
  /** Go's name of the node's architecture; the VMI's own wins where the hypervisor is KVM. */
  readonly architecture: string;
  readonly hypervisor: HypervisorName;
  /** `additionalGuestMemoryOverheadRatio` of the cluster. */
  readonly ratio: string | undefined;
}

const kilo = 1000n;
const mebi = 1n << 20n;
/** Monitor 25, launcher 100, virtlogd 25, virtqemud 40, QEMU 30. */
const processes = 220n * mebi;

/** The VMI has devices of the host, which reach into the guest's memory. */
export function passesThrough(vmi: Vmi): boolean {
  return passedThrough(vmi.spec) > 0;
}

function passedThrough({ domain }: VmiSpec): number {
  const { gpus, hostDevices, interfaces } = domain?.devices ?? {};
  const sriov = (interfaces ?? []).filter((nic) => nic.sriov != null);
  return (gpus ?? []).length + (hostDevices ?? []).length + sriov.length;
}

export function isConfidential({ spec }: Vmi): boolean {
  const security = spec.domain?.launchSecurity;
  return security?.sev != null || security?.snp != null;
}

/**
 * What was recorded wins over the formula: the controller of another release may have one of its own, and two results
 * of different formulas must never be compared.
 */
export function memoryOverhead(vmi: Vmi, settings: OverheadSettings): bigint {
  const recorded = vmi.status.migrationState?.targetMemoryOverhead ?? vmi.status.memory?.memoryOverhead;
  return recorded == null ? computedMemoryOverhead(vmi, settings) : bytes(recorded);
}

/** GetMemoryOverhead. */
export function computedMemoryOverhead(vmi: Vmi, settings: OverheadSettings): bigint {
  const { spec } = vmi;
  const own = settings.hypervisor === 'kvm' ? spec.architecture : undefined;
  const { cpu, devices, memory, resources } = spec.domain ?? {};
  let overhead = roundedUp(bytes(resources?.requests?.['memory'])) / 512n + processes;
  overhead += 8n * mebi * vcpus(spec) + 8n * mebi;
  if (devices?.autoattachGraphicsDevice !== false) overhead += 32n * mebi;
  if ((own || settings.architecture) === 'arm64') overhead += 128n * mebi;
  if (passesThrough(vmi)) overhead += 1024n * mebi;
  if ((spec.volumes ?? []).some(({ downwardMetrics }) => downwardMetrics != null)) overhead += mebi;
  overhead += probes(spec);
  if (isConfidential(vmi)) overhead += 256n * mebi;
  if (devices?.tpm != null && devices.tpm.enabled !== false) overhead += 53n * mebi;
  if (cpu?.dedicatedCpuPlacement === true || isGuaranteed(spec)) overhead += 100n * mebi;
  overhead += bytes(memory?.reservedOverhead?.addedOverhead);
  return overhead + additional(overhead, settings.ratio);
}

/** The least limit of locked memory that lets the VM run. */
export function leastLockedMemory(vmi: Vmi, settings: OverheadSettings): bigint {
  const { memory, resources } = vmi.spec.domain ?? {};
  const requested = bytes(resources?.requests?.['memory']);
  const guest = memory?.maxGuest ?? (requested === 0n ? memory?.guest : undefined);
  const base = guest === undefined ? requested : bytes(guest);
  const devices = settings.hypervisor === 'kvm' ? passedThrough(vmi.spec) : 0;
  const further = BigInt(Math.max(devices - 1, 0));
  return memoryOverhead(vmi, settings) + roundedUp(base) + further * base;
}

function vcpus({ domain }: VmiSpec): bigint {
  const { cpu, resources } = domain ?? {};
  if (cpu != null) {
    const parts = [cpu.cores, cpu.sockets, cpu.threads].map((part) => BigInt(part ?? 0));
    return parts.filter((part) => part !== 0n).reduce((product, part) => product * part, 1n);
  }
  const limit = resources?.limits?.['cpu'] ?? resources?.requests?.['cpu'];
  const whole = bytes(limit);
  return whole < 1n ? 1n : whole;
}

function probes({ livenessProbe, readinessProbe }: VmiSpec): bigint {
  const running = BigInt([livenessProbe, readinessProbe].filter((probe) => probe?.exec != null).length);
  return running === 0n ? 0n : (10n * running + 100n) * mebi;
}

/** Quality of service of the VMI's own resources. */
function isGuaranteed({ domain }: VmiSpec): boolean {
  const { requests, limits } = domain?.resources ?? {};
  const [memory, memoryLimit] = [bytes(requests?.['memory']), bytes(limits?.['memory'])];
  const memoryFits = memory === 0n ? memoryLimit !== 0n : memory === memoryLimit;
  const [cpu, cpuLimit] = [requests?.['cpu'], limits?.['cpu']].map(nanos);
  return memoryFits && cpu !== undefined && cpu !== 0n && cpu === cpuLimit;
}

/** May be negative. Whole kilobytes; nothing for a ratio that is no number. */
function additional(overhead: bigint, ratio: string | undefined): bigint {
  if (ratio === undefined || !/^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(ratio)) return 0n;
  const kilobytes = Number(roundedUp(overhead) / kilo) * (Number(ratio) - 1);
  return Number.isFinite(kilobytes) ? BigInt(Math.trunc(kilobytes)) * kilo : 0n;
}

/** A quantity in whole units, rounded up; what is absent or no quantity is nothing. */
function bytes(quantity: unknown): bigint {
  return (quantity == null ? undefined : quantityValue(String(quantity))) ?? 0n;
}

function nanos(quantity: unknown): bigint | undefined {
  return quantity == null ? undefined : quantityNanos(String(quantity));
}

/** To whole kilobytes, of 1000 bytes. */
function roundedUp(value: bigint): bigint {
  return ((value + kilo - 1n) / kilo) * kilo;
}
