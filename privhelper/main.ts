#!/usr/bin/env node
/**
 * The privileged helper. As root it opens what it needs and starts the privileged threads; then this
 * process becomes an ordinary user without capabilities, proves it, and only then reads its first byte
 * from the agent.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { readdirSync, statfsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { PodService } from '../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { loadNative, type NamespaceId, type Native } from '../native/binding.js';
import { AuditLog } from './audit/audit.js';
import { AuditFile } from './audit/file.js';
import { auditCaps, declaredBy, permittedCaps, services, sysResource, withheldCaps } from './declarations.js';
import { serveTickets } from './descriptors/channel.js';
import { Tickets } from './descriptors/tickets.js';
import { DisksInUse } from './devices/disks-in-use.js';
import { type DeviceHierarchy, openDeviceHierarchy } from './devices/hierarchy.js';
import { assertDedicated, openDirectory, ownDirectory, ownFiles } from './directories.js';
import { assertComplete, inspection, table } from './dispatch.js';
import { type Flags, parseFlags, usage } from './flags.js';
import type { Helper } from './helper.js';
import { CommandLines } from './inspect/command-lines.js';
import { kernelShortcomings } from './inspect/health.js';
import { readCommandLine } from './inspect/proc.js';
import { HotplugRecords } from './pods/hotplug-records.js';
import { PluggedDevices } from './pods/plugged-devices.js';
import { MountRecords } from './pods/records.js';
import { PodRegistry } from './pods/registry.js';
import { type ChosenPolicy, choosePolicy } from './policy/choose.js';
import { isUuid } from './policy/fields.js';
import type { Policy } from './policy/policy.js';
import { readThreads, verifyThreads } from './privileges.js';
import { SelinuxReader } from './selinux.js';
import { Calls } from './server/calls.js';
import { Connections, OperatorConnections } from './server/connections.js';
import { type DeclaredEntry, declareAll, describeAll } from './server/routes.js';
import { RpcServer } from './server/server.js';
import { readVersion } from './version.js';
import { PodWatcher } from './watch/watcher.js';

/** statfs(2): the file system of cgroup v2. */
const cgroup2Magic = 0x63677270;
/** Looks at every pod again, against lost events. */
const recheckMs = 30_000;
/** Writes the number of suppressed refusals. */
const auditFlushMs = 10_000;
/** Time for calls in progress when the helper is told to stop. */
const stopMs = 5000;
const watchDeadlineMs = 2000;
const auditDeadlineMs = 2000;
const backlog = 16;

type Report = (message: string, error?: unknown) => void;

/** Methods of the two sockets; operators have the agent's, too. */
interface Methods {
  readonly agent: readonly DeclaredEntry[];
  readonly operators: readonly DeclaredEntry[];
}

/** What is opened as root. */
interface Opened {
  readonly podsDir: number;
  readonly deviceHierarchy: DeviceHierarchy;
  readonly cgroupRoot: number;
  readonly plugged: PluggedDevices;
  readonly auditFile: AuditFile;
  readonly rpcListener: number;
  readonly ticketListener: number;
  readonly operatorListener: number;
  readonly forbiddenNetworks: readonly NamespaceId[];
  readonly selinux: SelinuxReader;
}

function main(): void {
  const report: Report = (message, error) => log('warning', message, error);
  const flags = parseFlags(process.argv.slice(2));
  const chosen = choosePolicy(flags);
  assertComplete([...table, ...inspection], services);
  const withheld = doWithout(chosen.policy, report);
  const agent = declareAll(table, withheld);
  const methods = { agent, operators: [...agent, ...declareAll(inspection)] };
  const native = loadNative();
  for (const line of kernelShortcomings(native.probeKernel())) log('info', line);
  const opened = openAsRoot(native, flags, chosen.policy, report);
  native.makeNetworkSysctlsWritable();
  if (opened.selinux.mode() !== 'disabled') labelTaps(native, report);
  giveUpPrivileges(native, flags, methods.operators);
  serve(native, flags, chosen, methods, opened, report);
}

/** Capabilities that this node does without. */
function doWithout({ cgroupRoot }: Policy, report: Report): bigint {
  const [{ permitted } = { permitted: 0n }] = readThreads();
  const cgroupsAreUnified = statfsSync(cgroupRoot).type === cgroup2Magic;
  if ((permitted & sysResource) === 0n) {
    report(
      'CAP_SYS_RESOURCE is not given: VMs that lock their memory (passthrough, SEV, real-time) do not start',
    );
  }
  return withheldCaps({ permitted, cgroupsAreUnified });
}

