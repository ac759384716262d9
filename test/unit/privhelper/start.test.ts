import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { assertDedicated, ownDirectory } from '../../../privhelper/directories.js';
import { parseFlags } from '../../../privhelper/flags.js';
import { choosePolicy } from '../../../privhelper/policy/choose.js';
import { parseThreadStatus, readThreads, verifyThreads } from '../../../privhelper/privileges.js';

describe('flags', () => {
  it('has the defaults of the deployment', () => {
    expect(parseFlags([])).toEqual({
      socketDir: '/run/virt-privsep',
      uid: 65530,
      gid: 65530,
      stateDir: '/var/run/kubevirt-private/container-disk-mount-state',
      hotplugStateDir: '/var/run/kubevirt-private/hotplug-volume-mount-state',
      pluggedDevicesDir: '/var/run/kubevirt-private/plugged-block-devices',
      auditFile: '/var/log/virt-privsep/audit.jsonl',
      kubeletPodsMount: undefined,
      hostNetns: '/proc/1/ns/net',
      selinuxfs: ['/sys/fs/selinux', '/proc/1/root/sys/fs/selinux'],
      hostCgroupns: '/proc/1/ns/cgroup',
      hostMounts: '/proc/1/mountinfo',
      threads: 4,
      policyFile: undefined,
      overrides: {},
    });
  });

  it('gives to the policy what the command line says of it', () => {
    const { policyFile, overrides } = parseFlags(['--policy', '/etc/policy.yaml', '--qemu-uid', '207']);
    expect(policyFile).toBe('/etc/policy.yaml');
    expect(overrides).toEqual({ qemuUid: 207 });
  });

  it.each([
    ['--agent-uid', '65530'],
    ['--agent-uid', '107'],
    ['--uid', '107'],
  ])('refuses a user shared by two parties: %s %s', (...args) => {
    expect(() => choosePolicy(parseFlags(args))).toThrow('must differ');
  });

  it.each([
    [['--uid', '0'], /--uid/],
    [['--threads', '17'], /--threads/],
    [['--agent-uid', '12x'], /--agent-uid/],
    [['--agent-uid', '-1'], /agent-uid/],
    [['--state-dir', 'relative'], /--state-dir/],
    [['--host-netns', 'net'], /--host-netns/],
    [['--selinuxfs', 'fs'], /--selinuxfs/],
    [['--kubelet-pods-mount', 'pods'], /--kubelet-pods-mount/],
    [['--policy', 'relative'], /--policy/],
    [['--unknown'], /unknown/],
    [['positional'], /positional/],
  ])('refuses %j', (args, message) => {
    expect(() => parseFlags(args)).toThrow(message);
  });
});

describe('thread status', () => {
  const good = {
    uids: [65530, 65530, 65530, 65530],
    effective: 0n,
    permitted: 0n,
    inheritable: 0n,
    ambient: 0n,
    bounding: 0n,
    noNewPrivs: true,
    seccomp: 2,
  };
  const privileged = { ...good, permitted: 6n, bounding: 6n };
  const expected = { uid: 65530, privilegedThreads: 1, permitted: 6n };

  it('reads the threads of this process', () => {
    const threads = readThreads();
    expect(threads.length).toBeGreaterThan(1);
    expect(threads[0]?.uids[0]).toBe(process.getuid?.());
    expect(() => parseThreadStatus('Uid:\t0 0 0 0\n')).toThrow(/CapEff/);
  });

  it('accepts exactly the privileged threads with exactly the permitted set', () => {
    expect(() => verifyThreads([good, good, privileged], expected)).not.toThrow();
  });

  it.each([
    ['uid', { uids: [65530, 65530, 0, 65530] }],
    ['effective', { effective: 1n }],
    ['inheritable', { inheritable: 1n }],
    ['ambient', { ambient: 1n }],
    ['no_new_privs', { noNewPrivs: false }],
    ['filter', { seccomp: 0 }],
    ['capabilities 0x1', { permitted: 1n }],
  ])('refuses a wrong %s', (word, wrong) => {
    expect(() => verifyThreads([{ ...good, ...wrong }, privileged], expected)).toThrow(word);
  });

  it('refuses one privileged thread too few or too many, or a wide bounding set', () => {
    expect(() => verifyThreads([good], expected)).toThrow('0 threads are privileged, expected 1');
    expect(() => verifyThreads([privileged, privileged], expected)).toThrow('2 threads');
    expect(() => verifyThreads([{ ...privileged, bounding: 7n }], expected)).toThrow('bounding');
  });
});

describe('directories', () => {
  let base: string;
  beforeEach(() => {
    base = mkdtempSync(join(tmpdir(), 'directories-'));
  });
  afterEach(() => {
    rmSync(base, { recursive: true });
  });

  it('does not take over a directory with foreign entries', () => {
    const isOwn = (name: string) => name.startsWith('audit');
    expect(() => assertDedicated(join(base, 'missing'), isOwn)).not.toThrow();
    writeFileSync(join(base, 'audit.jsonl'), '');
    expect(() => assertDedicated(base, isOwn)).not.toThrow();
    writeFileSync(join(base, 'messages'), '');
    expect(() => assertDedicated(base, isOwn)).toThrow(/holds messages/);
  });

  it('does not follow a link in place of a directory', () => {
    mkdirSync(join(base, 'real'));
    symlinkSync('real', join(base, 'link'));
    const owner = { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0, mode: 0o700 };
    expect(() => ownDirectory(join(base, 'link'), owner)).toThrow();
    expect(() => ownDirectory(join(base, 'new', 'deep'), owner)).not.toThrow();
  });
});
