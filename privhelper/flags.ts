/** Command line of the helper. */
import { isAbsolute } from 'node:path';
import { parseArgs } from 'node:util';
import type { Overrides } from './policy/policy.js';

export interface Flags {
  /** Directory of helper.sock, fd.sock and ctl.sock. */
  readonly socketDir: string;
  /** User and group that the helper becomes. */
  readonly uid: number;
  readonly gid: number;
  /** Directory of the container-disk mount records. */
  readonly stateDir: string;
  /** Directory of the records of hot-plugged volumes. */
  readonly hotplugStateDir: string;
  /** Directory of the records of plugged block devices. */
  readonly pluggedDevicesDir: string;
  readonly auditFile: string;
  /** Where this process sees kubelet's pods directory; undefined where the host does. */
  readonly kubeletPodsMount: string | undefined;
  /** The host's network namespace, which no call may enter. */
  readonly hostNetns: string;
  /** Where the host's selinuxfs may be mounted. */
  readonly selinuxfs: readonly string[];
  /** The host's cgroup namespace, in which cgroups have their whole paths. */
  readonly hostCgroupns: string;
  /** The host's mounts: its disks are no VM's. */
  readonly hostMounts: string;
  /** Privileged threads. */
  readonly threads: number;
  /** The policy file, if there is one. */
  readonly policyFile: string | undefined;
  /** Values of the policy that the command line gives; they win over the file. */
  readonly overrides: Overrides;
}

const options = {
  'socket-dir': { type: 'string', default: '/run/virt-privsep' },
  uid: { type: 'string', default: '65530' },
  gid: { type: 'string', default: '65530' },
  'state-dir': { type: 'string', default: '/var/run/kubevirt-private/container-disk-mount-state' },
  'hotplug-state-dir': { type: 'string', default: '/var/run/kubevirt-private/hotplug-volume-mount-state' },
  'plugged-devices-dir': { type: 'string', default: '/var/run/kubevirt-private/plugged-block-devices' },
  'audit-file': { type: 'string', default: '/var/log/virt-privsep/audit.jsonl' },
  'host-netns': { type: 'string', default: '/proc/1/ns/net' },
  selinuxfs: { type: 'string' },
  'host-cgroupns': { type: 'string', default: '/proc/1/ns/cgroup' },
  'host-mounts': { type: 'string', default: '/proc/1/mountinfo' },
  threads: { type: 'string', default: '4' },
  policy: { type: 'string' },
  'agent-uid': { type: 'string' },
  'agent-gid': { type: 'string' },
  'admin-gid': { type: 'string' },
  'qemu-uid': { type: 'string' },
  'qemu-gid': { type: 'string' },
  'kubelet-pods-dir': { type: 'string' },
  'kubelet-pods-mount': { type: 'string' },
  'audit-max-bytes': { type: 'string' },
} as const;

type Name = keyof typeof options;

const maxId = 0xffff_fffe;

/** A container has no selinuxfs of its own; the host's is where process 1 sees it. */
const selinuxfsPlaces = ['/sys/fs/selinux', '/proc/1/root/sys/fs/selinux'];

/** Parses arguments (without program and script). Throws, naming the flag, when one is wrong. */
export function parseFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({ args: [...args], options, strict: true });
  const integer = (name: Name, min: number, max: number) => {
    const text = values[name] ?? '';
    const value = Number(text);
    if (!/^\d{1,15}$/.test(text) || value < min || value > max) {
      throw new RangeError(`--${name}: ${text} is not an integer in ${min}..${max}`);
    }
    return value;
  };
  const path = (name: Name) => {
    const text = values[name] ?? '';
    if (!isAbsolute(text) || text.includes('\0')) throw new Error(`--${name}: not an absolute path`);
    return text;
  };
  const given = <T>(name: Name, parse: (name: Name) => T): T | undefined =>
    values[name] === undefined ? undefined : parse(name);
  const id = (name: Name) => integer(name, 1, maxId);
  return {
    socketDir: path('socket-dir'),
    uid: id('uid'),
    gid: id('gid'),
    stateDir: path('state-dir'),
    hotplugStateDir: path('hotplug-state-dir'),
    pluggedDevicesDir: path('plugged-devices-dir'),
    auditFile: path('audit-file'),
    kubeletPodsMount: given('kubelet-pods-mount', path),
    hostNetns: path('host-netns'),
    selinuxfs: values.selinuxfs === undefined ? selinuxfsPlaces : [path('selinuxfs')],
    hostCgroupns: path('host-cgroupns'),
    hostMounts: path('host-mounts'),
    threads: integer('threads', 1, 16),
    policyFile: given('policy', path),
    overrides: {
      agentUid: given('agent-uid', id),
      agentGid: given('agent-gid', id),
      adminGid: given('admin-gid', id),
      qemuUid: given('qemu-uid', id),
      qemuGid: given('qemu-gid', id),
      kubeletPodsDir: given('kubelet-pods-dir', path),
      auditMaxBytes: given('audit-max-bytes', (name) => integer(name, 4096, 2 ** 40)),
    },
  };
}
