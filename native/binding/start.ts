/** How the helper gives up its privileges at start. */
import type { NativeError } from './call.js';

/** Called once each, in this order, from the main thread. */
export interface StartCalls {
  /**
   * Mounts a writable /proc/sys/net over a read-only one, in this process's mount namespace; does nothing
   * where it is writable.
   */
  makeNetworkSysctlsWritable(): void;
  /**
   * Moves this thread, and those that it starts later, into a cgroup namespace, unless it is there. Before the
   * privileged threads are started.
   */
  joinCgroupNamespace(path: string): void;
  /**
   * For nodes where SELinux is active: taps are made by processes that have the launcher's label, and lockDown lets
   * the privileged threads make these. Opens a tun device for them: one of its own with the label of containers'
   * files, or, for the reason that is returned, the one of /dev/net.
   */
  labelTaps(): NativeError | undefined;
  /**
   * Starts privileged threads: keep-caps set, CLONE_FS unshared, permitted set = `permitted`,
   * effective and inheritable empty, bounding set cut to `permitted`.
   */
  startPrivilegedThreads(options: { count: number; permitted: bigint }): void;
  /** setgroups, setresgid, setresuid for all threads. All but the privileged threads lose every capability. */
  dropPrivileges(options: { uid: number; gid: number; groups: number[] }): void;
  /**
   * For every thread: no_new_privs and its seccomp filter (ordinary or privileged). For the process:
   * not dumpable, RLIMIT_CORE 0. Does what it can without privileges in the agent (`privileged: false`).
   */
  lockDown(options: { privileged: boolean }): void;
}
