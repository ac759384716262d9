/** What `privctl doctor` concludes from facts. Pure. */
import { SelinuxMode } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import {
  AppendOnly,
  type GetHelperResponse,
  type InspectedPod,
  type MountRecord,
} from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { KernelFeature } from '../../native/binding.js';
import { sysResource } from '../declarations.js';
import type { MountEntry } from './mountinfo.js';
import { mountOf } from './mountinfo.js';

export type Status = 'ok' | 'note' | 'warn' | 'fail';

export interface Finding {
  readonly check: string;
  readonly status: Status;
  readonly finding: string;
  /** What to do, or what follows from it. */
  readonly advice?: string;
}

/** What follows when an interface is missing. */
const kernelAdvice: Readonly<Record<string, readonly [Status, string]>> = {
  openat2: ['fail', 'Linux 5.6 or newer is needed: nothing in a pod can be reached'],
  open_tree: ['fail', 'Linux 5.2 or newer is needed: container disks cannot be mounted'],
  move_mount: ['fail', 'Linux 5.2 or newer is needed: container disks cannot be mounted'],
  mount_setattr: ['fail', 'Linux 5.12 or newer is needed: container disks cannot be mounted'],
  MOUNT_ATTR_NOSYMFOLLOW: ['fail', 'Linux 5.14 or newer is needed: no volume can be mounted'],
  SO_PEERPIDFD: ['note', 'since Linux 6.5; without it a launcher is asked for twice, which is as safe'],
  SO_PASSRIGHTS: [
    'warn',
    'since Linux 6.16; without it a launcher that sends sockets can stall the agent, and the agent the helper',
  ],
  PIDFD_GET_INFO: ['note', 'since Linux 6.13; without it pids are read from fdinfo'],
  PIDFD_GET_MNT_NAMESPACE: ['note', 'since Linux 6.11; without it namespaces are opened through /proc'],
  nf_tables: ['fail', 'masquerade binding needs it: load the module nf_tables'],
  'link type bridge': ['fail', 'every binding but passt needs it: load the module bridge'],
  'link type dummy': ['note', 'bridge binding uses a bridge in its place'],
  '/dev/net/tun': ['fail', 'taps need it: load the module tun, or let the container open the device'],
};

export function kernelFindings(features: readonly KernelFeature[]): Finding[] {
  return features.map(({ name, error }) => {
    if (error === '') return { check: name, status: 'ok', finding: 'there' };
    if (error === 'EPERM' || error === 'EACCES') {
      return { check: name, status: 'note', finding: `cannot be tried by this user (${error})` };
    }
    const [status, advice] = kernelAdvice[name] ?? ['warn', 'operations may need it'];
    return { check: name, status, finding: `missing (${error})`, advice };
  });
}

/** Without these there is nothing that the helper could do. */
const indispensable: readonly string[] = [
  ...['openat2', 'open_tree', 'move_mount', 'mount_setattr', 'MOUNT_ATTR_NOSYMFOLLOW'],
];

/** What a kernel lacks and what follows, in one line each. Throws when it lacks what every operation needs. */
export function kernelShortcomings(features: readonly KernelFeature[]): string[] {
  const lacking = kernelFindings(features).filter(({ finding }) => finding.startsWith('missing'));
  const lines = lacking.map(({ check, finding, advice }) => `${check} is ${finding}: ${advice}`);
  const fatal = lines.filter((_, i) => indispensable.includes(lacking[i]?.check ?? ''));
  if (fatal.length > 0) throw new Error(`this kernel will not do: ${fatal.join('; ')}`);
  return lines;
}

/** Usage from which there is something to say. */
const nearLimit = 0.8;

export interface ExpectedHelper {
  readonly version: string;
  /** Union of all declarations. */
  readonly permitted: bigint;
  /** What of it a helper may have to do without. */
  readonly dispensable: bigint;
  readonly now: number;
}

