/**
 * Device nodes that the launcher's user must own before the VM starts (KubeVirt pkg/virt-handler
 * controller.go setupDevicesOwnerships, non-root.go).
 */
import { ClaimOutcome, type ClaimResult, Device } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { PodFinder, PodRef } from '../api/pod-ref.js';
import type { Vmi } from '../api/vmi.js';
import { CriticalNetworkError, type DeviceOwnership } from '../reconcile/ports.js';
import { isNonRoot } from '../reconcile/predicates.js';
import { requiresTun, requiresVhostNet } from './requirements.js';

/** The helper's device call. Throws a HelperError. */
export interface DeviceHelper {
  claimDevices(request: { readonly pod: PodRef; readonly devices: Device[] }): Promise<ClaimResult[]>;
}

export interface DeviceOwnershipOptions {
  readonly helper: DeviceHelper;
  readonly pods: PodFinder;
  /** `developerConfiguration.useEmulation` of the cluster. */
  readonly useEmulation: () => boolean;
}

/** What a VMI needs and this version cannot give to its launcher. */
export class UnsupportedDevice extends Error {
  override readonly name = 'UnsupportedDevice';
}

interface Claim {
  readonly device: Device;
  /** The error for a node that is missing; undefined if the VM does without it. */
  readonly missing: (() => Error) | undefined;
}

export class HelperDeviceOwnership implements DeviceOwnership {
  readonly #options: DeviceOwnershipOptions;

  constructor(options: DeviceOwnershipOptions) {
    this.#options = options;
  }

  /** Throws UnsupportedDevice before anything is changed, and the error of the first missing node. */
  async claim(vmi: Vmi): Promise<void> {
    const unsupported = unsupportedDevice(vmi);
    if (unsupported !== undefined) {
      throw new UnsupportedDevice(`${unsupported} is not supported by this version`);
    }
    const useEmulation = this.#options.useEmulation();
    const general = generalClaims(vmi, useEmulation);
    const network = isNonRoot(vmi) ? networkClaims(vmi, useEmulation) : [];
    const results = await this.#options.helper.claimDevices({
      pod: await this.#options.pods.find(vmi),
      devices: [...general, ...network].map(({ device }) => device),
    });
    requireOwned(general, results);
    if (isNonRoot(vmi)) requireVolumeStatus(vmi);
    requireOwned(network, results);
  }
}

function generalClaims(vmi: Vmi, useEmulation: boolean): Claim[] {
  const claims: Claim[] = [
    { device: Device.KVM, missing: useEmulation ? undefined : () => notOwned('/dev/kvm') },
  ];
  if (vmi.spec.domain?.devices?.autoattachVSOCK === true) {
    claims.push({ device: Device.VHOST_VSOCK, missing: () => notOwned('/dev/vhost-vsock') });
  }
  return claims;
}

function networkClaims(vmi: Vmi, useEmulation: boolean): Claim[] {
  const claims: Claim[] = [];
  if (requiresVhostNet(vmi, useEmulation)) {
    claims.push({ device: Device.VHOST_NET, missing: () => noNetwork('vhost-net', '/dev/vhost-net') });
  }
  if (requiresTun(vmi)) {
    claims.push({ device: Device.TUN, missing: () => noNetwork('tun', '/dev/net/tun') });
  }
  return claims;
}

function requireOwned(claims: readonly Claim[], results: readonly ClaimResult[]): void {
  for (const { device, missing } of claims) {
    const outcome = results.find((result) => result.device === device)?.outcome;
    if (outcome === ClaimOutcome.CLAIMED || outcome === ClaimOutcome.ALREADY_OWNED) continue;
    if (missing !== undefined) throw missing();
  }
}

/** Whether a claim is a block device is only known once the controller has filled in its status. */
function requireVolumeStatus(vmi: Vmi): void {
  const known = new Set(
    (vmi.status.volumeStatus ?? [])
      .filter((status) => status.persistentVolumeClaimInfo !== undefined)
      .map((status) => status.name),
  );
  const unknown = (vmi.spec.volumes ?? []).find(
    (volume) => volume.persistentVolumeClaim !== undefined && !known.has(volume.name),
  );
  if (unknown !== undefined) throw new Error(`missing volume status for volume ${unknown.name}`);
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

function unsupportedDevice(vmi: Vmi): string | undefined {
  const domain = vmi.spec.domain;
  const devices = domain?.devices;
  const volumes = vmi.spec.volumes ?? [];
  // An image that exists on the node keeps its owner, so there is only one kind to care for.
  const created = volumes.find((volume) => volume.hostDisk?.type === 'DiskOrCreate' && volume.hostDisk.path);
  if (created !== undefined) return `creating the image of host disk ${created.name}`;
  if (domain?.launchSecurity?.sev || domain?.launchSecurity?.snp) return 'SEV';
  const block = volumes.find((volume) => isBlockVolume(vmi, volume.name) && isNonRoot(vmi));
  if (block !== undefined) return `block volume ${block.name}`;
  const passthrough =
    devices?.hostDevices?.[0]?.name ??
    devices?.gpus?.[0]?.name ??
    devices?.interfaces?.find((iface) => iface.sriov !== undefined)?.name;
  if (passthrough !== undefined && isNonRoot(vmi)) return `passthrough of host device ${passthrough}`;
  const filesystem = devices?.filesystems?.[0]?.name;
  return filesystem === undefined ? undefined : `virtiofs filesystem ${filesystem}`;
}

function isBlockVolume(vmi: Vmi, name: string): boolean {
  const status = (vmi.status.volumeStatus ?? []).find((entry) => entry.name === name);
  return status?.hotplugVolume === undefined && status?.persistentVolumeClaimInfo?.volumeMode === 'Block';
}
