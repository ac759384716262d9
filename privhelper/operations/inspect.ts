/** InspectService, except for Explain. */
import { fstatSync } from 'node:fs';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Device } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import {
  AppendOnly,
  type AppliedNetworkSchema,
  DeviceNodeState,
  type GetCgroupResponseSchema,
  type GetHelperResponseSchema,
  type GetNetworkResponseSchema,
  type InspectedPodSchema,
  type LauncherProcessSchema,
  type ListDevicesResponseSchema,
  type ListMountsResponseSchema,
  type ListPodsResponseSchema,
  type NatChainSchema,
  PolicyOrigin,
} from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { ClaimableDevice, Launcher, NatChainState, ObservedDevice } from '../../native/binding.js';
import { type PolicyInForce, policyOfList, policyOfPrograms } from '../devices/in-force.js';
import { toFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import { readCgroups } from '../inspect/cgroup.js';
import type { CommandLines } from '../inspect/command-lines.js';
import { maxMountinfoBytes, mountedDisks, parseMountinfo } from '../inspect/mountinfo.js';
import { backingOf } from '../inspect/node-path.js';
import { readBounded, readProcess } from '../inspect/proc.js';
import type { Invocation } from '../invocation.js';
import { deviceNames } from '../policy/devices.js';
import type { Origin, Policy } from '../policy/policy.js';
import type { ObservedPod } from '../watch/subscription.js';
import { selinuxModes } from './helper.js';
import { podStateMessage } from './pod.js';

interface PodUid {
  readonly podUid: string;
}

/** Time for each pod of a list: one that hangs must not use up the others' time. */
const perPodMs = 2000;
/** Pods looked at at a time; leaves privileged threads free for calls. */
const podsAtATime = 2;
const maxPodDirectories = 8192;

const origins: Readonly<Record<Origin, PolicyOrigin>> = {
  default: PolicyOrigin.DEFAULT,
  file: PolicyOrigin.FILE,
  flag: PolicyOrigin.FLAG,
};

const appendOnly: Readonly<Record<Helper['auditFile']['appendOnly'], AppendOnly>> = {
  unset: AppendOnly.UNSPECIFIED,
  set: AppendOnly.SET,
  unsupported: AppendOnly.UNSUPPORTED,
  failed: AppendOnly.FAILED,
};

const hex = (mask: bigint) => mask.toString(16);

export async function getHelper(
  { native, podsDir, policy, records, hotplugRecords, instance, usage, agentPid, auditFile, selinux }: Helper,
  invocation: Invocation,
): Promise<MessageInitShape<typeof GetHelperResponseSchema>> {
  const directories = new Set(await native.listDirectory(invocation.call, podsDir, [], maxPodDirectories));
  const recordMessages = (of: typeof records | typeof hotplugRecords) =>
    of.list().map((record) => ({ ...record, podPresent: directories.has(record.podUid) }));
  return {
    instanceId: instance.id,
    version: instance.version,
    startedAtMs: BigInt(instance.startedAt.getTime()),
    pid: process.pid,
    agentPid: agentPid() ?? 0,
    kubeletPodsDir: policy.kubeletPodsDir,
    auditAppendOnly: appendOnly[auditFile.appendOnly],
    selinux: selinuxModes[selinux.mode()],
    usage: usage(),
    threads: instance.threads().map((thread) => ({
      tid: thread.tid,
      effective: hex(thread.effective),
      permitted: hex(thread.permitted),
      bounding: hex(thread.bounding),
      noNewPrivs: thread.noNewPrivs,
      seccomp: thread.seccomp,
    })),
    policy: instance.policy.map((value) => ({ ...value, origin: origins[value.origin] })),
    records: recordMessages(records),
    hotplugRecords: recordMessages(hotplugRecords),
  };
}

export async function listPods(
  helper: Helper,
  invocation: Invocation,
): Promise<MessageInitShape<typeof ListPodsResponseSchema>> {
  const waiting = helper.watcher.known.sort((a, b) => (a.podUid < b.podUid ? -1 : 1));
  const pods: MessageInitShape<typeof InspectedPodSchema>[] = waiting.map(() => ({}));
  let next = 0;
  const work = async () => {
    while (next < waiting.length) {
      const at = next++;
      const pod = waiting[at];
      if (pod !== undefined) pods[at] = await inspectPod(helper, invocation, pod);
    }
  };
  await Promise.all(Array.from({ length: podsAtATime }, work));
  return { pods };
}

async function inspectPod(
  { native, pods, commandLines, forbiddenNetworks }: Helper,
  invocation: Invocation,
  pod: ObservedPod,
): Promise<MessageInitShape<typeof InspectedPodSchema>> {
  const state = podStateMessage(pod);
  const named = pods.lastNamed(pod.podUid) ?? '';
  if (pod.launcherSocket !== 'present') {
    return { state, vmiUid: named, problem: `launcher-sock is ${pod.launcherSocket}` };
  }
  try {
    return await pods.observe(invocation, pod.podUid, async ({ launcher, pinned, vmiUid }) => {
      const process = await processMessage(launcher, commandLines);
      const disks = mountedDisks(await readMounts(launcher.pid));
      const call = invocation.within(invocation.call.caps, perPodMs);
      // Also says that the launcher still lives, so what was read is its.
      const { links } = await native.observeNetwork(call, launcher, forbiddenNetworks);
      return {
        state,
        vmiUid: vmiUid ?? '',
        pinned,
        launcher: process,
        links: links.length,
        mountedDisks: disks,
      };
    });
  } catch (error) {
    return { state, vmiUid: named, problem: toFailure(error).message };
  }
}

async function processMessage(
  launcher: Launcher,
  commandLines: CommandLines,
): Promise<MessageInitShape<typeof LauncherProcessSchema>> {
  const { ageMs, ...claims } = await readProcess(launcher.pid, commandLines);
  return {
    pid: launcher.pid,
    uid: launcher.uid,
    gid: launcher.gid,
    mountNamespace: fstatSync(launcher.mntns, { bigint: true }).ino,
    networkNamespace: fstatSync(launcher.netns, { bigint: true }).ino,
    ageMs: BigInt(ageMs),
    ...claims,
  };
}

async function readMounts(pid: number) {
  return parseMountinfo(await readBounded(`/proc/${pid}/mountinfo`, maxMountinfoBytes));
}

export function getNetwork(
  helper: Helper,
  invocation: Invocation,
  { podUid }: PodUid,
): Promise<MessageInitShape<typeof GetNetworkResponseSchema>> {
  const { native, pods, forbiddenNetworks } = helper;
  return pods.observe(invocation, podUid, async ({ launcher }) => {
    const state = await native.observeNetwork(invocation.call, launcher, forbiddenNetworks);
    let nat: NatChainState[] = [];
    let natProblem = '';
    try {
      nat = await native.observeNat(invocation.call, launcher, forbiddenNetworks);
    } catch (error) {
      natProblem = toFailure(error).message;
    }
    const applied = await appliedMessage(helper, invocation, podUid, launcher);
    return { ...state, nat: nat.map(natMessage), natProblem, ...(applied === undefined ? {} : { applied }) };
  });
}

const hooks = ['prerouting', 'input', 'forward', 'output', 'postrouting'];

function natMessage({ family, name, hook, rules }: NatChainState): MessageInitShape<typeof NatChainSchema> {
  if (hook === '') return { family, name, rules };
  const [number = '', priority = ''] = hook.split(' ');
  return { family, name, rules, hook: hooks[Number(number)] ?? number, priority: Number(priority) };
}

async function appliedMessage(
  { native, pods, forbiddenNetworks }: Helper,
  invocation: Invocation,
  podUid: string,
  launcher: Launcher,
): Promise<MessageInitShape<typeof AppliedNetworkSchema> | undefined> {
  const applied = pods.appliedNetwork(podUid);
  if (applied === undefined) return undefined;
  const { at, plan } = applied;
  const attachments = plan.attachments.map(({ podInterface, primary, queues, binding }) => ({
    podInterface,
    primary,
    queues,
    binding: binding.kind,
  }));
  const message = { atMs: BigInt(at.getTime()), attachments, passt: plan.passtGid !== undefined };
  try {
    const pending = await native.pendingNetworkChanges(invocation.call, launcher, forbiddenNetworks, plan);
    return { ...message, pending };
  } catch (error) {
    return { ...message, problem: toFailure(error).message };
  }
}

export function listMounts(
  { native, pods, policy }: Helper,
  invocation: Invocation,
  { podUid }: PodUid,
): Promise<MessageInitShape<typeof ListMountsResponseSchema>> {
  return pods.observe(invocation, podUid, async ({ launcher }) => {
    const mounts = await readMounts(launcher.pid);
    await native.checkLauncher(invocation.call, launcher, podUid);
    const node = await readMounts(1);
    return {
      mounts: mounts.map((mount) => {
        const { mountPoint, filesystem, root, source, options, propagation, containerDisk } = mount;
        const nodePath = backingOf(mount, node, { ...policy, source, podUid })?.path ?? '';
        const shown = { mountPoint, filesystem, root, source, options, propagation, nodePath };
        return containerDisk === undefined ? shown : { ...shown, containerDisk };
      }),
    };
  });
}

const devices = new Map([...deviceNames].map(([device, name]) => [name, device]));

const nodeStates: Readonly<Record<ObservedDevice['state'], DeviceNodeState>> = {
  missing: DeviceNodeState.MISSING,
  present: DeviceNodeState.PRESENT,
  other: DeviceNodeState.OTHER,
  host: DeviceNodeState.HOST,
};

export function listDevices(
  helper: Helper,
  invocation: Invocation,
  { podUid }: PodUid,
): Promise<MessageInitShape<typeof ListDevicesResponseSchema>> {
  const { native, pods, policy } = helper;
  return pods.observe(invocation, podUid, async ({ launcher }) => {
    const observed = await native.observeDevices(invocation.call, launcher);
    const { rules, note } = await devicePolicyInForce(helper, invocation, launcher, podUid);
    return {
      allowedDevices: rules,
      allowedNote: note,
      devices: observed.map(({ device, state, uid, gid, mode }) => ({
        device: devices.get(device) ?? Device.UNSPECIFIED,
        state: nodeStates[state],
        uid,
        gid,
        mode,
        allowed: policy.devices.includes(device),
        claimed: state === 'present' && isClaimed(device, { uid, gid, mode }, policy),
      })),
    };
  });
}

/** What could not be read is part of the answer. */
async function devicePolicyInForce(
  { native, deviceHierarchy }: Helper,
  { call }: Invocation,
  launcher: Launcher,
  podUid: string,
): Promise<PolicyInForce> {
  try {
    return deviceHierarchy.version === 1
      ? policyOfList(await native.readDeviceList(call, deviceHierarchy, launcher, podUid))
      : policyOfPrograms(await native.attachedDevicePrograms(call, deviceHierarchy, launcher, podUid));
  } catch (error) {
    return { rules: [], note: toFailure(error).message };
  }
}

/** Anybody may open the node that all groups of VFIO share; the others belong to QEMU's user. */
function isClaimed(
  device: ClaimableDevice,
  { uid, gid, mode }: Pick<ObservedDevice, 'uid' | 'gid' | 'mode'>,
  { qemuUid, qemuGid }: Policy,
): boolean {
  return device === 'vfio' ? mode === 0o666 : uid === qemuUid && gid === qemuGid;
}

export function getCgroup(
  { native, pods, policy }: Helper,
  invocation: Invocation,
  { podUid }: PodUid,
): Promise<MessageInitShape<typeof GetCgroupResponseSchema>> {
  return pods.observe(invocation, podUid, async ({ launcher }) => {
    const hierarchies = await readCgroups(launcher.pid, policy.cgroupRoot);
    await native.checkLauncher(invocation.call, launcher, podUid);
    return { hierarchies };
  });
}