function openAsRoot(native: Native, flags: Flags, policy: Policy, report: Report): Opened {
  process.umask(0o022);
  native.joinCgroupNamespace(flags.hostCgroupns);
  const podsDir = openDirectory(flags.kubeletPodsMount ?? policy.kubeletPodsDir);
  const cgroupRoot = openDirectory(policy.cgroupRoot);
  const deviceHierarchy = openDeviceHierarchy(policy.cgroupRoot, cgroupRoot);

  const isRecord = (name: string) => isUuid(name) || /^\.[0-9a-f-]{36}\.tmp$/.test(name);
  for (const directory of [flags.stateDir, flags.hotplugStateDir, flags.pluggedDevicesDir]) {
    assertDedicated(directory, isRecord);
    ownDirectory(directory, { uid: flags.uid, gid: flags.gid, mode: 0o700 });
    ownFiles(directory, isRecord, flags.uid, flags.gid);
  }
  // Pods that went while no helper ran; of later ones the watcher tells.
  const plugged = new PluggedDevices(flags.pluggedDevicesDir, policy.maxPluggedDevices);
  plugged.keepOnly(new Set(readdirSync(`/proc/self/fd/${podsDir}`)));

  const auditDir = dirname(flags.auditFile);
  assertDedicated(auditDir, (name) => name.startsWith(basename(flags.auditFile)));
  ownDirectory(auditDir, { uid: flags.uid, gid: flags.gid, mode: 0o700 });
  const auditFile = new AuditFile({
    path: flags.auditFile,
    maxBytes: policy.auditMaxBytes,
    keep: policy.auditKeep,
    setAppendOnly: (fd, on) => native.setAppendOnly({ caps: auditCaps, deadlineMs: auditDeadlineMs }, fd, on),
    now: () => new Date(),
    report,
  });
  auditFile.chown(flags.uid, flags.gid);

  // Agent and operators may enter the directory but not replace a socket in it.
  ownDirectory(flags.socketDir, { uid: 0, gid: policy.agentGid, mode: 0o751 });
  const socket = { mode: 0o660, gid: policy.agentGid, backlog };
  const rpcListener = native.listenUnix({
    ...socket,
    path: join(flags.socketDir, 'helper.sock'),
    type: 'stream',
  });
  const ticketListener = native.listenUnix({
    ...socket,
    path: join(flags.socketDir, 'fd.sock'),
    type: 'seqpacket',
  });
  const operatorListener = native.listenUnix({
    ...socket,
    gid: policy.adminGid,
    path: join(flags.socketDir, 'ctl.sock'),
    type: 'stream',
  });

  const forbiddenNetworks = [native.namespaceId(flags.hostNetns), native.namespaceId('/proc/self/ns/net')];
  const selinux = SelinuxReader.open(flags.selinuxfs, '/proc/self/attr/current');
  return {
    podsDir,
    deviceHierarchy,
    cgroupRoot,
    plugged,
    auditFile,
    rpcListener,
    ticketListener,
    operatorListener,
    forbiddenNetworks,
    selinux,
  };
}

/** Without a device of its own taps can still be made where nothing is enforced. */
function labelTaps(native: Native, report: Report): void {
  const obstacle = native.labelTaps();
  if (obstacle === undefined) return;
  report('no tun device that launchers may open: where SELinux enforces, VMs get no taps', obstacle);
}

function giveUpPrivileges(native: Native, flags: Flags, entries: readonly DeclaredEntry[]): void {
  const permitted = permittedCaps(entries.map(({ declared }) => declared));
  native.startPrivilegedThreads({ count: flags.threads, permitted });
  native.dropPrivileges({ uid: flags.uid, gid: flags.gid, groups: [] });
  native.lockDown({ privileged: true });
  // One thread more than was asked for: it replaces those that cannot return to their namespaces.
  verifyThreads(readThreads(), { uid: flags.uid, privilegedThreads: flags.threads + 1, permitted });
}

