/**
 * What a launcher may open once a block volume was plugged: what every container may, the character devices of its
 * /dev that are of a listed class, and the block devices of its VMI.
 */
import type { DeviceNumbers } from '../pods/plugged-devices.js';
import type { RegisteredDevices } from './registered.js';
import { any, type DeviceRule, type Permissions, uniteRules } from './rules.js';

export interface PolicyFacts {
  /** Version of the cgroup hierarchy. On v1 defaults are without the right to make nodes, as virt-handler has them. */
  readonly version: 1 | 2;
  /** Character devices in the launcher's /dev. */
  readonly characterDevices: readonly DeviceNumbers[];
  readonly registered: RegisteredDevices;
  /** Volumes of the VMI, hotplugged ones included. */
  readonly blockDevices: readonly DeviceNumbers[];
}

interface DeviceClass {
  readonly major: number;
  /** Each minor number of the major one for undefined. */
  readonly minors?: readonly number[];
}

/** /dev/kvm */
const kvm = { major: 10, minor: 232 } as const;

/** Allowed whether or not there are nodes: ptmx, null, tun, vhost-net, and the pseudo terminals. */
const defaults: readonly DeviceNumbers[] = [
  { major: 5, minor: 2 },
  { major: 1, minor: 3 },
  { major: 10, minor: 200 },
  { major: 10, minor: 238 },
  ...Array.from({ length: 16 }, (_, i) => ({ major: 136 + i, minor: any })),
];

/** Classes with numbers of their own (Documentation/admin-guide/devices.txt). */
const fixedClasses: readonly DeviceClass[] = [
  // null, zero, full, random, urandom
  { major: 1, minors: [3, 5, 7, 8, 9] },
  // tty, ptmx
  { major: 5, minors: [0, 2] },
  // vfio, tun, kvm, vhost-net, vhost-vsock
  { major: 10, minors: [196, 200, kvm.minor, 238, 241] },
];

/** Names in /proc/misc: AMD SEV, iommufd, Microsoft's hypervisor. */
const miscNames = ['sev', 'iommu', 'mshv'];
/** Names in /proc/devices: groups and devices of VFIO, USB, macvtap. */
const characterNames = ['vfio', 'vfio-dev', 'usb_device', 'macvtap'];
const miscMajor = 10;
/** Hypervisors: their devices have the permissions of defaults. */
const hypervisorNames = ['mshv'];

/** The rules, in the order in which they are applied. */
export function policyRules({
  version,
  characterDevices,
  registered,
  blockDevices,
}: PolicyFacts): DeviceRule[] {
  const unmade: Permissions = version === 1 ? 'rw' : 'rwm';
  const classes: readonly DeviceClass[] = [
    ...fixedClasses,
    { major: miscMajor, minors: miscNames.flatMap((name) => registered.miscMinors.get(name) ?? []) },
    ...characterNames.flatMap((name) =>
      (registered.characterMajors.get(name) ?? []).map((major) => ({ major })),
    ),
  ];
  const hypervisors = [
    kvm,
    ...hypervisorNames.flatMap((name) =>
      (registered.miscMinors.get(name) ?? []).map((minor) => ({ major: miscMajor, minor })),
    ),
  ];
  const inClass = ({ major, minor }: DeviceNumbers) =>
    classes.some((each) => each.major === major && (each.minors?.includes(minor) ?? true));
  const isOneOf = (list: readonly DeviceNumbers[], { major, minor }: DeviceNumbers) =>
    list.some((each) => each.major === major && each.minor === minor);
  const present = characterDevices.filter((device) => inClass(device) && !isOneOf(defaults, device));
  return uniteRules([
    ...defaults.map((device) => ({ type: 'c' as const, ...device, permissions: unmade })),
    ...present.map(({ major, minor }) => ({
      type: 'c' as const,
      major,
      minor,
      permissions: isOneOf(hypervisors, { major, minor }) ? unmade : 'rwm',
    })),
    ...blockDevices.map(({ major, minor }) => ({
      type: 'b' as const,
      major,
      minor,
      permissions: 'rwm' as const,
    })),
  ]);
}
