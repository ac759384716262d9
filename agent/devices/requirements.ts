/**
 * What of a launcher's devices and files must belong to QEMU's user before the VM starts, in order (KubeVirt
 * pkg/virt-handler/controller.go setupDevicesOwnerships, non-root.go). Pure.
 */
import { Device } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { quantityValue } from '../api/quantity.js';
import type { Vmi } from '../api/vmi.js';
import type { HypervisorName } from '../cluster/config.js';
import { CriticalNetworkError } from '../reconcile/ports.js';
import { isNonRoot } from '../reconcile/predicates.js';
import { claimImagePath, imageName } from '../storage/host-disks.js';

export interface HostDiskRequirement {
  readonly kind: 'host disk';
  readonly volume: string;
  /** As the VMI has it. */
  readonly path: string;
  /** Empty: the volume's directory itself. */
  readonly fileName: string;
  /** Bytes; 0n when the VMI gives none, which an image that exists does not need. */
  readonly capacity: bigint;
}

export type Requirement =
  /** `missing`: the error for a node that is not there; undefined where the VM does without it. */
  | { readonly kind: 'device'; readonly device: Device; readonly missing: (() => Error) | undefined }
  /** A node /dev/<volume>. */
  | { readonly kind: 'block volume'; readonly volume: string }
  | HostDiskRequirement
  /** The root directory of a claim. */
  | { readonly kind: 'volume directory'; readonly volume: string }
  /** The socket of a virtiofs container. */
  | { readonly kind: 'virtiofs socket'; readonly filesystem: string }
  /** The VMI is not ready for more. */
  | { readonly kind: 'failure'; readonly error: Error };

export interface RequirementOptions {
  /** The cluster lets guests run without the hypervisor's device. */
  readonly useEmulation: boolean;
  readonly hypervisor: HypervisorName;
}

type Volume = NonNullable<Vmi['spec']['volumes']>[number];

/** `vmi` is the launcher's: its filesystem claims are host disks. */
export function ownershipRequirements(vmi: Vmi, options: RequirementOptions): Requirement[] {
  const nonRoot = isNonRoot(vmi);
  return [
    hypervisorDevice(options),
    ...vsockDevice(vmi),
    ...hostDisks(vmi),
    ...sevDevice(vmi),
    ...(nonRoot ? blockVolumes(vmi) : []),
    ...(nonRoot ? volumeDirectories(vmi) : []),
    ...(nonRoot ? [optionalDevice(Device.VFIO)] : []),
    ...(nonRoot ? networkDevices(vmi, options.useEmulation) : []),
    ...virtiofsSockets(vmi),
  ];
}

function hypervisorDevice({ useEmulation, hypervisor }: RequirementOptions): Requirement {
  const [device, path] =
    hypervisor === 'kvm' ? ([Device.KVM, '/dev/kvm'] as const) : ([Device.MSHV, '/dev/mshv'] as const);
  return useEmulation ? optionalDevice(device) : { kind: 'device', device, missing: () => notOwned(path) };
}

function optionalDevice(device: Device): Requirement {
  return { kind: 'device', device, missing: undefined };
}

function vsockDevice(vmi: Vmi): Requirement[] {
  if (vmi.spec.domain?.devices?.autoattachVSOCK !== true) return [];
  return [{ kind: 'device', device: Device.VHOST_VSOCK, missing: () => notOwned('/dev/vhost-vsock') }];
}

function hostDisks(vmi: Vmi): Requirement[] {
  return (vmi.spec.volumes ?? []).flatMap(({ name, hostDisk }): Requirement[] => {
    if (hostDisk?.type !== 'DiskOrCreate' || !hostDisk.path) return [];
    const capacity = quantityValue(String(hostDisk.capacity ?? '0'));
    if (capacity === undefined || capacity < 0n) {
      const text = `preparing host-disks failed: the capacity of host disk ${name} is no size: ${hostDisk.capacity}`;
      return [{ kind: 'failure', error: new Error(text) }];
    }
    const { path } = hostDisk;
    return [{ kind: 'host disk', volume: name, path, fileName: imageName(path), capacity }];
  });
}

function sevDevice(vmi: Vmi): Requirement[] {
  const security = vmi.spec.domain?.launchSecurity;
  if (security?.sev == null && security?.snp == null) return [];
  return [{ kind: 'device', device: Device.SEV, missing: () => new Error(absent('/dev/sev')) }];
}

/** Whether a claim is a block device is only known once the controller has filled in its status. */
function blockVolumes(vmi: Vmi): Requirement[] {
  const statuses = new Map((vmi.status.volumeStatus ?? []).map((status) => [status.name, status]));
  return (vmi.spec.volumes ?? []).filter(usesClaim).flatMap((volume): Requirement[] => {
    const status = statuses.get(volume.name);
    const claim = status?.persistentVolumeClaimInfo;
    if (claim == null) {
      if (volume.persistentVolumeClaim == null) return [];
      const error = new Error(`missing volume status for volume ${volume.name}`);
      return [{ kind: 'failure', error }];
    }
    // Hotplugged volumes have their nodes elsewhere.
    if (claim.volumeMode !== 'Block' || status?.hotplugVolume != null) return [];
    return [{ kind: 'block volume', volume: volume.name }];
  });
}

function usesClaim({ persistentVolumeClaim, dataVolume, ephemeral }: Volume): boolean {
  return persistentVolumeClaim != null || dataVolume != null || ephemeral?.persistentVolumeClaim != null;
}

/** Those of claims: the directory of a host disk is the node's own and stays so. */
function volumeDirectories(vmi: Vmi): Requirement[] {
  return (vmi.spec.volumes ?? [])
    .filter(({ name, hostDisk }) => hostDisk?.path === claimImagePath(name))
    .map(({ name }) => ({ kind: 'volume directory', volume: name }));
}

export function requiresVhostNet(vmi: Vmi, useEmulation: boolean): boolean {
  const interfaces = vmi.spec.domain?.devices?.interfaces ?? [];
  return !useEmulation && interfaces.some(({ model }) => !model || model === 'virtio');
}

export function requiresTun(vmi: Vmi): boolean {
  const devices = vmi.spec.domain?.devices;
  return (devices?.interfaces ?? []).length > 0 || devices?.autoattachPodInterface !== false;
}

function networkDevices(vmi: Vmi, useEmulation: boolean): Requirement[] {
  const requirements: Requirement[] = [];
  if (requiresVhostNet(vmi, useEmulation)) {
    const missing = () => noNetwork('vhost-net', '/dev/vhost-net');
    requirements.push({ kind: 'device', device: Device.VHOST_NET, missing });
  }
  if (requiresTun(vmi)) {
    requirements.push({
      kind: 'device',
      device: Device.TUN,
      missing: () => noNetwork('tun', '/dev/net/tun'),
    });
  }
  return requirements;
}

function virtiofsSockets(vmi: Vmi): Requirement[] {
  return (vmi.spec.domain?.devices?.filesystems ?? []).map(({ name }) => ({
    kind: 'virtiofs socket',
    filesystem: name,
  }));
}

function notOwned(path: string): Error {
  return new Error(`failed to set up file ownership for ${path}: ${absent(path)}`);
}

function noNetwork(device: string, path: string): Error {
  return new CriticalNetworkError(
    `Critical network error: failed to set up ${device} device, ${absent(path)}`,
  );
}

function absent(path: string): string {
  const [, , name] = path.split('/');
  return `failed opening ${name} for path root: launcher, relative: ${path}: no such file or directory`;
}
