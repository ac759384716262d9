import type { Domain } from '../../api/domain.js';
import type { VmiStatus } from '../../api/vmi.js';

export type VolumeStatus = NonNullable<VmiStatus['volumeStatus']>[number];

export interface DumpStep {
  readonly status: VolumeStatus;
  /** The volume is to be looked at again soon. */
  readonly refresh: boolean;
}

/** One step of a memory dump volume. `now`: milliseconds since the epoch. */
export function memoryDumpStep(
  status: VolumeStatus,
  vmiName: string,
  domain: Domain | undefined,
  now: number,
): DumpStep {
  if (status.phase === 'MountedToPod') {
    return {
      refresh: true,
      status: {
        ...status,
        phase: 'MemoryDumpInProgress',
        reason: 'VolumeMountedToPod',
        message: `Memory dump Volume ${status.name} is attached, getting memory dump`,
        memoryDumpVolume: {
          ...status.memoryDumpVolume,
          targetFileName: `${vmiName}-${status.name}-${localTime(now)}.memory.dump`,
        },
      },
    };
  }
  const dump = domain?.Spec.Metadata?.KubeVirt?.MemoryDump;
  if (
    status.phase !== 'MemoryDumpInProgress' ||
    dump === undefined ||
    dump.FileName !== (status.memoryDumpVolume?.targetFileName ?? '')
  ) {
    return { status, refresh: false };
  }
  const started = {
    ...status.memoryDumpVolume,
    ...(dump.StartTimestamp && { startTimestamp: dump.StartTimestamp }),
  };
  const ended = { ...started, ...(dump.EndTimestamp && { endTimestamp: dump.EndTimestamp }) };
  if (dump.EndTimestamp && dump.Failed) {
    return {
      refresh: true,
      status: {
        ...status,
        phase: 'MemoryDumpFailed',
        message: `Memory dump to pvc ${status.name} failed: ${dump.FailureReason ?? ''}`,
        memoryDumpVolume: ended,
      },
    };
  }
  if (dump.Completed) {
    return {
      refresh: true,
      status: {
        ...status,
        phase: 'MemoryDumpCompleted',
        reason: 'VolumeReady',
        message: `Memory dump to Volume ${status.name} has completed successfully`,
        memoryDumpVolume: ended,
      },
    };
  }
  return { refresh: true, status: { ...status, memoryDumpVolume: started } };
}

/** YYYYMMDD-HHMMSS in the agent's time zone. */
function localTime(now: number): string {
  const time = new Date(now);
  const two = (value: number) => String(value).padStart(2, '0');
  const date = `${time.getFullYear()}${two(time.getMonth() + 1)}${two(time.getDate())}`;
  return `${date}-${two(time.getHours())}${two(time.getMinutes())}${two(time.getSeconds())}`;
}
