/** What a launcher pod is made from. */
import type { CgroupDriver } from './cgroup.js';
import type { EmptyDir } from './pod.js';

export interface ContainerDiskSource {
  /** Index of the volume in the VMI's spec. */
  readonly index: number;
  /** Host path of the file that becomes the only file of /disk; not needed with `rootfs`. */
  readonly image?: string;
  /** Host path of a directory that becomes the container's root, with `disk` and what is in it. */
  readonly rootfs?: string;
  /** Its name in /disk; the base name of `image` when absent. */
  readonly name?: string;
}

export interface PodOptions {
  /** A random one when absent. */
  readonly uid?: string;
  readonly name: string;
  readonly vmiUid: string;
  readonly podIP: string;
  /** `0a:58` and the address when absent. */
  readonly mac?: string;
  readonly containerDisks?: readonly ContainerDiskSource[];
  /** Host paths by their paths in the kernel-boot container; no such container when absent. */
  readonly kernelBoot?: Readonly<Record<string, string>>;
  /** The containers of images are started by startContainerDisks instead of with the pod. */
  readonly lateContainerDisks?: boolean;
  /** Marks a pod whose container disks the node agent has to mount (default true). */
  readonly bindMountedContainerDisks?: boolean;
  /** Mounts that the host makes in the volumes do not come into the compute container. */
  readonly withoutPropagation?: boolean;
  readonly cgroupDriver?: CgroupDriver;
  /** emptyDirs of the pod; all of a launcher's when absent. */
  readonly emptyDirs?: readonly EmptyDir[];
}

/** What a pod needs to know about its node. */
export interface PodNode {
  readonly runId: string;
  readonly podsDir: string;
  /** Directory for roots of containers and logs. */
  readonly workDir: string;
  /** Directory with the bundled programs. */
  readonly programsDir: string;
  /** A process in the node's network namespace. */
  readonly netnsPid: number;
  readonly gateway: string;
  readonly prefixLength: number;
  readonly mtu: number;
}
