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

/** A container has no selinuxfs of its own; the host's is where process 1 sees it. */
const selinuxfsPlaces = ['/sys/fs/selinux', '/proc/1/root/sys/fs/selinux'];

/** What the command line may say; docs/deployment.md has the same. */
export const options = {
  'socket-dir': {
    type: 'string',
    default: '/run/virt-privsep',
    value: 'DIR',
    help: 'where helper.sock, fd.sock and ctl.sock are made',
  },
  uid: { type: 'string', default: '65530', value: 'N', help: 'the user that the helper becomes' },
  gid: { type: 'string', default: '65530', value: 'N', help: 'the group that the helper becomes' },
  'state-dir': {
    type: 'string',
    default: '/var/run/kubevirt-private/container-disk-mount-state',
    value: 'DIR',
    help: 'records of container disks',
  },
  'hotplug-state-dir': {
    type: 'string',
    default: '/var/run/kubevirt-private/hotplug-volume-mount-state',
    value: 'DIR',
    help: 'records of hot-plugged volumes',
  },
  'plugged-devices-dir': {
    type: 'string',
    default: '/var/run/kubevirt-private/plugged-block-devices',
    value: 'DIR',
    help: 'records of plugged block devices',
  },
  'audit-file': {
    type: 'string',
    default: '/var/log/virt-privsep/audit.jsonl',
    value: 'FILE',
    help: 'the audit log, alone in its directory',
  },
  'host-netns': {
    type: 'string',
    default: '/proc/1/ns/net',
    value: 'FILE',
    help: "the host's network namespace, which no call may enter",
  },
  selinuxfs: {
    type: 'string',
    value: 'DIR',
    help: `where the host's selinuxfs may be, instead of ${selinuxfsPlaces.join(' and ')}`,
  },
  'host-cgroupns': {
    type: 'string',
    default: '/proc/1/ns/cgroup',
    value: 'FILE',
    help: "the host's cgroup namespace, which the helper joins at start",
  },
  'host-mounts': {
    type: 'string',
    default: '/proc/1/mountinfo',
    value: 'FILE',
    help: "the host's mounts: a disk among them is given to no VM",
  },
  threads: { type: 'string', default: '4', value: 'N', help: 'privileged threads, 1 to 16' },
  policy: {
    type: 'string',
    value: 'FILE',
    help: 'policy file, see operations.md; the flags below win over it',
  },
  'agent-uid': { type: 'string', value: 'N', help: 'users.agentUid: the user whose calls are served' },
  'agent-gid': { type: 'string', value: 'N', help: "users.agentGid: the group of the agent's sockets" },
  'admin-gid': { type: 'string', value: 'N', help: "users.adminGid: the operators' group" },
  'qemu-uid': { type: 'string', value: 'N', help: 'users.qemuUid: the user of launchers' },
  'qemu-gid': { type: 'string', value: 'N', help: 'users.qemuGid: the group of launchers' },
  'kubelet-pods-dir': {
    type: 'string',
    value: 'DIR',
    help: "paths.kubeletPodsDir: the host's path of kubelet's pods",
  },
  'kubelet-pods-mount': {
    type: 'string',
    value: 'DIR',
    help: 'where this process sees that directory, if not at the same path',
  },
  'audit-max-bytes': {
    type: 'string',
    value: 'N',
    help: 'audit.maxBytes: size at which the audit log is rotated',
  },
} as const;

export function usage(): string {
  const rows = Object.entries(options).map(([name, option]) => {
    const fallback = 'default' in option ? ` (${option.default})` : '';
    return [`--${name} ${option.value}`, `${option.help}${fallback}`] as const;
  });
  const longest = Math.max(...rows.map(([flag]) => flag.length));
  return [
    'usage: virt-privhelper [flags]',
    ...rows.map(([flag, help]) => `  ${flag.padEnd(longest)}  ${help}`),
  ].join('\n');
}

type Name = keyof typeof options;

const maxId = 0xffff_fffe;

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
