import { chmodSync, chownSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ClaimRequestSchema, Device } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { errnoOf, toFailure } from '../../../privhelper/failure.js';
import { claim } from '../../../privhelper/policy/devices.js';
import {
  PolicyFileError,
  parsePolicy,
  policyFileProblems,
  readPolicyFile,
} from '../../../privhelper/policy/file.js';
import { createPolicy, describePolicy, settings } from '../../../privhelper/policy/policy.js';
import { refA } from './fakes.js';

describe('policy text', () => {
  it('is a version, and what differs from the defaults', () => {
    expect(parsePolicy('version: 1\n')).toEqual({});
    const text = [
      'version: 1',
      'users: {agentUid: 1001, adminGid: 0x10}',
      'paths: {kubeletPodsDir: /data/kubelet/pods}',
      'devices: [tun, kvm]',
      'audit: {maxBytes: 1048576}',
      'limits:',
      '  maxPods: 5 # few',
    ].join('\n');
    expect(parsePolicy(text)).toEqual({
      agentUid: 1001,
      adminGid: 16,
      kubeletPodsDir: '/data/kubelet/pods',
      devices: ['tun', 'kvm'],
      auditMaxBytes: 1048576,
      maxPods: 5,
    });
  });

  it('AFT-037 names kubelet’s directory without a slash at its end, however it is given', () => {
    const given = { kubeletPodsDir: '/data/kubelet/pods/' };
    expect(createPolicy(given).kubeletPodsDir).toBe('/data/kubelet/pods');
    expect(() => createPolicy({ kubeletPodsDir: '/data/kubelet/pods//' })).toThrow('paths.kubeletPodsDir');
  });

  it.each([
    ['', 'policy: not a mapping'],
    ['- version: 1', 'policy: not a mapping'],
    ['limits: {maxPods: 5}', 'version: must be 1'],
    ['version: 2', 'version: must be 1'],
    ['version: "1"', 'version: must be 1'],
    ['version: 1\nlimit: {}', 'limit: unknown field'],
    ['version: 1\nlimits: {maxpods: 5}', 'limits.maxpods: unknown field'],
    ['version: 1\n__proto__: {maxPods: 5}', '__proto__: unknown field'],
    ['version: 1\nconstructor: 5', 'constructor: unknown field'],
    ['version: 1\nlimits: [5]', 'limits: not a mapping'],
    ['version: 1\nlimits:', 'limits: not a mapping'],
    ['version: 1\nlimits: {maxPods: 4097}', 'limits.maxPods: 4097 is not an integer in 1..4096'],
    ['version: 1\nlimits: {maxPods: "5"}', 'limits.maxPods: "5" is not an integer in 1..4096'],
    ['version: 1\nlimits: {maxPods: 1.5}', 'limits.maxPods: 1.5 is not an integer in 1..4096'],
    ['version: 1\nlimits: {maxPods: .inf}', 'limits.maxPods: null is not an integer in 1..4096'],
    ['version: 1\nlimits: {maxPods: }', 'limits.maxPods: null is not an integer in 1..4096'],
    ['version: 1\nusers: {agentUid: 0}', 'users.agentUid: 0 is not an integer in 1..4294967294'],
    [
      'version: 1\ndevices: kvm',
      'devices: "kvm" is not a list of kvm, mshv, tun, vhost-net, vhost-vsock, sev, vfio',
    ],
    [
      'version: 1\ndevices: [kvm, sda]',
      'devices[1]: "sda" is not one of kvm, mshv, tun, vhost-net, vhost-vsock, sev, vfio',
    ],
    ['version: 1\ndevices: [kvm, tun, kvm]', 'devices[2]: kvm occurs twice'],
    ['version: 1\npaths: {cgroupRoot: ../x}', 'paths.cgroupRoot: "../x" is not an absolute path'],
    ['version: 1\npaths: {cgroupRoot: /sys/../x}', 'paths.cgroupRoot: "/sys/../x" is not an absolute path'],
    ['version: 1\nversion: 1', 'Map keys must be unique at line 2'],
    ['version: 1\n---\nversion: 1', 'multiple documents'],
    ['version: 1\nusers: {agentUid: &a 5, agentGid: *a}', 'aliases are not accepted'],
    ['version: !secret 1', 'tag'],
    ['version: 1\nusers: [', 'at line 2'],
  ])('refuses %j', (text, message) => {
    expect(() => parsePolicy(text)).toThrow(PolicyFileError);
    expect(() => parsePolicy(text)).toThrow(message);
  });

  it('covers every value of the policy, within its own bound', () => {
    for (const [key, setting] of Object.entries(settings)) {
      expect(setting.parse(setting.default)).toEqual(setting.default);
      expect(setting.path.endsWith(key) || key.startsWith('audit')).toBe(true);
    }
    expect(createPolicy()).toEqual(
      Object.fromEntries(Object.entries(settings).map(([key, setting]) => [key, setting.default])),
    );
  });

  it("never lets the agent into the operators' group", () => {
    expect(() => createPolicy({ adminGid: 65531 })).toThrow('users.adminGid');
  });

  it('tells where each value comes from; flags win', () => {
    const file = { maxPods: 5, agentUid: 1001 };
    const flags = { agentUid: 1002 };
    const described = describePolicy(createPolicy({ ...file, ...flags }), file, flags);
    const value = (path: string) => described.find((each) => each.path === path);
    expect(value('limits.maxPods')).toMatchObject({ value: '5', origin: 'file' });
    expect(value('users.agentUid')).toMatchObject({ value: '1002', origin: 'flag' });
    expect(value('devices')).toMatchObject({
      value: 'kvm, mshv, tun, vhost-net, vhost-vsock, sev, vfio',
      origin: 'default',
    });
    expect(value('limits.maxTickets')).toMatchObject({ bound: 'integer in 1..1024' });
  });
});

