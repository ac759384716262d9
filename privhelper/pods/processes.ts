/**
 * Which process of a launcher pod is which, and which thread of QEMU: by what they call themselves, as
 * virt-handler tells them (KubeVirt pkg/virt-handler/isolation, pkg/hypervisor). A name proves nothing, so
 * whatever is done to a process is done only after it proved to be in the pod's cgroup. All pure.
 */
import type { LauncherProcesses, Process } from '../../native/binding.js';

interface Found<P> extends Omit<LauncherProcesses, 'children'> {
  readonly children: readonly P[];
}
type Named = Pick<Process, 'ppid' | 'comm'>;

/** virtqemud has daemonized it: it is a child of the launcher's parent. The first of several. */
export function findQemu<P extends Named>({ monitor, children }: Found<P>): P | undefined {
  const called = (prefix: string) =>
    children.find(({ ppid, comm }) => ppid === monitor && comm.startsWith(prefix));
  return called('qemu-system') ?? called('qemu-kvm');
}

export function findVirtqemud<P extends Named>({ launcher, children }: Found<P>): P | undefined {
  return children.find(({ ppid, comm }) => ppid === launcher && comm === 'virtqemud');
}

/** The number of the vCPU that a thread of QEMU runs under KVM; `comm` is the text of its file. */
export function vcpuOf(comm: string): string | undefined {
  return /^CPU (\d+)\/KVM\n$/.exec(comm)?.[1];
}

/** The number of the vCPU under whatever hypervisor QEMU uses: all may be real-time. */
export function anyVcpuOf(comm: string): string | undefined {
  return vcpuOf(comm) ?? /^CPU (\d+)\/MSHV\n$/.exec(comm)?.[1];
}

/** Of proc_pid_status(5): the number of a process in its own pid namespace; undefined if that is the reader's. */
export function innerPid(status: string): number | undefined {
  const numbers = /^NSpid:((?:\t\d+)+)$/m.exec(status)?.[1]?.trim().split('\t') ?? [];
  return numbers.length < 2 ? undefined : Number(numbers.at(-1));
}

/**
 * The kernel names the timer thread of a VM after QEMU's number in its own pid namespace, which is likely the
 * same in several pods: it is the first one that is not older than QEMU.
 */
export function findPit(threads: readonly Process[], qemu: Process): Process | undefined {
  return threads
    .filter(({ startTicks }) => startTicks >= qemu.startTicks)
    .sort((a, b) => Number(a.startTicks - b.startTicks) || a.pid - b.pid)[0];
}

export const pitName = (innerPid: number) => `kvm-pit/${innerPid}`;
