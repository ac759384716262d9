/** ResourceService. */
import { constants } from 'node:os';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type {
  AffinePitResponseSchema,
  IsolateEmulatorResponseSchema,
  ScheduleVcpusResponseSchema,
  SetMemlockResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import type { Launcher, Process } from '../../native/binding.js';
import { CallFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import { readBounded } from '../inspect/proc.js';
import type { Invocation } from '../invocation.js';
import { anyVcpuOf, findPit, findQemu, findVirtqemud, innerPid, pitName, vcpuOf } from '../pods/processes.js';
import type { EmulatorCpus, MemlockTarget, PitSettings, RealtimeVcpus } from '../policy/resources.js';

const maxStatusBytes = 64 << 10;

/** virtqemud ends when its VM runs on without it, so its absence is no failure. */
export function setMemlock(
  { native, pods }: Helper,
  invocation: Invocation,
  target: MemlockTarget,
): Promise<MessageInitShape<typeof SetMemlockResponseSchema>> {
  return pods.callOnLauncher(invocation, target, async (launcher, call) => {
    const processes = await native.launcherProcesses(call(), launcher);
    const process = target.process === 'QEMU' ? findQemu(processes) : findVirtqemud(processes);
    if (process !== undefined) {
      return { changed: await native.liftMemlock(call(), target.podUid, process) };
    }
    if (target.process === 'QEMU') throw noQemu(processes.monitor);
    return { changed: false };
  });
}

export function isolateEmulator(
  { native, cgroupRoot, pods }: Helper,
  invocation: Invocation,
  { podUid, vmiUid, cpus }: EmulatorCpus,
): Promise<MessageInitShape<typeof IsolateEmulatorResponseSchema>> {
  return pods.withLauncher(invocation, { podUid, vmiUid }, (launcher) =>
    native.isolateEmulator(invocation.call, cgroupRoot, podUid, launcher, launcher.uid, cpus),
  );
}

export function scheduleVcpus(
  helper: Helper,
  invocation: Invocation,
  { podUid, vmiUid, vcpus }: RealtimeVcpus,
): Promise<MessageInitShape<typeof ScheduleVcpusResponseSchema>> {
  const { native, pods } = helper;
  return pods.withLauncher(invocation, { podUid, vmiUid }, async (launcher) => {
    const qemu = await requireQemu(helper, invocation, launcher);
    const threads = await native.processThreads(invocation.call, podUid, qemu);
    const wanted = new Set(vcpus.map(String));
    const chosen = threads.filter(({ comm }) => {
      const vcpu = anyVcpuOf(comm);
      return vcpu !== undefined && (wanted.size === 0 || wanted.has(vcpu));
    });
    return { changed: await native.scheduleThreads(invocation.call, podUid, qemu, chosen) };
  });
}

/** VMs without the timer in the kernel have no such thread, and then nothing is to be done. */
export function affinePit(
  helper: Helper,
  invocation: Invocation,
  { podUid, vmiUid, realtime }: PitSettings,
): Promise<MessageInitShape<typeof AffinePitResponseSchema>> {
  const { native, pods } = helper;
  return pods.withLauncher(invocation, { podUid, vmiUid }, async (launcher) => {
    const qemu = await requireQemu(helper, invocation, launcher);
    const number = innerPid(await readBounded(`/proc/${qemu.pid}/status`, maxStatusBytes));
    if (number === undefined) return { changed: false };
    const pit = findPit(await native.kernelThreads(invocation.call, pitName(number)), qemu);
    if (pit === undefined) return { changed: false };
    const threads = await native.processThreads(invocation.call, podUid, qemu);
    const first = threads.find(({ comm }) => vcpuOf(comm) === '0');
    if (first === undefined)
      throw notFound('find vCPU 0', `QEMU, process ${qemu.pid}, has no thread of vCPU 0`);
    return {
      changed: await native.affineKernelThread(invocation.call, podUid, qemu, first, pit, realtime),
    };
  });
}

async function requireQemu({ native }: Helper, { call }: Invocation, launcher: Launcher): Promise<Process> {
  const processes = await native.launcherProcesses(call, launcher);
  const qemu = findQemu(processes);
  if (qemu === undefined) throw noQemu(processes.monitor);
  return qemu;
}

function noQemu(monitor: number): CallFailure {
  return notFound('find QEMU', `no QEMU process found under process ${monitor} child processes`);
}

function notFound(operation: string, message: string): CallFailure {
  const { ESRCH: errno } = constants.errno;
  return new CallFailure({ code: Code.NotFound, operation, message, errno, errnoName: 'ESRCH' });
}
