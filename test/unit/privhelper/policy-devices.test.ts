import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import {
  ClaimRequestSchema,
  Device,
  SetPolicyRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { ClaimVirtiofsRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import {
  ClaimVolumeDirectoryRequestSchema,
  type EnsureHostDiskRequest,
  EnsureHostDiskRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { claim, setPolicy } from '../../../privhelper/policy/devices.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { claimVirtiofs } from '../../../privhelper/policy/sockets.js';
import { claimVolumeDirectory, ensureHostDisk } from '../../../privhelper/policy/vmi-disks.js';
import { refA, refusedField } from './fakes.js';

const policy = createPolicy();
/** What is no DNS label. */
const noLabels = ['', '.', '..', 'a/b', '../vfio/vfio', 'A', 'a\0', 'a'.repeat(64), '-a'];

describe('claims', () => {
  const parse = (devices: Device[], blockVolumes: string[] = []) =>
    claim.parse(policy, create(ClaimRequestSchema, { pod: refA, devices, blockVolumes }));

  it('knows the claimable devices, none twice, at most 16', () => {
    expect(parse([Device.TUN, Device.KVM]).devices).toEqual(['tun', 'kvm']);
    expect(parse([Device.MSHV, Device.SEV, Device.VFIO]).devices).toEqual(['mshv', 'sev', 'vfio']);
    expect(refusedField(() => parse([Device.KVM, Device.UNSPECIFIED]))).toBe('devices[1]');
    expect(refusedField(() => parse([99 as Device]))).toBe('devices[0]');
    expect(refusedField(() => parse([Device.KVM, Device.TUN, Device.KVM]))).toBe('devices[2]');
    expect(refusedField(() => parse(new Array<Device>(17).fill(Device.KVM)))).toBe('devices');
  });

  it('takes DNS labels for block volumes, none twice, at most 256', () => {
    expect(parse([], ['data', 'b-1'])).toMatchObject({ devices: [], blockVolumes: ['data', 'b-1'] });
    expect(claim.audited(parse([Device.SEV], ['data']))).toEqual({
      devices: ['sev'],
      blockVolumes: ['data'],
    });
    for (const name of noLabels) expect(refusedField(() => parse([], ['a', name]))).toBe('block_volumes[1]');
    expect(refusedField(() => parse([], ['a', 'b', 'a']))).toBe('block_volumes[2]');
    expect(refusedField(() => parse([], new Array<string>(257).fill('a')))).toBe('block_volumes');
  });

  it('takes names of block volumes for the device policy, none twice, at most 256', () => {
    const parse = (...blockVolumes: string[]) =>
      setPolicy.parse(policy, create(SetPolicyRequestSchema, { pod: refA, blockVolumes }));
    const names = Array.from({ length: 257 }, (_, i) => `v${i}`);
    expect(parse('data', 'logs')).toEqual({ ...refA, blockVolumes: ['data', 'logs'] });
    expect(parse()).toEqual({ ...refA, blockVolumes: [] });
    for (const bad of ['', '..', 'a/b', '/dev/sda', 'A', 'a\0', 'a'.repeat(64)]) {
      expect(refusedField(() => parse('data', bad))).toBe('block_volumes[1]');
    }
    expect(refusedField(() => parse('data', 'data'))).toBe('block_volumes[1]');
    expect(parse(...names.slice(1)).blockVolumes).toHaveLength(256);
    expect(refusedField(() => parse(...names))).toBe('block_volumes');
  });

  it('takes a DNS label for the filesystem of a virtiofs container', () => {
    const socket = (filesystem: string) =>
      claimVirtiofs.parse(policy, create(ClaimVirtiofsRequestSchema, { pod: refA, filesystem }));
    expect(socket('data').entry).toEqual({ volume: 'virtiofs-containers', path: ['data.sock'] });
    for (const name of noLabels) expect(refusedField(() => socket(name))).toBe('filesystem');
  });
});

describe('host disks', () => {
  const parse = (more: Partial<Omit<EnsureHostDiskRequest, '$typeName' | '$unknown' | 'pod'>> = {}) =>
    ensureHostDisk.parse(
      policy,
      create(EnsureHostDiskRequestSchema, { pod: refA, volume: 'v', fileName: 'disk.img', ...more }),
    );

  it('takes one path element, or none', () => {
    expect(parse({ capacityBytes: 5n, tolerancePercent: 10, reserveBytes: 3n })).toEqual({
      ...refA,
      volume: 'v',
      fileName: 'disk.img',
      capacity: 5n,
      tolerance: 10,
      reserve: 3n,
    });
    expect(parse({ fileName: '' }).fileName).toBe('');
    expect(parse({ fileName: 'ä b' }).fileName).toBe('ä b');
    for (const fileName of ['.', '..', '/', 'a/b', '../a', 'a\0', 'ä'.repeat(128)]) {
      expect(refusedField(() => parse({ fileName }))).toBe('file_name');
    }
    for (const volume of noLabels) expect(refusedField(() => parse({ volume }))).toBe('volume');
  });

  it('bounds sizes', () => {
    const most = 1n << 60n;
    expect(parse({ capacityBytes: most, reserveBytes: most, tolerancePercent: 100 }).capacity).toBe(most);
    expect(refusedField(() => parse({ capacityBytes: most + 1n }))).toBe('capacity_bytes');
    expect(refusedField(() => parse({ reserveBytes: most + 1n }))).toBe('reserve_bytes');
    expect(refusedField(() => parse({ tolerancePercent: 101 }))).toBe('tolerance_percent');
  });

  it('takes a DNS label for the volume whose directory is given away', () => {
    const directory = (volume: string) =>
      claimVolumeDirectory.parse(policy, create(ClaimVolumeDirectoryRequestSchema, { pod: refA, volume }));
    expect(directory('data')).toEqual({ ...refA, volume: 'data' });
    for (const volume of noLabels) expect(refusedField(() => directory(volume))).toBe('volume');
  });
});
