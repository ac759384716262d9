/** DeviceService.SetPolicy. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type { SetPolicyResponseSchema } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { DeviceNode, Launcher } from '../../native/binding.js';
import { changesTo, mergeRules, parseDeviceList } from '../devices/list.js';
import { policyRules } from '../devices/policy.js';
import { deviceProgram } from '../devices/program.js';
import { readRegisteredDevices } from '../devices/registered.js';
import type { DeviceRule } from '../devices/rules.js';
import { CallFailure, refusal } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import type { DeviceNumbers } from '../pods/plugged-devices.js';
import type { DevicePolicyRequest } from '../policy/devices.js';

/**
 * The whole policy is computed and applied at once: what it allows before and after is allowed all the time. A policy
 * that is in force already is left alone, so repeating the call restores one that somebody else has replaced.
 */
export function setPolicy(
  helper: Helper,
  invocation: Invocation,
  request: DevicePolicyRequest,
): Promise<MessageInitShape<typeof SetPolicyResponseSchema>> {
  const { pods, plugged } = helper;
  const { podUid } = request;
  return pods.withLauncher(invocation, request, async (launcher) => {
    const changed = await applyPolicy(helper, invocation, launcher, podUid, (nodes) =>
      blockDevices(helper, request, nodes),
    );
    plugged.denied(podUid);
    return { changed };
  });
}

/** Denies every block device to a launcher whose VM has ended: it may have kept names of their nodes. */
export function denyBlockDevices(
  helper: Helper,
  invocation: Invocation,
  launcher: Launcher,
  podUid: string,
): Promise<boolean> {
  return applyPolicy(helper, invocation, launcher, podUid, async () => []);
}

async function applyPolicy(
  helper: Helper,
  invocation: Invocation,
  launcher: Launcher,
  podUid: string,
  blockDevicesOf: (nodes: readonly DeviceNode[]) => Promise<DeviceNumbers[]>,
): Promise<boolean> {
  const { native, deviceHierarchy } = helper;
  const nodes = await native.listDeviceNodes(invocation.call, launcher);
  const rules = policyRules({
    version: deviceHierarchy.version,
    characterDevices: nodes.filter(({ type }) => type === 'c'),
    registered: await readRegisteredDevices(),
    blockDevices: await blockDevicesOf(nodes),
  });
  const apply = deviceHierarchy.version === 2 ? applyProgram : applyList;
  return apply(helper, invocation, launcher, podUid, rules);
}

/** What the helper has plugged, and nodes of volumes; a volume without one is a file or not there yet. */
async function blockDevices(
  { plugged, disksInUse }: Helper,
  { podUid, blockVolumes }: DevicePolicyRequest,
  nodes: readonly DeviceNode[],
): Promise<DeviceNumbers[]> {
  const volumes = blockVolumes.flatMap((volume) => {
    const node = nodes.find(({ path, type }) => path === volume && type === 'b');
    return node === undefined ? [] : { volume, major: node.major, minor: node.minor };
  });
  const devices = [...plugged.list(podUid), ...volumes];
  for (const [i, use] of (await disksInUse.uses(devices)).entries()) {
    if (use === undefined) continue;
    throw refusal('check block device', `volume ${devices[i]?.volume} is a disk of the host: ${use}`);
  }
  return devices;
}

function applyProgram(
  { native, deviceHierarchy }: Helper,
  invocation: Invocation,
  launcher: Launcher,
  podUid: string,
  rules: readonly DeviceRule[],
): Promise<boolean> {
  return native.replaceDevicePrograms(
    invocation.call,
    deviceHierarchy,
    launcher,
    podUid,
    deviceProgram(rules),
  );
}

async function applyList(
  { native, deviceHierarchy }: Helper,
  invocation: Invocation,
  launcher: Launcher,
  podUid: string,
  rules: readonly DeviceRule[],
): Promise<boolean> {
  const read = async () =>
    parseDeviceList(await native.readDeviceList(invocation.call, deviceHierarchy, launcher, podUid));
  const current = await read();
  const target = mergeRules(rules, current);
  const changes = changesTo(target, current);
  if (changes.length === 0) return false;
  await native.changeDeviceList(invocation.call, deviceHierarchy, launcher, podUid, changes);
  if (changesTo(target, await read()).length > 0) {
    throw new CallFailure({
      code: Code.Aborted,
      operation: 'check device list',
      message: 'devices.list is not what was written: somebody else writes it, too',
      unchanged: false,
    });
  }
  return true;
}
