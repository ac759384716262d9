/** Limits, CPUs and scheduling of processes in launcher pods. */
import type { Call, Launcher } from './call.js';

/** A process as it was found in /proc. */
export interface Process {
  readonly pid: number;
  readonly ppid: number;
  /** Clock ticks after boot. */
  readonly startTicks: bigint;
  readonly kernelThread: boolean;
  /** What it calls itself, which proves nothing. */
  readonly comm: string;
}

export interface Thread {
  readonly tid: number;
  /** With the newline that the kernel puts behind it. */
  readonly comm: string;
}

export interface LauncherProcesses {
  /** The pinned process. */
  readonly launcher: number;
  /** Its parent. */
  readonly monitor: number;
  /** Of either, by number. */
  readonly children: readonly Process[];
}

/** Each runs whole on one privileged thread. */
export interface ResourceCalls {
  /** Changes nothing, as little as the next two. */
  launcherProcesses(call: Call, launcher: Launcher): Promise<LauncherProcesses>;
  kernelThreads(call: Call, comm: string): Promise<Process[]>;
  /** Threads of a process of the pod. Refuses, as the next three do, a process that is not the one that was found. */
  processThreads(call: Call, podUid: string, process: Process): Promise<Thread[]>;
  /** RLIMIT_MEMLOCK unlimited, soft and hard. False when it was. */
  liftMemlock(call: Call, podUid: string, process: Process): Promise<boolean>;
  /** SCHED_FIFO, priority 1. False when all threads had it. */
  scheduleThreads(call: Call, podUid: string, process: Process, threads: readonly Thread[]): Promise<boolean>;
  /** CPUs of `like` and, for `realtime`, SCHED_FIFO, priority 2. False when the kernel's thread had both. */
  affineKernelThread(
    call: Call,
    podUid: string,
    process: Process,
    like: Thread,
    kernelThread: Process,
    realtime: boolean,
  ): Promise<boolean>;
  /**
   * Makes the child cgroup `housekeeping` of the launcher's cgroup and confines the launcher's threads but those of
   * vCPUs to `cpus` there; none are moved without any. `uid`: the launcher's.
   */
  isolateEmulator(
    call: Call,
    cgroupRoot: number,
    podUid: string,
    launcher: Launcher,
    uid: number,
    cpus: readonly number[],
  ): Promise<{ readonly changed: boolean; readonly moved: number }>;
}
