/** Values for fields: such as the helper accepts, such as lie at bounds, and such as an attacker would try. */
import { ScalarType } from '@bufbuild/protobuf';
import { blockVolume, claimVolume } from '../integration/privhelper-fixture.js';
import type { Random } from './random.js';

export interface Target {
  readonly podUid: string;
  readonly vmiUid: string;
}

/** What the calls of a run are about. */
export interface Targets {
  /** Launcher pods with their VMIs. */
  readonly pods: readonly Target[];
  /** A pod with a launcher's volumes and nobody in it. */
  readonly silent: Target;
  /** An attachment pod. */
  readonly attachment: string;
  /** UIDs of pods that are no launchers, and of none. */
  readonly others: readonly string[];
}

/** Names of links, unlike within one request. The first two exist in the pods. */
export const links = ['eth0', 'net1', 'pod16477688c0e', 'net2', 'net3', 'pod0123456789a'] as const;

type Value = string | number | boolean;

const macs = ['', '02:00:00:aa:bb:cc', '0a:58:0a:f4:02:05'];
const networks4 = ['', '10.0.2.0/24', '192.168.7.77/28', '172.16.0.0/30', '100.64.0.0/10'];
const networks6 = ['', 'fd10:0:2::/120', 'fd00::/8', 'fdff:1:2:3:4:5:6:7/126'];
const gateways = ['', '10.0.2.1', '169.254.1.1'];
const imagePaths = ['', '', '/disk/disk.raw', 'disk/disk.raw', '/disk'];
const vmiDisks = ['claim', 'node', 'plain', 'linked', 'none'];
const isoVolumes = ['config', 'linked', 'absent'];

/** Values that the helper accepts, by `Message.field`. */
const accepted: Readonly<Record<string, readonly Value[]>> = {
  'Attachment.index': [0, 1, 7, 99],
  'Attachment.queues': [0, 1, 2, 4, 256],
  'DhcpRecord.ipamDisabled': [false],
  'DhcpRecord.address': ['10.244.2.5/24', '0.0.0.0/0', '10.1.2.3/32'],
  'DhcpRecord.mac': macs,
  'DhcpRecord.gateway': gateways,
  'DhcpRoute.destination': ['', '10.0.0.0/8', '255.255.255.255/32'],
  'DhcpRoute.gateway': gateways,
  'MasqueradeBinding.ipv4Cidr': networks4,
  'MasqueradeBinding.ipv6Cidr': networks6,
  'ForwardedPort.port': [1, 22, 80, 443, 49152],
  'ForwardedPort.endPort': [0, 0, 50_000, 65_535],
  'StatContainerDisksRequest.volumeIndexes': [0, 1, 1, 2, 2, 3, 4, 999],
  'ContainerDisk.volumeIndex': [0, 1, 1, 2, 2, 3, 4, 999],
  'ContainerDisk.imagePath': imagePaths,
  'MountContainerDisksRequest.kernelArtifacts': ['/disk/disk.raw', 'disk/disk.raw', '/boot/vmlinuz'],
  'OpenContainerDiskRequest.volumeIndex': [1, 1, 2, 2, 3, 999],
  'OpenContainerDiskRequest.imagePath': imagePaths,
  'PlugFilesystemRequest.volume': [claimVolume, claimVolume, 'absent'],
  'PlugBlockRequest.volume': [blockVolume, blockVolume, 'absent'],
  'UnplugRequest.volume': [claimVolume, claimVolume, 'absent'],
  'EnsureHostDiskRequest.volume': vmiDisks,
  'EnsureHostDiskRequest.fileName': ['disk.img', 'a.img', 'linked.img', 'directory', ''],
  'EnsureHostDiskRequest.capacityBytes': [0, 1, 4096, 65_536, 2 ** 32 - 1],
  'EnsureHostDiskRequest.tolerancePercent': [0, 10, 100],
  'EnsureHostDiskRequest.reserveBytes': [0, 4096, 131_072],
  'ClaimVolumeDirectoryRequest.volume': vmiDisks,
  'ClaimVirtiofsRequest.filesystem': ['fs', 'linked', 'none'],
  'ClaimRequest.blockVolumes': ['blk', 'tun', 'net', 'none', 'null'],
  'ConnectRequest.index': [0, 0, 0, 0, 1, 2, 3],
  'ConnectRequest.sourceVmiUid': ['', '', '', '11111111-1111-4111-8111-111111111111'],
  'StatIsoRequest.configMapVolume': isoVolumes,
  'StatIsoRequest.downwardApiVolume': isoVolumes,
  'StatIsoRequest.secretVolume': isoVolumes,
  'StatIsoRequest.sysprepVolume': isoVolumes,
  'SetPolicyRequest.blockVolumes': ['data', 'logs', 'tun', 'a'],
  'IsolateEmulatorRequest.cpus': [0, 1],
  'ScheduleVcpusRequest.vcpus': [0, 1, 1023],
  'CloudInitIso.namespace': ['default', 'kube-system'],
  'CloudInitIso.vmiName': ['alpha', 'vm.1'],
};

