/** Attachment pods: each holds volumes that are plugged into the VM of a launcher pod (KubeVirt pkg/virt-controller/services/template.go). */
import { randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { HarnessNode } from './node.js';
import type { Container, Pod } from './pod.js';
import { run } from './run.js';

export interface DeviceNumbers {
  readonly major: number;
  readonly minor: number;
}

/** A claim: a host directory with its file system, or a block device. */
export type Claim =
  | { readonly name: string; readonly directory: string }
  | { readonly name: string; readonly device: DeviceNumbers };

export interface AttachmentOptions {
  readonly podIP: string;
  readonly claims: readonly Claim[];
  /** Devices that kubelet has let it use besides. */
  readonly devices?: readonly DeviceNumbers[];
  /** The container is started by startAttachment instead of with the pod. */
  readonly late?: boolean;
}

const container = 'hotplug-disk';

export async function createAttachment(node: HarnessNode, options: AttachmentOptions): Promise<Pod> {
  const pod = await node.createPod({
    name: `hp-volume-${options.podIP.replaceAll('.', '-')}`,
    vmiUid: randomUUID(),
    podIP: options.podIP,
    emptyDirs: ['hotplug-disks'],
  });
  if (options.late !== true) await startAttachment(pod, options.claims, options.devices);
  return pod;
}

/** kubelet mounts claims with a file system at /<name>; the runtime makes the nodes of others in the emptyDir. */
export async function startAttachment(
  pod: Pod,
  claims: readonly Claim[],
  given: readonly DeviceNumbers[] = [],
): Promise<Container> {
  const volume = pod.emptyDir('hotplug-disks');
  const mounts: string[] = [];
  const devices = [...given, ...claims.flatMap((claim) => ('device' in claim ? [claim.device] : []))];
  for (const claim of claims) {
    if ('directory' in claim) {
      mounts.push('volume', claim.directory, `/${claim.name}`);
      continue;
    }
    const directory = join(volume, claim.name);
    mkdirSync(directory, { mode: 0o755 });
    const { major, minor } = claim.device;
    await run('mknod', ['-m', '660', join(directory, randomUUID()), 'b', String(major), String(minor)]);
  }
  const started = await pod.startContainer({
    name: container,
    setup: ['hostToContainer', volume, '/path', ...mounts],
    command: ['/harness/container-disk', '--copy-path', '/path/hp'],
    devices,
  });
  await pod.waitForListener(started, 'hp.sock');
  return started;
}
