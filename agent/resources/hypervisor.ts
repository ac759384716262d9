/** What the node does for a launcher's processes beside their devices (KubeVirt pkg/hypervisor/kvm/runtime.go). */
import { PodProcess } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import type { Domain } from '../api/domain.js';
import type { PodFinder, PodRef } from '../api/pod-ref.js';
import type { Vmi } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { HypervisorName } from '../cluster/config.js';
import type { Logger } from '../log/log.js';
import { explained } from '../reconcile/errors.js';
import type { Hypervisor } from '../reconcile/ports.js';
import { isFinal, isRunning, refOf } from '../reconcile/predicates.js';
import { CpuListError, parseCpuList } from './cpu-list.js';
import {
  isConfidential,
  leastLockedMemory,
  type OverheadSettings,
  passesThrough,
} from './memory-overhead.js';
import { maxVcpus, parseRealtimeMask } from './realtime-mask.js';

/** The helper's calls. Each says whether anything was changed, and throws a HelperError. */
export interface ResourceHelper {
  setMemlock(pod: PodRef, process: PodProcess): Promise<boolean>;
  /** Without CPUs the cgroup is made and nothing is moved. */
  isolateEmulator(pod: PodRef, cpus: number[]): Promise<boolean>;
  /** No numbers: all vCPUs. */
  scheduleVcpus(pod: PodRef, vcpus: number[]): Promise<boolean>;
  affinePit(pod: PodRef, realtime: boolean): Promise<boolean>;
}

export interface HypervisorOptions {
  readonly helper: ResourceHelper;
  readonly pods: PodFinder;
  readonly overhead: () => OverheadSettings;
  readonly log: Logger;
}

export class HelperHypervisor implements Hypervisor {
  constructor(private readonly options: HypervisorOptions) {}

  /**
   * The limit of locked memory is lifted altogether: what libvirt sets on top of it changes with its releases, and the
   * pod's cgroup bounds the memory.
   */
  async adjustResources(vmi: Vmi): Promise<void> {
    const { helper, pods, overhead, log } = this.options;
    if (!locksMemory(vmi, overhead().hypervisor)) return;
    const process = limitedProcess(vmi);
    const name = process === PodProcess.QEMU ? 'QEMU' : 'virtqemud';
    const least = leastLockedMemory(vmi, overhead());
    try {
      const changed = await helper.setMemlock(await pods.find(vmi), process);
      if (changed) log.object(refOf(vmi)).info(`${name} may lock any memory: the VM takes ${least} bytes`);
    } catch (error) {
      throw new Error(`${name} must be able to lock ${least} bytes: ${asError(error).message}`, {
        cause: error,
      });
    }
  }

  async handleHousekeeping(vmi: Vmi, domain: Domain | undefined): Promise<void> {
    const { helper, pods, overhead } = this.options;
    const { dedicatedCpuPlacement, isolateEmulatorThread, realtime } = vmi.spec.domain?.cpu ?? {};
    const dedicated = dedicatedCpuPlacement === true;
    if (dedicated && isolateEmulatorThread === true) {
      await explained('failed to isolate the emulator thread', async () =>
        helper.isolateEmulator(await pods.find(vmi), emulatorCpus(domain)),
      );
    }
    if (isRunning(vmi) || isFinal(vmi)) return;
    const vcpus = realtime == null ? undefined : realtimeVcpus(realtime.mask ?? '');
    if (vcpus !== undefined) {
      await explained('failed to schedule real-time vCPUs', async () =>
        helper.scheduleVcpus(await pods.find(vmi), vcpus),
      );
    }
    // The timer in the kernel is KVM's.
    if (dedicated && overhead().hypervisor === 'kvm') {
      await explained('failed to bind the timer thread of the VM', async () =>
        helper.affinePit(await pods.find(vmi), realtime != null),
      );
    }
  }
}

/** Devices, encryption and real-time guests need their memory where it is; under KVM a VMI may also ask for it. */
export function locksMemory(vmi: Vmi, hypervisor: HypervisorName): boolean {
  const { cpu, memory } = vmi.spec.domain ?? {};
  const required = hypervisor === 'kvm' && memory?.reservedOverhead?.memLock === 'Required';
  return passesThrough(vmi) || isConfidential(vmi) || cpu?.realtime != null || required;
}

/** QEMU inherits virtqemud's limit when it starts; afterwards it has one of its own. */
function limitedProcess(vmi: Vmi): PodProcess {
  const { migrationState } = vmi.status;
  const awaited = migrationState != null && migrationState.targetNodeDomainDetected !== true;
  return isRunning(vmi) && !awaited ? PodProcess.QEMU : PodProcess.VIRTQEMUD;
}

/** None while the domain does not say which. Throws CpuListError. */
function emulatorCpus(domain: Domain | undefined): number[] {
  const list = domain?.Spec.CPUTune?.EmulatorPin?.CPUSet;
  if (list === undefined) return [];
  const cpus = [...new Set(parseCpuList(list))];
  if (cpus.length === 0)
    throw new CpuListError(`emulatorpin of the domain names no CPU: ${JSON.stringify(list)}`);
  return cpus;
}

/** Undefined: none. Empty: all. Throws RealtimeMaskError. */
function realtimeVcpus(text: string): number[] | undefined {
  const mask = parseRealtimeMask(text);
  if (mask.size === 0) return [];
  const enabled = [...mask].filter(([vcpu, on]) => on && /^(0|[1-9]\d{0,3})$/.test(vcpu));
  const vcpus = enabled.map(([vcpu]) => Number(vcpu)).filter((vcpu) => vcpu < maxVcpus);
  return vcpus.length === 0 ? undefined : vcpus;
}