function serve(
  native: Native,
  flags: Flags,
  { policy, described }: ChosenPolicy,
  methods: Methods,
  opened: Opened,
  report: Report,
): void {
  const { podsDir, plugged, auditFile, rpcListener, ticketListener, operatorListener } = opened;
  const { deviceHierarchy, cgroupRoot, forbiddenNetworks, selinux } = opened;
  const now = () => performance.now();
  const audit = new AuditLog({ sink: auditFile, now: () => new Date(), monotonic: now, report });
  const instanceId = randomUUID();
  const pods: PodRegistry = new PodRegistry({
    native,
    podsDir,
    policy,
    identify: declaredBy(PodService.method.identify),
    onExit: (podUid) => watcher.touch(podUid),
  });
  const watcher: PodWatcher = new PodWatcher({
    native,
    podsDir,
    policy,
    call: { caps: declaredBy(PodService.method.watch).caps, deadlineMs: watchDeadlineMs },
    hasExited: (podUid) => pods.hasExited(podUid),
    onGone: (podUid) => {
      pods.forget(podUid);
      plugged.drop(podUid);
    },
    recheckMs,
    now,
    report,
  });
  const tickets = new Tickets({
    limit: policy.maxTickets,
    ttlMs: policy.ticketTtlMs,
    close: (fd) => native.close(fd),
    random: randomBytes,
  });
  const helper: Helper = {
    native,
    policy,
    podsDir,
    cgroupRoot,
    forbiddenNetworks,
    pods,
    records: new MountRecords(flags.stateDir, policy.kubeletPodsDir, policy),
    hotplugRecords: new HotplugRecords(flags.hotplugStateDir, policy.kubeletPodsDir, policy),
    plugged,
    deviceHierarchy,
    disksInUse: new DisksInUse(flags.hostMounts, policy.kubeletPodsDir),
    tickets,
    watcher,
    commandLines: new CommandLines(readCommandLine),
    repairing: new Set(),
    selinux,
    instance: {
      id: instanceId,
      version: readVersion(),
      startedAt: new Date(),
      methods: describeAll(methods.operators, policy),
      policy: described,
      threads: readThreads,
    },
    methods: methods.operators,
    agentPid: () => connections.pid,
    auditFile,
    usage: () => [
      { name: 'connections of the agent', used: connections.open, limit: policy.maxConnections },
      { name: 'calls of the agent', used: server.calls, limit: policy.maxCalls },
      { name: 'watches', used: watcher.open, limit: policy.maxWatches },
      { name: 'descriptors unclaimed', used: tickets.size, limit: policy.maxTickets },
      { name: 'pods watched', used: watcher.known.length, limit: policy.maxPods },
      { name: 'launchers pinned', used: pods.pinned, limit: policy.maxPods },
    ],
  };
  const calls = new Calls({ audit, instanceId, now, report });
  const connections = new Connections(policy);
  const server = new RpcServer({
    native,
    helper,
    entries: methods.agent,
    connections,
    calls,
    audit,
    report,
  });
  const operators = new RpcServer({
    native,
    helper,
    entries: methods.operators,
    connections: new OperatorConnections(policy),
    actor: ({ uid }) => `privctl uid ${uid}`,
    calls,
    audit,
    report,
  });

  void auditFile.protect();
  audit.started({ instance: instanceId, version: helper.instance.version });
  watcher.start();
  const channel = serveTickets(native, ticketListener, tickets, policy, audit, report);
  server.listen(rpcListener);
  operators.listen(operatorListener);
  const flush = setInterval(() => audit.flush(), auditFlushMs);
  log('info', `ready: instance ${instanceId}, ${methods.operators.length} methods`);

  const stop = async () => {
    server.stop();
    operators.stop();
    channel.stop();
    clearInterval(flush);
    watcher.close();
    await Promise.race([calls.idle(), new Promise((resolve) => setTimeout(resolve, stopMs))]);
    server.destroy();
    operators.destroy();
    tickets.closeAll();
    pods.close();
    audit.flush();
    await auditFile.close();
    process.exit(0);
  };
  process.once('SIGTERM', () => void stop());
  process.once('SIGINT', () => void stop());
}

function log(level: 'info' | 'warning', message: string, error?: unknown): void {
  const reason = error === undefined ? undefined : error instanceof Error ? error.message : String(error);
  const line = { component: 'virt-privhelper', level, msg: message, reason };
  process.stderr.write(`${JSON.stringify({ ...line, timestamp: new Date().toISOString() })}\n`);
}

try {
  if (process.argv.includes('--help')) process.stdout.write(`${usage()}\n`);
  else main();
} catch (error) {
  process.stderr.write(`virt-privhelper: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}
