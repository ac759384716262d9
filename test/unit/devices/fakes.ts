import { create } from '@bufbuild/protobuf';
import { type DeviceOwnershipOptions, HelperDeviceOwnership } from '../../../agent/devices/ownership.js';
import { ClaimOutcome } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { ClaimResponseSchema, Device } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import {
  EnsureHostDiskResponseSchema,
  HostDiskOutcome,
  VolumeClaimOutcome,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { hostDiskSize } from '../../../privhelper/storage/host-disk-size.js';
import { onePod } from '../network/fakes.js';
import { silentLog } from '../status/fakes.js';

const paths: Readonly<Record<Device, string>> = {
  [Device.UNSPECIFIED]: '',
  [Device.KVM]: '/dev/kvm',
  [Device.MSHV]: '/dev/mshv',
  [Device.TUN]: '/dev/net/tun',
  [Device.VHOST_NET]: '/dev/vhost-net',
  [Device.VHOST_VSOCK]: '/dev/vhost-vsock',
  [Device.SEV]: '/dev/sev',
  [Device.VFIO]: '/dev/vfio/vfio',
};

type Options = Partial<ReturnType<DeviceOwnershipOptions['config']>>;

/** A launcher whose files are given; what the helper does to them is noted. */
export class FakeLauncherFiles {
  readonly calls: string[] = [];
  readonly events: string[] = [];
  readonly lines: string[] = [];
  /** Bytes that a user may write. */
  free = 1n << 40n;
  now = 0;
  /** Volumes that kubelet did not mount. */
  readonly nodeDirectories = new Set<string>();
  /** Volumes whose server does not let them be given away. */
  readonly serverDirectories = new Set<string>();

  /** `files`: paths that exist. */
  constructor(readonly files: ReadonlySet<string>) {}

  ownership(config: Options = {}): HelperDeviceOwnership {
    return new HelperDeviceOwnership({
      pods: onePod,
      config: () => ({
        useEmulation: false,
        hypervisor: 'kvm',
        pvcTolerateLessSpaceUpToPercent: 10,
        minimumReservePvcBytes: 131072,
        ...config,
      }),
      events: { event: (_vmi, type, reason, message) => this.events.push(`${type} ${reason} ${message}`) },
      clock: { now: () => this.now },
      log: silentLog(this.lines),
      helper: {
        claimDevices: async ({ devices, blockVolumes }) =>
          create(ClaimResponseSchema, {
            results: devices.map((device) => ({ device, outcome: this.#claimDevice(device) })),
            blockVolumes: blockVolumes.map((volume) => ({ volume, outcome: this.#chown(`/dev/${volume}`) })),
          }),
        ensureHostDisk: async ({ volume, fileName, capacityBytes, tolerancePercent, reserveBytes }) => {
          const path = `/var/run/kubevirt-private/vmi-disks/${volume}/${fileName}`;
          if (fileName === '' || this.files.has(path)) {
            return create(EnsureHostDiskResponseSchema, { outcome: HostDiskOutcome.EXISTED });
          }
          const { size, available: availableBytes } = hostDiskSize({
            capacity: capacityBytes,
            free: this.free,
            reserve: reserveBytes,
            tolerance: tolerancePercent,
          });
          const outcome = size === undefined ? HostDiskOutcome.NO_SPACE : HostDiskOutcome.CREATED;
          if (size !== undefined) this.calls.push(`create ${path} ${size}`);
          return create(EnsureHostDiskResponseSchema, { outcome, availableBytes, sizeBytes: size ?? 0n });
        },
        claimVolumeDirectory: async (_pod, volume) => {
          if (this.nodeDirectories.has(volume)) return VolumeClaimOutcome.LEFT_ALONE;
          if (this.serverDirectories.has(volume)) return VolumeClaimOutcome.OWNER_KEPT;
          this.calls.push(`chown /var/run/kubevirt-private/vmi-disks/${volume}`);
          return VolumeClaimOutcome.CLAIMED;
        },
        claimVirtiofs: async (_pod, filesystem) =>
          this.#chown(`/var/run/kubevirt/virtiofs-containers/${filesystem}.sock`),
      },
    });
  }

  #claimDevice(device: Device): ClaimOutcome {
    const path = paths[device];
    if (device !== Device.VFIO) return this.#chown(path);
    if (!this.files.has(path)) return ClaimOutcome.MISSING;
    for (const each of [...this.files].sort()) {
      if (each.startsWith('/dev/vfio/') && each !== path) this.#chown(each);
    }
    return ClaimOutcome.CLAIMED;
  }

  #chown(path: string): ClaimOutcome {
    if (!this.files.has(path)) return ClaimOutcome.MISSING;
    this.calls.push(`chown ${path}`);
    return ClaimOutcome.CLAIMED;
  }
}
