/** The declarations that every method of the helper carries as a protobuf option. */
import { type DescMethod, type DescService, getOption, hasOption } from '@bufbuild/protobuf';
import {
  Capability,
  type Declaration,
  declaration,
} from '../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import { DeviceService } from '../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HelperService } from '../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { HotplugService } from '../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { InspectService } from '../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { NetworkService } from '../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ResourceService } from '../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { SocketService } from '../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../gen/virtprivsep/privhelper/v1/storage_pb.js';

/** Every service that the helper offers. */
export const services: readonly DescService[] = [
  HelperService,
  PodService,
  SocketService,
  NetworkService,
  StorageService,
  HotplugService,
  DeviceService,
  ResourceService,
  InspectService,
];

/** Kernel numbers of the capabilities, capabilities(7). */
const capabilityNumber: Readonly<Record<Capability, number | undefined>> = {
  [Capability.UNSPECIFIED]: undefined,
  [Capability.CHOWN]: 0,
  [Capability.DAC_OVERRIDE]: 1,
  [Capability.DAC_READ_SEARCH]: 2,
  [Capability.FOWNER]: 3,
  [Capability.NET_ADMIN]: 12,
  [Capability.SYS_CHROOT]: 18,
  [Capability.SYS_PTRACE]: 19,
  [Capability.SYS_ADMIN]: 21,
  [Capability.MKNOD]: 27,
  [Capability.SYS_RESOURCE]: 24,
  [Capability.SYS_NICE]: 23,
  [Capability.NET_BIND_SERVICE]: 10,
  [Capability.SETUID]: 7,
};

export interface Declared {
  /** For instance `PodService.Identify`. */
  readonly name: string;
  readonly declaration: Declaration;
  /** Capabilities raised for the call, as a bit mask of kernel numbers. */
  readonly caps: bigint;
  /** Milliseconds; 0 for streams. */
  readonly deadlineMs: number;
}

/** What the helper raises on its own account: CAP_LINUX_IMMUTABLE, for the append-only flag of its audit files. */
export const auditCaps = 1n << 9n;

const setUid = 1n << 7n;
export const sysResource = 1n << 24n;

/** What a helper may have to do without. Without anything else that is declared it does not start. */
export const dispensableCaps = setUid | sysResource;

/**
 * What the helper does without on this node: CAP_SETUID, which only cgroup v1 asks for, and CAP_SYS_RESOURCE where the
 * helper's own container was not given it, as one inside another container is not: VMs that lock memory do not start
 * there, all others do.
 */
export function withheldCaps(node: {
  /** The helper's own, at its start. */
  readonly permitted: bigint;
  readonly cgroupsAreUnified: boolean;
}): bigint {
  return (node.cgroupsAreUnified ? setUid : 0n) | (sysResource & ~node.permitted);
}

/** Everything that a privileged thread may ever raise. */
export function permittedCaps(declared: readonly Declared[]): bigint {
  return declared.reduce((union, { caps }) => union | caps, auditCaps);
}

/** `PodService.Identify`: short and unique, there is one package. */
export function methodName(method: DescMethod): string {
  return `${method.parent.name}.${method.name}`;
}

/** Of all methods that end by themselves, in milliseconds. */
export function longestDeadlineMs(): number {
  const methods = services.flatMap((service) => service.methods);
  return Math.max(...methods.map((method) => declaredBy(method).deadlineMs));
}

/** Reads a method's declaration. Throws when it has none or an incomplete one. */
export function declaredBy(method: DescMethod): Declared {
  const name = methodName(method);
  if (!hasOption(method, declaration)) throw new Error(`${name} has no declaration`);
  const declared = getOption(method, declaration);
  let caps = 0n;
  for (const capability of declared.capabilities) {
    const number = capabilityNumber[capability];
    if (number === undefined) throw new Error(`${name} declares an unknown capability`);
    caps |= 1n << BigInt(number);
  }
  if (declared.effect === 0 || declared.changes === '')
    throw new Error(`${name} does not declare its effect`);
  if (method.methodKind === 'unary' && declared.deadlineMs === 0) throw new Error(`${name} has no deadline`);
  return { name, declaration: declared, caps, deadlineMs: declared.deadlineMs };
}
