/** Volume status from the domain's disks (KubeVirt updateVolumeStatusesFromDomain). */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import { type DumpStep, memoryDumpStep, type VolumeStatus } from './memory-dump.js';
import type { StatusEvent } from './pass.js';

export interface VolumeStatusInput {
  readonly vmi: Vmi;
  readonly domain: Domain | undefined;
  /** Whether hotplugged volumes, by name, are mounted in the launcher's pod; undefined while nobody can tell. */
  readonly mounted: ReadonlyMap<string, boolean | undefined>;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

export interface VolumeStatusResult {
  readonly volumeStatus: VolumeStatus[];
  readonly events: StatusEvent[];
  /** Some are to be looked at again although nothing may announce it. */
  readonly onTheirWay: boolean;
}

export function volumeStatuses({ vmi, domain, mounted, now }: VolumeStatusInput): VolumeStatusResult {
  const current = vmi.status.volumeStatus ?? [];
  const targets = diskTargets(domain);
  const inSpec = new Set([
    ...(vmi.spec.volumes ?? []).map((volume) => volume.name),
    ...(vmi.spec.utilityVolumes ?? []).map((volume) => volume.name),
  ]);
  let onTheirWay = false;
  const next = current.map((entry) => {
    let status: VolumeStatus = { ...entry, target: targets.get(entry.name) ?? '' };
    if (entry.hotplugVolume) {
      if (status.target === '') onTheirWay = true;
      status = hotplugStep(status, mounted.get(entry.name), inSpec.has(entry.name));
    }
    if (entry.memoryDumpVolume) {
      const step: DumpStep = memoryDumpStep(status, vmi.metadata.name, domain, now);
      if (step.refresh) onTheirWay = true;
      status = step.status;
    }
    return status;
  });
  const sorted = next.toSorted((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)));
  return { volumeStatus: sorted, events: volumeEvents(current, sorted), onTheirWay };
}

/** Alias -> target device, for disks that have a medium. */
function diskTargets(domain: Domain | undefined): Map<string, string> {
  const targets = new Map<string, string>();
  for (const disk of domain?.Spec.Devices?.Disks ?? []) {
    const name = disk.Alias?.Name;
    if (name && (disk.Source?.File || disk.Source?.Dev)) targets.set(name, disk.Target?.Device ?? '');
  }
  return targets;
}

const beforeMount = new Set(['Bound', 'Pending', 'AttachedToNode']);
const untilUnmount = new Set(['Ready', 'MountedToPod', 'AttachedToNode']);

function hotplugStep(status: VolumeStatus, isMounted: boolean | undefined, isInSpec: boolean): VolumeStatus {
  const { name, phase = '' } = status;
  if (status.target !== '') {
    return {
      ...status,
      phase: 'Ready',
      reason: 'VolumeReady',
      message: `Successfully attach hotplugged volume ${name} to VM`,
    };
  }
  if (isMounted && isInSpec && beforeMount.has(phase)) {
    return {
      ...status,
      phase: 'MountedToPod',
      reason: 'VolumeMountedToPod',
      message: `Volume ${name} has been mounted in virt-launcher pod`,
    };
  }
  if (isMounted === false && !isInSpec && untilUnmount.has(phase)) {
    return {
      ...status,
      phase: 'UnMountedFromPod',
      reason: 'VolumeUnMountedFromPod',
      message: `Volume ${name} has been unmounted from virt-launcher pod`,
    };
  }
  return status;
}

function volumeEvents(before: readonly VolumeStatus[], after: readonly VolumeStatus[]): StatusEvent[] {
  const now = new Map(after.map((status) => [status.name, status]));
  const events: StatusEvent[] = [];
  for (const old of before) {
    const status = now.get(old.name);
    if (status === undefined || (status.phase ?? '') === (old.phase ?? '')) continue;
    events.push({ type: 'Normal', reason: status.reason ?? '', message: status.message ?? '' });
  }
  return events;
}
