/**
 * A container of a pod as an OCI runtime configuration, put together as kubelet and containerd do it
 * (containerd internal/cri/server container_create_linux.go; OCI runtime specification, config-linux).
 */
import { sysResource } from '../../../privhelper/declarations.js';
import { readThreads } from '../../../privhelper/privileges.js';
import type { ContainerSpec, EnvVar, PodSpec, VolumeMount } from './manifest.js';
import { ociSeccomp } from './seccomp.js';

export interface OciPod {
  readonly spec: PodSpec;
  /** Values of the downward API, by field path. */
  readonly fields: Readonly<Record<string, string>>;
  /** What kubelet adds to every container's environment. */
  readonly env: Readonly<Record<string, string>>;
  /** Process that holds the pod's network, IPC and UTS namespaces. */
  readonly pausePid: number;
  readonly cgroupsPath: string;
  /** Devices of the host (`c 10:200`) that the runtime grants beyond its defaults. */
  readonly grantedDevices: readonly string[];
  /** Host path of a volume. */
  volumePath(name: string): string;
}

const mayLift = readThreads().some(({ permitted }) => (permitted & sysResource) !== 0n);
const path = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
const maskedPaths = [
  ...['/proc/acpi', '/proc/asound', '/proc/kcore', '/proc/keys', '/proc/latency_stats', '/proc/timer_list'],
  ...['/proc/timer_stats', '/proc/sched_debug', '/proc/scsi', '/sys/firmware'],
  '/sys/devices/virtual/powercap',
];
const readonlyPaths = ['/proc/bus', '/proc/fs', '/proc/irq', '/proc/sys', '/proc/sysrq-trigger'];
// A kernel may lack the newest; what a privileged container gets beyond these does not matter here.
const everyCapability = [
  ...['CHOWN', 'DAC_OVERRIDE', 'DAC_READ_SEARCH', 'FOWNER', 'FSETID', 'KILL', 'SETGID', 'SETUID', 'SETPCAP'],
  ...['LINUX_IMMUTABLE', 'NET_BIND_SERVICE', 'NET_BROADCAST', 'NET_ADMIN', 'NET_RAW', 'IPC_LOCK'],
  ...['IPC_OWNER', 'SYS_MODULE', 'SYS_RAWIO', 'SYS_CHROOT', 'SYS_PTRACE', 'SYS_PACCT', 'SYS_ADMIN'],
  ...['SYS_BOOT', 'SYS_NICE', 'SYS_RESOURCE', 'SYS_TIME', 'SYS_TTY_CONFIG', 'MKNOD', 'LEASE', 'AUDIT_WRITE'],
  ...['AUDIT_CONTROL', 'SETFCAP', 'SYSLOG', 'WAKE_ALARM', 'BLOCK_SUSPEND'],
];

/** The configuration of a container, its root file system in `rootfs` beside it. */
export function ociConfig(pod: OciPod, container: ContainerSpec, extraArgs: readonly string[]): object {
  const { securityContext: security } = container;
  const privileged = security.privileged ?? false;
  // What this machine withholds no runtime can give.
  const capabilities = capabilitiesOf(container).filter((name) => mayLift || name !== 'CAP_SYS_RESOURCE');
  const profile = security.seccompProfile ??
    pod.spec.securityContext?.seccompProfile ?? { type: 'Unconfined' };
  const seccomp = privileged ? undefined : ociSeccomp(profile, capabilities);
  return {
    ociVersion: '1.0.2',
    process: {
      user: { uid: security.runAsUser, gid: security.runAsGroup },
      args: [...container.command, ...(container.args ?? []), ...extraArgs].map((arg) =>
        expand(arg, container.env ?? [], pod.fields),
      ),
      env: [
        `PATH=${path}`,
        ...Object.entries(pod.env).map(([name, value]) => `${name}=${value}`),
        ...(container.env ?? []).map((one) => `${one.name}=${envValue(one, pod.fields)}`),
      ],
      cwd: '/',
      capabilities: {
        bounding: capabilities,
        permitted: capabilities,
        effective: capabilities,
        inheritable: [],
        ambient: [],
      },
      noNewPrivileges: security.allowPrivilegeEscalation === false,
    },
    root: { path: 'rootfs', readonly: security.readOnlyRootFilesystem ?? false },
    mounts: [
      // A volume takes the place of what runtimes mount otherwise.
      ...basicMounts(privileged).filter(
        ({ destination }) => !container.volumeMounts.some(({ mountPath }) => mountPath === destination),
      ),
      // Parents before what is mounted in them.
      ...[...container.volumeMounts]
        .sort((a, b) => depth(a) - depth(b))
        .map((mount) => volumeMount(mount, pod.volumePath(mount.name))),
    ],
    linux: {
      namespaces: [
        { type: 'mount' },
        { type: 'network', path: `/proc/${pod.pausePid}/ns/net` },
        { type: 'ipc', path: `/proc/${pod.pausePid}/ns/ipc` },
        { type: 'uts', path: `/proc/${pod.pausePid}/ns/uts` },
        ...(pod.spec.hostPID ? [] : [{ type: 'pid' }]),
        // Runtimes give it to all but privileged containers.
        ...(privileged ? [] : [{ type: 'cgroup' }]),
      ],
      cgroupsPath: pod.cgroupsPath,
      resources: { devices: deviceRules(privileged, pod.grantedDevices) },
      ...(privileged ? {} : { maskedPaths, readonlyPaths }),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...rootPropagation(container.volumeMounts),
    },
  };
}

