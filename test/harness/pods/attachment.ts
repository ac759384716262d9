/** Attachment pods: each holds volumes that are plugged into the VM of a launcher pod (KubeVirt pkg/virt-controller/services/template.go). */
import { randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { HarnessNode } from './node.js';
import type { Container, Pod } from './pod.js';
import { run } from './run.js';

/** A claim: a host directory with its file system, or a block device. */
export type Claim =
  | { readonly name: string; readonly directory: string }
  | { readonly name: string; readonly device: { readonly major: number; readonly minor: number } };

export interface AttachmentOptions {
  readonly podIP: string;
  readonly claims: readonly Claim[];
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
  if (options.late !== true) await startAttachment(pod, options.claims);
  return pod;
}

/** kubelet mounts claims with a file system at /<name>; the runtime makes the nodes of others in the emptyDir. */
export async function startAttachment(pod: Pod, claims: readonly Claim[]): Promise<Container> {
  const volume = pod.emptyDir('hotplug-disks');
  const mounts: string[] = [];
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
  });
  await pod.waitForListener(started, 'hp.sock');
  return started;
}
