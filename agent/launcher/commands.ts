/**
 * The commands that a launcher answers. The protocol is here in full, so also what only the servers of consoles, guest
 * operations and migrations will call.
 */
import type { DescMessage, DescMethodUnary, MessageShape } from '@bufbuild/protobuf';
import {
  Cmd,
  type ExecResponse,
  type Response,
  type ScreenshotResponse,
  type VMStatsResponse,
} from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { Domain } from '../api/domain.js';
import { parseDomain } from '../domains/domain-json.js';
import { type JsonValue, parseJson } from '../json/lossless.js';
import { type GuestInfo, parseGuestFilesystems, parseGuestInfo, parseGuestUsers } from './guest-info.js';

const short = 5_000;
const long = 20_000;
const freeze = 60_000;
const maxPayloadBytes = 4 * 1024 * 1024;

/** One RPC of the launcher: how long it may take, how its failures are told and what its answer means. */
export interface Command<I extends DescMessage, O extends DescMessage, R> {
  readonly method: DescMethodUnary<I, O>;
  /** The word in error texts; empty where KubeVirt's client uses none. */
  readonly word: string;
  readonly deadlineMs: (request: MessageShape<I>) => number;
  /** Reads the answer of a command that worked. May throw. */
  readonly decode: (response: MessageShape<O>) => R;
}

function command<I extends DescMessage, O extends DescMessage, R>(
  method: DescMethodUnary<I, O>,
  word: string,
  deadline: number | ((request: MessageShape<I>) => number),
  decode: (response: MessageShape<O>) => R,
): Command<I, O, R> {
  return { method, word, deadlineMs: typeof deadline === 'number' ? () => deadline : deadline, decode };
}

const nothing = (_: Response): void => undefined;
/** Commands that carry their own time limit get five seconds more. */
const ownLimit = (request: { timeoutSeconds: number }): number => request.timeoutSeconds * 1_000 + short;

const rpc = Cmd.method;

/** All RPCs of the command service (KubeVirt pkg/virt-handler/cmd-client). */
export const commands = {
  syncVirtualMachine: command(rpc.syncVirtualMachine, 'SyncVMI', long, nothing),
  pauseVirtualMachine: command(rpc.pauseVirtualMachine, 'Pause', long, nothing),
  unpauseVirtualMachine: command(rpc.unpauseVirtualMachine, 'Unpause', long, nothing),
  freezeVirtualMachine: command(rpc.freezeVirtualMachine, 'Freeze', freeze, nothing),
  unfreezeVirtualMachine: command(rpc.unfreezeVirtualMachine, 'Unfreeze', long, nothing),
  resetVirtualMachine: command(rpc.resetVirtualMachine, 'Reset', long, nothing),
  softRebootVirtualMachine: command(rpc.softRebootVirtualMachine, 'SoftReboot', long, nothing),
  shutdownVirtualMachine: command(rpc.shutdownVirtualMachine, 'Shutdown', long, nothing),
  killVirtualMachine: command(rpc.killVirtualMachine, 'Kill', long, nothing),
  deleteVirtualMachine: command(rpc.deleteVirtualMachine, 'Delete', long, nothing),
  migrateVirtualMachine: command(rpc.migrateVirtualMachine, 'Migrate', long, nothing),
  syncMigrationTarget: command(rpc.syncMigrationTarget, 'SyncMigrationTarget', long, nothing),
  cancelVirtualMachineMigration: command(rpc.cancelVirtualMachineMigration, 'CancelMigration', long, nothing),
  signalTargetPodCleanup: command(rpc.signalTargetPodCleanup, 'SignalTargetPodCleanup', long, nothing),
  finalizeVirtualMachineMigration: command(
    rpc.finalizeVirtualMachineMigration,
    'FinalizeVirtualMachineMigration',
    long,
    nothing,
  ),
  hotplugHostDevices: command(rpc.hotplugHostDevices, 'HotplugHostDevices', long, nothing),
  syncVirtualMachineCPUs: command(rpc.syncVirtualMachineCPUs, 'SyncVirtualMachineCPUs', long, nothing),
  syncVirtualMachineMemory: command(rpc.syncVirtualMachineMemory, 'SyncVirtualMachineMemory', long, nothing),
  virtualMachineMemoryDump: command(rpc.virtualMachineMemoryDump, 'Memorydump', long, nothing),
  backupVirtualMachine: command(rpc.backupVirtualMachine, 'Backup', long, nothing),
  /** The answer of a failed one says whether the checkpoint is invalid; see CmdClient.redefineCheckpoint. */
  redefineCheckpoint: command(rpc.redefineCheckpoint, '', long, () => undefined),
  ping: command(rpc.ping, 'Ping', short, nothing),
  getDomain: command(rpc.getDomain, 'GetDomain', short, ({ domain }): Domain | undefined =>
    domain === '' ? undefined : parseDomain(domain),
  ),
  getDomainStats: command(rpc.getDomainStats, 'GetDomainStats', short, ({ domainStats }) =>
    domainStats === '' ? undefined : json(domainStats),
  ),
  /** MB per second. */
  getDomainDirtyRateStats: command(
    rpc.getDomainDirtyRateStats,
    'GetDomainDirtyRateStats',
    long,
    ({ dirtyRateMbs }) => dirtyRateMbs,
  ),
  getVMStats: command(rpc.getVMStats, 'GetVMStats', short, (response): VMStatsResponse => {
    // With statistics that cannot be read the call has failed, as with GetDomainStats.
    const { domainStats = '' } = response.domainStats ?? {};
    if (domainStats !== '') json(domainStats);
    return response;
  }),
  getGuestInfo: command(
    rpc.getGuestInfo,
    'GetGuestInfo',
    short,
    ({ guestInfoResponse }): GuestInfo => parseGuestInfo(guestInfoResponse),
  ),
  getUsers: command(rpc.getUsers, 'GetUsers', short, ({ guestUserListResponse }) =>
    parseGuestUsers(guestUserListResponse),
  ),
  getFilesystems: command(rpc.getFilesystems, 'GetFilesystems', short, ({ guestFilesystemsResponse }) =>
    parseGuestFilesystems(guestFilesystemsResponse),
  ),
  getQemuVersion: command(rpc.getQemuVersion, 'GetQemuVersion', short, ({ version }) => {
    if (version === '') throw new Error('error getting the qemu version');
    return version;
  }),
  getScreenshot: command(rpc.getScreenshot, '', short, (response): ScreenshotResponse => response),
  exec: command(rpc.exec, '', ownLimit, ({ exitCode, stdOut }: ExecResponse) => ({ exitCode, stdOut })),
  guestPing: command(rpc.guestPing, '', ownLimit, () => undefined),
  getSEVInfo: command(rpc.getSEVInfo, 'GetSEVInfo', short, ({ sevInfo }) => jsonBytes(sevInfo)),
  getLaunchMeasurement: command(
    rpc.getLaunchMeasurement,
    'GetLaunchMeasurement',
    short,
    ({ launchMeasurement }) => jsonBytes(launchMeasurement),
  ),
  injectLaunchSecret: command(rpc.injectLaunchSecret, 'InjectLaunchSecret', long, nothing),
} as const;

function json(text: string): JsonValue {
  return parseJson(text, maxPayloadBytes);
}

function jsonBytes(bytes: Uint8Array): JsonValue {
  if (bytes.length === 0) throw new Error('unexpected end of JSON input');
  return json(Buffer.from(bytes).toString('utf8'));
}