export function helperFindings(helper: GetHelperResponse, expected: ExpectedHelper): Finding[] {
  const uptime = Math.round((expected.now - Number(helper.startedAtMs)) / 1000);
  const running = `process ${helper.pid}, version ${helper.version}, for ${uptime} s`;
  return [
    { check: 'running', status: 'ok', finding: running },
    ...(helper.version === expected.version
      ? []
      : [
          {
            check: 'version',
            status: 'warn',
            finding: `this privctl has version ${expected.version}`,
            advice: "describe shows this version's methods, not the running helper's",
          } as const,
        ]),
    helper.agentPid === 0
      ? {
          check: 'agent',
          status: 'warn',
          finding: 'not connected',
          advice: "VMs run on, nothing is started or stopped: look at the agent's log",
        }
      : { check: 'agent', status: 'ok', finding: `process ${helper.agentPid} is connected` },
    ...threadFindings(helper, expected),
    auditFinding(helper.auditAppendOnly),
    ...helper.usage.map(({ name, used, limit }): Finding => {
      const finding = `${used} of ${limit}`;
      if (used < limit * nearLimit) return { check: name, status: 'ok', finding };
      return { check: name, status: 'warn', finding, advice: 'raise the limit in the policy file' };
    }),
  ];
}

function auditFinding(appendOnly: AppendOnly): Finding {
  const check = 'audit log';
  switch (appendOnly) {
    case AppendOnly.SET:
      return { check, status: 'ok', finding: 'append-only' };
    case AppendOnly.UNSUPPORTED:
      return {
        check,
        status: 'note',
        finding: 'its file system has no append-only flag',
        advice: 'on ext4, xfs or btrfs what is written cannot be changed any more',
      };
    default:
      return {
        check,
        status: 'warn',
        finding: 'the append-only flag is not set',
        advice: "look at the helper's log",
      };
  }
}

function threadFindings(
  { threads }: GetHelperResponse,
  { permitted, dispensable }: ExpectedHelper,
): Finding[] {
  const mask = (hex: string) => BigInt(`0x${hex}`);
  const privileged = threads.filter((thread) => mask(thread.permitted) !== 0n);
  const foreign = privileged.filter(
    (thread) => ((mask(thread.permitted) ^ permitted) & ~(permitted & dispensable)) !== 0n,
  );
  const lockless = privileged.some(({ permitted: own }) => (permitted & ~mask(own) & sysResource) !== 0n);
  const wide = privileged.filter((thread) => (mask(thread.bounding) & ~permitted) !== 0n);
  // A privileged thread has capabilities in effect while a call runs, and this call is one.
  const excessive = threads.filter((thread) => (mask(thread.effective) & ~mask(thread.permitted)) !== 0n);
  const unfiltered = threads.filter((thread) => thread.seccomp !== 2);
  const unlocked = threads.filter((thread) => !thread.noNewPrivs);
  const verdict = (check: string, bad: readonly { tid: number }[], good: string, wrong: string): Finding =>
    bad.length === 0
      ? { check, status: 'ok', finding: good }
      : {
          check,
          status: 'fail',
          finding: `${wrong}: threads ${bad.map(({ tid }) => tid).join(', ')}`,
          advice: 'restart the helper; if it stays so, do not trust this node',
        };
  const share = `${privileged.length} of ${threads.length} threads`;
  return [
    verdict(
      'capabilities',
      [...foreign, ...wide, ...excessive],
      `${share} may raise 0x${privileged[0]?.permitted ?? '0'}, the others nothing`,
      'not what is declared',
    ),
    ...(lockless
      ? [
          {
            check: 'CAP_SYS_RESOURCE',
            status: 'warn',
            finding: 'not given',
            advice: 'VMs that lock their memory (passthrough, SEV, real-time) do not start on this node',
          } as const,
        ]
      : []),
    verdict('seccomp', unfiltered, 'every thread is filtered', 'no filter'),
    verdict('no_new_privs', unlocked, 'set for every thread', 'not set'),
  ];
}

type Recorded = Pick<MountRecord, 'vmiUid' | 'podUid' | 'disks' | 'podPresent'>;

/** Volumes of a launcher pod in which a handler may have mounted something on the host. */
const diskVolumes: readonly string[] = ['container-disks', 'hotplug-disks'];