describe('policy on claims', () => {
  it('STO-033 refuses a device that policy does not list', () => {
    const policy = createPolicy({ devices: ['kvm'] });
    const parse = (devices: Device[]) =>
      claim.parse(policy, create(ClaimRequestSchema, { pod: refA, devices }));
    expect(parse([Device.KVM]).devices).toEqual(['kvm']);
    try {
      parse([Device.KVM, Device.TUN]);
      expect.unreachable();
    } catch (error) {
      expect(errnoOf(error)).toBe('');
      expect(toFailure(error)).toMatchObject({
        code: Code.PermissionDenied,
        field: 'devices[1]',
        refused: true,
        message: 'policy does not allow device tun',
      });
    }
  });
});

const isRoot = process.getuid?.() === 0;

describe.runIf(isRoot)('policy file', () => {
  let base: string;
  let path: string;
  beforeEach(() => {
    base = mkdtempSync(join(tmpdir(), 'policy-'));
    path = join(base, 'policy.yaml');
    writeFileSync(path, 'version: 1\nlimits: {maxPods: 7}\n', { mode: 0o644 });
  });
  afterEach(() => rmSync(base, { recursive: true }));

  it('is read through links, as ConfigMaps are mounted', () => {
    symlinkSync('policy.yaml', join(base, 'link'));
    expect(readPolicyFile(join(base, 'link'))).toEqual({ maxPods: 7 });
    expect(policyFileProblems(path)).toEqual([]);
  });

  it.each([0o664, 0o646, 0o622])('is refused when others may write it: mode %o', (mode) => {
    chmodSync(path, mode);
    expect(() => readPolicyFile(path)).toThrow(`may be written by others (mode ${mode.toString(8)})`);
  });

  it("is refused when it is not root's, not a file, too large or missing", () => {
    chownSync(path, 65531, 0);
    expect(() => readPolicyFile(path)).toThrow('belongs to uid 65531');
    expect(() => readPolicyFile(base)).toThrow('not a regular file');
    expect(() => readPolicyFile('/dev/null')).toThrow('not a regular file');
    expect(() => readPolicyFile(join(base, 'none'))).toThrow('ENOENT');
    writeFileSync(join(base, 'large'), '#'.repeat(65537));
    expect(() => readPolicyFile(join(base, 'large'))).toThrow('larger than 65536 bytes');
  });

  it('tells every problem at once to who checks it', () => {
    writeFileSync(path, 'version: 1\nlimits: {maxPods: 0}\n');
    chmodSync(path, 0o666);
    expect(policyFileProblems(path)).toEqual([
      'may be written by others (mode 666)',
      'limits.maxPods: 0 is not an integer in 1..4096',
    ]);
  });
});