/** As containerd does it: a volume follows the host only below a root that does. */
function rootPropagation(mounts: readonly VolumeMount[]): { rootfsPropagation?: string } {
  const has = (propagation: string) => mounts.some((mount) => mount.mountPropagation === propagation);
  if (has('Bidirectional')) return { rootfsPropagation: 'rshared' };
  return has('HostToContainer') ? { rootfsPropagation: 'rslave' } : {};
}

/** With the prefix CAP_. Throws for a container that keeps the runtime's default set: ours never do. */
export function capabilitiesOf({ name, securityContext }: ContainerSpec): string[] {
  if (securityContext.privileged) return everyCapability.map((capability) => `CAP_${capability}`);
  const { drop = [], add = [] } = securityContext.capabilities ?? {};
  if (!drop.includes('ALL')) throw new Error(`container ${name} keeps the default capabilities`);
  return add.map((capability) => `CAP_${capability}`);
}

function envValue({ name, value, valueFrom }: EnvVar, fields: Readonly<Record<string, string>>): string {
  const found = value ?? fields[valueFrom?.fieldRef?.fieldPath ?? ''];
  if (found === undefined) throw new Error(`no value for ${name}`);
  return found;
}

/** `$(NAME)` in an argument is the variable's value. */
function expand(argument: string, env: readonly EnvVar[], fields: Readonly<Record<string, string>>): string {
  return argument.replace(/\$\((\w+)\)/g, (reference, name: string) => {
    const variable = env.find((one) => one.name === name);
    return variable === undefined ? reference : envValue(variable, fields);
  });
}

function depth({ mountPath }: VolumeMount): number {
  return mountPath.split('/').length;
}

function volumeMount({ mountPath, readOnly, mountPropagation }: VolumeMount, source: string): Mount {
  const propagation = { None: 'rprivate', HostToContainer: 'rslave', Bidirectional: 'rshared' };
  return {
    destination: mountPath,
    type: 'bind',
    source,
    options: ['rbind', propagation[mountPropagation ?? 'None'], readOnly ? 'ro' : 'rw'],
  };
}

interface Mount {
  readonly destination: string;
  readonly type: string;
  readonly source: string;
  readonly options: readonly string[];
}

function basicMounts(privileged: boolean): Mount[] {
  const access = privileged ? 'rw' : 'ro';
  const quiet = ['nosuid', 'noexec', 'nodev'];
  return [
    { destination: '/proc', type: 'proc', source: 'proc', options: quiet },
    { destination: '/dev', type: 'tmpfs', source: 'tmpfs', options: ['nosuid', 'mode=755', 'size=65536k'] },
    {
      destination: '/dev/pts',
      type: 'devpts',
      source: 'devpts',
      options: ['nosuid', 'noexec', 'newinstance', 'ptmxmode=0666', 'mode=0620', 'gid=5'],
    },
    {
      destination: '/dev/shm',
      type: 'tmpfs',
      source: 'shm',
      options: [...quiet, 'mode=1777', 'size=65536k'],
    },
    { destination: '/dev/mqueue', type: 'mqueue', source: 'mqueue', options: quiet },
    { destination: '/sys', type: 'sysfs', source: 'sysfs', options: [...quiet, access] },
    { destination: '/sys/fs/cgroup', type: 'cgroup', source: 'cgroup', options: [...quiet, access] },
  ];
}

function deviceRules(privileged: boolean, granted: readonly string[]): object[] {
  if (privileged) return [{ allow: true, access: 'rwm' }];
  return [
    { allow: false, access: 'rwm' },
    ...granted.map((device) => {
      const [type, numbers = ''] = device.split(' ');
      const [major, minor] = numbers.split(':').map(Number);
      return { allow: true, type, major, minor, access: 'rwm' };
    }),
  ];
}