/** Records and mounts of pods that are gone. */
export function leftoverFindings(facts: {
  readonly records: readonly Recorded[];
  readonly hotplugRecords: readonly Recorded[];
  readonly pods: readonly InspectedPod[];
  readonly hostMounts: readonly MountEntry[];
  readonly kubeletPodsDir: string;
  /** Calls that a helper did not live to end. */
  readonly interrupted: number;
}): Finding[] {
  const dead = new Set(
    facts.pods.filter(({ launcher }) => launcher === undefined).map(({ state }) => state?.podUid ?? ''),
  );
  const mounts = facts.hostMounts.filter(({ mountPoint }) => {
    const [podUid = '', ...rest] = mountPoint.slice(facts.kubeletPodsDir.length + 1).split('/');
    const inside = mountPoint.startsWith(`${facts.kubeletPodsDir}/`);
    return inside && dead.has(podUid) && rest.some((name) => diskVolumes.includes(name));
  });
  const one = (check: string, n: number, finding: string, advice: string): Finding =>
    n === 0 ? { check, status: 'ok', finding: 'none' } : { check, status: 'warn', finding, advice };
  const stale = (check: string, all: readonly Recorded[], method: string): Finding => {
    const found = all.filter(({ podPresent }) => !podPresent);
    const [first] = found;
    const request = { pod: { podUid: first?.podUid, vmiUid: first?.vmiUid } };
    return one(
      check,
      found.length,
      found.map(({ vmiUid, disks }) => `VMI ${vmiUid}, disks: ${disks}`).join('; '),
      first?.podUid === ''
        ? `the record names no pod in ${facts.kubeletPodsDir}`
        : `the agent removes them; by hand: privctl call ${method} '${JSON.stringify(request)}'`,
    );
  };
  return [
    stale('records of pods that are gone', facts.records, 'StorageService.UnmountContainerDisks'),
    stale('hotplug records of such pods', facts.hotplugRecords, 'HotplugService.UnplugAll'),
    one(
      'launcher pods without launcher',
      dead.size,
      [...dead].join(', '),
      'the agent gives up such a pod after its watchdog time; kubelet removes it then',
    ),
    one(
      'disks mounted on the host for them',
      mounts.length,
      mounts.map(({ mountPoint }) => mountPoint).join(', '),
      'kubelet cannot remove the pod before they are unmounted; the agent does that',
    ),
    one(
      'calls without an end',
      facts.interrupted,
      `${facts.interrupted} in the audit log`,
      'a helper ended during them: privctl audit shows which; the agent repeats them',
    ),
  ];
}

const selinuxWords: Readonly<Record<SelinuxMode, string>> = {
  [SelinuxMode.UNSPECIFIED]: 'unknown',
  [SelinuxMode.DISABLED]: 'off',
  [SelinuxMode.PERMISSIVE]: 'permissive',
  [SelinuxMode.ENFORCING]: 'enforcing',
};

export function nodeFindings(facts: {
  readonly mounts: readonly MountEntry[];
  readonly cgroupRoot: string;
  readonly kubeletPodsDir: string;
  /** What the helper found. */
  readonly selinux: SelinuxMode | undefined;
  /** AppArmor's or SELinux's word for the helper. */
  readonly helperLabel: string | undefined;
}): Finding[] {
  const inCgroups = facts.mounts.filter(
    ({ mountPoint }) => mountPoint === facts.cgroupRoot || mountPoint.startsWith(`${facts.cgroupRoot}/`),
  );
  const has = (filesystem: string) => inCgroups.some((mount) => mount.filesystem === filesystem);
  const mode =
    has('cgroup') && has('cgroup2') ? 'v1, with a v2 hierarchy beside it' : has('cgroup2') ? 'v2' : 'v1';
  const pods = mountOf(facts.mounts, facts.kubeletPodsDir);
  const selinux = selinuxWords[facts.selinux ?? SelinuxMode.UNSPECIFIED];
  const label = facts.helperLabel === undefined ? '' : `; the helper runs as ${facts.helperLabel}`;
  const confined = selinux === 'enforcing' && facts.helperLabel?.includes('spc_t') === false;
  return [
    inCgroups.length === 0
      ? {
          check: 'cgroups',
          status: 'warn',
          finding: `nothing is mounted at ${facts.cgroupRoot}`,
          advice: 'privctl cgroup shows nothing; set paths.cgroupRoot in the policy file',
        }
      : { check: 'cgroups', status: 'ok', finding: mode },
    {
      check: 'SELinux',
      status: confined ? 'warn' : 'ok',
      finding: `${selinux}${label}`,
      ...(confined ? { advice: "the helper's container needs the type spc_t" } : {}),
    },
    {
      check: 'propagation of the pods directory',
      status: 'note',
      finding: `${pods?.propagation ?? 'unknown'} (${pods?.mountPoint ?? facts.kubeletPodsDir})`,
      advice: 'disks are mounted in the launcher itself, so nothing depends on it',
    },
  ];
}