const traversals = ['..', '../..', '/', '../../../../etc/shadow', '/proc/self/root/etc/shadow', 'a/../..'];
const texts = [
  '',
  ' ',
  '.',
  '\0',
  'eth0\0',
  'lo',
  'k6t-eth0',
  '-',
  '%s%n%x',
  '$(id)',
  '{"a":1}',
  '\n{"event":"end"}',
  '\u202e\ufeff\u{10ffff}',
  'a'.repeat(15),
  'a'.repeat(16),
  'A'.repeat(36),
  '0.0.0.0/0',
  '255.255.255.255/33',
  '::/0',
  '::ffff:10.0.2.0/120',
  'fe80::1%eth0',
  '01:00:5e:00:00:01',
  'ff:ff:ff:ff:ff:ff',
  '00000000-0000-0000-0000-000000000000',
  '../../../../../../../../../../../../',
  ...traversals,
];
const numbers = [
  0,
  1,
  2,
  63,
  64,
  65,
  99,
  100,
  255,
  256,
  999,
  1000,
  65_535,
  65_536,
  2 ** 31 - 1,
  2 ** 31,
  2 ** 32 - 1,
];
const wide = [0n, 1n, -1n, 2n ** 63n - 1n, -(2n ** 63n), 2n ** 64n - 1n];

/** An accepted value of a field, undefined where any value of its type is as good. */
export function acceptedValue(field: string, random: Random): Value | undefined {
  const list = accepted[field];
  return list === undefined ? undefined : random.pick(list);
}

export function hostileText(random: Random): string {
  if (random.chance(0.1)) return random.pick(texts).repeat(random.below(200));
  if (random.chance(0.1)) return `${random.pick(texts)}${random.pick(texts)}`;
  if (random.chance(0.1))
    return String.fromCharCode(...Array.from({ length: random.below(64) }, () => random.below(0xd800)));
  return random.pick(texts);
}

/** Any value of a scalar type; a string is bytes that need not be UTF-8. */
export function hostileScalar(type: ScalarType, random: Random): Value | bigint | Uint8Array {
  switch (type) {
    case ScalarType.STRING:
      return random.chance(0.05) ? random.bytes(random.below(64)) : hostileText(random);
    case ScalarType.BYTES:
      return random.bytes(random.below(random.chance(0.05) ? 4096 : 64));
    case ScalarType.BOOL:
      return random.chance(0.5);
    case ScalarType.UINT64:
    case ScalarType.INT64:
      return random.pick(wide);
    default:
      return random.chance(0.2) ? random.uint32() : random.pick(numbers);
  }
}

/** A pod and a VMI, mostly ones that belong together. */
export function target({ pods, silent, others }: Targets, hostile: boolean, random: Random): Target {
  const { podUid, vmiUid } = random.chance(0.05) ? silent : random.pick(pods);
  if (!hostile) return { podUid, vmiUid };
  switch (random.below(5)) {
    case 0:
      return { podUid, vmiUid: random.pick(pods).vmiUid };
    case 1:
      return { podUid: random.pick(others), vmiUid };
    case 2:
      return { podUid: hostileText(random), vmiUid };
    case 3:
      return { podUid, vmiUid: hostileText(random) };
    default:
      return { podUid: podUid.toUpperCase(), vmiUid };
  }
}
