/** Checks of ResourceService's requests. */
import {
  type AffinePitRequest,
  type IsolateEmulatorRequest,
  PodProcess,
  type ScheduleVcpusRequest,
  type SetMemlockRequest,
} from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { malformed } from '../failure.js';
import type { Check, PodRef } from './check.js';
import { integerField, listField, Unique } from './fields.js';
import { parsePodRef, podRefWords } from './requests.js';

/** As many CPUs as virt-handler lets the emulator have. */
const maxEmulatorCpus = 101;
/** Linux cannot be built for more CPUs. */
const highestCpu = 8191;
/** As many vCPUs as KVM is built for by default. */
const maxVcpus = 1024;

export type PodProcessName = 'virtqemud' | 'QEMU';

const processNames: ReadonlyMap<PodProcess, PodProcessName> = new Map([
  [PodProcess.VIRTQEMUD, 'virtqemud'],
  [PodProcess.QEMU, 'QEMU'],
]);

export interface MemlockTarget extends PodRef {
  readonly process: PodProcessName;
}

export const setMemlock: Check<SetMemlockRequest, MemlockTarget> = {
  words: () => [
    ...podRefWords,
    'process is virtqemud or QEMU',
    "virtqemud is a child of the launcher, QEMU of the launcher's parent; it lives and is in the pod's cgroup",
  ],
  parse(_policy, request) {
    const pod = parsePodRef(request.pod);
    const process = processNames.get(request.process);
    if (process === undefined) throw malformed('process', 'not a known process');
    return { ...pod, process };
  },
  audited: ({ process }) => ({ process }),
};

export interface EmulatorCpus extends PodRef {
  readonly cpus: readonly number[];
}

export const isolateEmulator: Check<IsolateEmulatorRequest, EmulatorCpus> = {
  words: () => [
    ...podRefWords,
    'at most 101 CPUs in 0..8191, none twice',
    "the launcher's cgroup is in the pod's and has these CPUs; only its threads are moved, into a child with a constant name",
  ],
  parse: (_policy, request) => ({
    ...parsePodRef(request.pod),
    cpus: numbersField('cpus', request.cpus, maxEmulatorCpus, highestCpu),
  }),
  audited: ({ cpus }) => ({ cpus }),
};

export interface RealtimeVcpus extends PodRef {
  /** Empty: all of them. */
  readonly vcpus: readonly number[];
}

const qemuWords = "QEMU is a child of the launcher's parent, lives and is in the pod's cgroup";

export const scheduleVcpus: Check<ScheduleVcpusRequest, RealtimeVcpus> = {
  words: () => [
    ...podRefWords,
    'at most 1024 vCPUs in 0..1023, none twice',
    qemuWords,
    'only threads of that process which are called as vCPUs are; policy and priority are constants',
  ],
  parse: (_policy, request) => ({
    ...parsePodRef(request.pod),
    vcpus: numbersField('vcpus', request.vcpus, maxVcpus, maxVcpus - 1),
  }),
  audited: ({ vcpus }) => ({ vcpus }),
};

export interface PitSettings extends PodRef {
  readonly realtime: boolean;
}

export const affinePit: Check<AffinePitRequest, PitSettings> = {
  words: () => [
    ...podRefWords,
    qemuWords,
    "the thread is the kernel's own and named after that process; its CPUs become those of vCPU 0, policy and priority are constants",
  ],
  parse: (_policy, request) => ({ ...parsePodRef(request.pod), realtime: request.realtime }),
  audited: ({ realtime }) => ({ realtime }),
};

function numbersField(field: string, list: readonly number[], maxEntries: number, highest: number) {
  const unique = new Unique();
  return listField(field, list, maxEntries).map((value, i) => {
    const name = `${field}[${i}]`;
    unique.add(name, value);
    return integerField(name, value, 0, highest);
  });
}
