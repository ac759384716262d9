/** The helper as a process of its own, an agent to talk to it, and launcher pods of the smallest kind. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { connect as netConnect, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { DescService } from '@bufbuild/protobuf';
import { type Client, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { FailureSchema } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { loadNative, type Native } from '../../native/binding.js';
import { grantDevice, PodCgroups } from '../harness/pods/cgroup.js';
import { removeTree } from '../harness/pods/remove.js';
import { run, waitFor } from '../harness/pods/run.js';

export const helperUser = 65530;
export const agentUser = 65531;
export const qemuUser = 107;
const deadlineMs = 20_000;
const root = new URL('../..', import.meta.url).pathname;

/** What `body` does at once, it does as that user. */
export function asUser<T>(uid: number, body: () => T): T {
  process.setegid?.(uid);
  process.seteuid?.(uid);
  try {
    return body();
  } finally {
    process.seteuid?.(0);
    process.setegid?.(0);
  }
}

/** One line for each audited event. */
export type AuditLine = Record<string, unknown>;

export interface HelperOptions {
  /** The helper's main module. */
  readonly program?: string;
  /** More of the command line. */
  readonly flags?: Readonly<Record<string, string>>;
  /** Command that starts the helper, by exec. */
  readonly prefix?: readonly string[];
}

export class HelperProcess {
  readonly base = mkdtempSync(join(tmpdir(), 'privhelper-'));
  readonly podsDir: string;
  readonly stateDir = join(this.base, 'state');
  readonly hotplugStateDir = join(this.base, 'hotplug-state');
  readonly pluggedDevicesDir = join(this.base, 'plugged');
  readonly socketDir = join(this.base, 'run');
  readonly auditFile = join(this.base, 'audit', 'audit.jsonl');
  readonly native: Native = loadNative();
  stderr = '';
  private child: ChildProcess | undefined;
  private readonly shared = new Map<string, { transport: Transport; session: Http2SessionManager }>();

  /** `podsDir`: kubelet's, one of its own when absent. */
  constructor(
    podsDir?: string,
    private readonly options: HelperOptions = {},
  ) {
    chmodSync(this.base, 0o755);
    this.podsDir = podsDir ?? join(this.base, 'pods');
    if (podsDir === undefined) mkdirSync(this.podsDir, { mode: 0o750 });
  }

  get pid(): number {
    return this.child?.pid ?? 0;
  }

  /** `environment`: added to this process's own. */
  async start(environment: Readonly<Record<string, string>> = {}): Promise<void> {
    this.stderr = '';
    const args = {
      '--socket-dir': this.socketDir,
      '--kubelet-pods-dir': this.podsDir,
      '--state-dir': this.stateDir,
      '--hotplug-state-dir': this.hotplugStateDir,
      '--plugged-devices-dir': this.pluggedDevicesDir,
      '--audit-file': this.auditFile,
      // Process 1 of a confined test machine need not be readable; its network is this one.
      '--host-netns': '/proc/self/ns/net',
      '--host-cgroupns': '/proc/self/ns/cgroup',
      ...this.options.flags,
    };
    const { program = 'dist/privhelper/main.js', prefix = [] } = this.options;
    const helper = [process.execPath, join(root, program), ...Object.entries(args).flat()];
    const [command = '', ...words] = [...prefix, ...helper];
    const env = { ...process.env, ...environment };
    const child = spawn(command, words, { stdio: ['ignore', 'ignore', 'pipe'], env });
    this.child = child;
    child.stderr.on('data', (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
    await waitFor('helper to be ready', deadlineMs, () => {
      if (child.exitCode !== null) throw new Error(`helper ended with ${child.exitCode}: ${this.stderr}`);
      return this.stderr.includes('ready: instance');
    });
  }

  /** Sends a signal and waits for the end. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    this.disconnect();
    const child = this.child;
    if (child === undefined) return null;
    child.kill(signal);
    await waitFor('helper to end', deadlineMs, () => child.exitCode !== null || child.signalCode !== null);
    return child.exitCode;
  }

  async destroy(): Promise<void> {
    await this.stop('SIGKILL');
    await removeTree(this.base);
  }

  /** Clients of one fixture share a connection, as the agent's do. */
  client<S extends DescService>(service: S): Client<S> {
    return createClient(service, this.transport('helper.sock', agentUser));
  }

  /** As privctl calls, which may call everything. */
  operator<S extends DescService>(service: S): Client<S> {
    return createClient(service, this.transport('ctl.sock', 0));
  }

  /** Ends the connections. */
  disconnect(): void {
    for (const { session } of this.shared.values()) session.abort();
    this.shared.clear();
  }

  private transport(name: string, uid: number): Transport {
    const open = this.shared.get(name);
    if (open !== undefined) return open.transport;
    const path = join(this.socketDir, name);
    const sessionManager = new Http2SessionManager('http://helper', undefined, {
      createConnection: () => asUser(uid, () => netConnect(path)),
    });
    const transport = createConnectTransport({ baseUrl: 'http://helper', httpVersion: '2', sessionManager });
    this.shared.set(name, { transport, session: sessionManager });
    return transport;
  }

  /** Redeems a ticket as a user. */
  async claim(ticket: Uint8Array, uid = agentUser): Promise<number> {
    process.setegid?.(uid);
    process.seteuid?.(uid);
    try {
      return await this.native.claimDescriptor(join(this.socketDir, 'fd.sock'), ticket, 5000);
    } finally {
      process.seteuid?.(0);
      process.setegid?.(0);
    }
  }

  audit(): AuditLine[] {
    const lines = readFileSync(this.auditFile, 'utf8').split('\n');
    return lines.filter((line) => line !== '').map((line) => JSON.parse(line));
  }

  /** The audit line of an event that matches; there may be some delay for connections. */
  audited(what: string, matches: (line: AuditLine) => boolean): Promise<AuditLine> {
    return waitFor(`audit line: ${what}`, deadlineMs, () => this.audit().find(matches));
  }

  /** The line of a call of SocketService about a pod that was refused, `place` being among its arguments. */
  auditedRefusal({ podUid }: TestPod, method: string, place: string): Promise<AuditLine> {
    return this.audited(`refusal of ${place}`, (line) => {
      if (line['pod'] !== podUid || line['decision'] !== 'refused') return false;
      if (line['method'] !== `SocketService.${method}`) return false;
      const begin = this.audit().find(({ event, call }) => event === 'begin' && call === line['call']);
      return JSON.stringify(begin?.['arguments'] ?? {}).includes(place);
    });
  }

  /** Parsed status of each thread. */
  threads(): ReadonlyMap<string, string>[] {
    const tasks = `/proc/${this.pid}/task`;
    return readdirSync(tasks).map((tid) => {
      const lines = readFileSync(join(tasks, tid, 'status'), 'utf8')
        .trim()
        .split('\n');
      return new Map(lines.map((line) => line.split(/:\s*/, 2) as [string, string]));
    });
  }
}

/** What a call failed with: code, and the detail that the helper gave. */
export async function failureOf(promise: Promise<unknown>) {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof ConnectError)) throw new Error(`not a ConnectError: ${String(error)}`);
  const [detail] = error.findDetails(FailureSchema);
  return { code: error.code, message: error.rawMessage, ...detail };
}

/**
 * A process in the pod's cgroup that does what it is told on stdin, one JSON array a line: listen on a
 * path (echoing what it gets), connect to a path and send a text, close the listener, run a program whose words
 * are lines of a text.
 */
const launcherProgram = `
const net = require('node:net'), fs = require('node:fs');
const servers = new Map();
const say = (...words) => process.stdout.write(JSON.stringify(words) + '\\n');
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const [verb, path, text] = JSON.parse(line);
  if (verb === 'listen') {
    const server = net.createServer((socket) => { say('connection'); socket.on('error', () => {}); socket.pipe(socket); });
    server.listen(path, () => say('listening')).on('error', (error) => say('error', error.code));
    servers.set(path, server);
  }
  if (verb === 'run') {
    const child = require('node:child_process').spawn(path, text.split('\\n'), { stdio: ['pipe', 'pipe', 'inherit'] });
    child.stdout.once('data', () => say('running', String(child.pid)));
  }
  if (verb === 'close') servers.get(path).close();
  if (verb === 'send') {
    const socket = net.connect(path, () => socket.end(text)).on('error', (error) => say('error', error.code));
    socket.on('close', () => say('sent'));
  }
}).on('close', () => process.exit(0));
say('started');
`;

export interface LauncherOptions {
  /** The pod in whose cgroup the process is; none at all for null. */
  readonly cgroupOf?: string | null;
  readonly uid?: number;
  /** Stay in the host's network namespace. */
  readonly hostNetwork?: boolean;
  /** Has the network namespace from a user namespace of its own. */
  readonly ownUserNamespace?: boolean;
  /** Directory that it has mounted at {@link claimPath}, in a mount namespace of its own. */
  readonly claim?: string;
}

/** Every host has this directory, and its name is one that a volume may have. */
const claimPath = '/srv';
export const claimVolume = claimPath.slice(1);
/** Its device is a RAM disk's: one that this machine has no driver for does as well. */
export const blockVolume = 'ram';
const blockNumbers = ['1', '0'];

export class LauncherProcess {
  readonly words: string[][] = [];
  private constructor(private readonly child: ChildProcess) {}

  /** `directory`: where the launcher's relative paths begin. */
  static async start(
    directory: string,
    options: { uid: number; hostNetwork: boolean; ownUserNamespace: boolean; claim: string | undefined },
    enter: (pid: number) => void,
  ) {
    const user = ['setpriv', '--reuid', `${options.uid}`, '--regid', `${options.uid}`, '--clear-groups'];
    const mount = `mount --bind "$1" ${claimPath} && shift && exec "$@"`;
    const command = [
      ...(options.hostNetwork || options.ownUserNamespace ? [] : ['unshare', '--net']),
      ...(options.claim === undefined ? [] : ['unshare', '--mount', 'sh', '-c', mount, 'sh', options.claim]),
      ...user,
      ...(options.ownUserNamespace ? ['unshare', '--user', '--net'] : []),
      process.execPath,
    ];
    const child = spawn(command[0] ?? '', [...command.slice(1), '-e', launcherProgram], {
      stdio: ['pipe', 'pipe', 'inherit'],
      cwd: directory,
    });
    const launcher = new LauncherProcess(child);
    let rest = '';
    child.stdout?.on('data', (chunk: Buffer) => {
      const lines = (rest + chunk.toString()).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) launcher.words.push(JSON.parse(line));
    });
    await launcher.hear('started');
    enter(launcher.pid);
    return launcher;
  }

  get pid(): number {
    return this.child.pid ?? 0;
  }

  async tell(...words: string[]): Promise<void> {
    const heard = this.words.length;
    this.child.stdin?.write(`${JSON.stringify(words)}\n`);
    if (words[0] === 'listen') await this.hear('listening', heard);
    if (words[0] === 'send') await this.hear('sent', heard);
  }

  /** `after`: how many words do not count any more. */
  hear(word: string, after = 0): Promise<string[]> {
    return waitFor(`launcher to say ${word}`, deadlineMs, () =>
      this.words.slice(after).find(([first]) => first === word),
    );
  }

  /** Starts a child of the launcher and resolves to its pid once it says something. */
  async run(command: string, ...words: string[]): Promise<number> {
    const heard = this.words.length;
    await this.tell('run', command, words.join('\n'));
    return Number((await this.hear('running', heard))[1]);
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await waitFor(
      'launcher to end',
      deadlineMs,
      () => this.child.signalCode !== null || this.child.exitCode !== null,
    );
  }
}

/** Volumes that every launcher pod has. */
export const launcherVolumes = [
  'sockets',
  'public',
  'private',
  'container-disks',
  'hotplug-disks',
  'libvirt-runtime',
] as const;

/** A launcher pod: kubelet's directories, and processes in its cgroup. */
export class TestPod {
  readonly podUid = randomUUID();
  readonly vmiUid = randomUUID();
  readonly directory: string;
  private readonly launchers: LauncherProcess[] = [];
  private readonly cgroups = new Map<string, PodCgroups>();

  constructor(helper: HelperProcess, volumes: readonly string[] = launcherVolumes) {
    this.directory = join(helper.podsDir, this.podUid);
    for (const volume of volumes) {
      const path = this.volume(volume);
      mkdirSync(path, { recursive: true });
      chownSync(path, 0, qemuUser);
      chmodSync(path, 0o2777);
    }
    chmodSync(this.directory, 0o750);
  }

  get ref() {
    return { podUid: this.podUid, vmiUid: this.vmiUid };
  }

  volume(name: string): string {
    return join(this.directory, 'volumes/kubernetes.io~empty-dir', name);
  }

  get launcherSock(): string {
    return join(this.volume('sockets'), 'launcher-sock');
  }

  /** Puts a process into the cgroup of a pod. */
  adopt(pid: number, cgroupOf: string = this.podUid): void {
    for (const path of this.computeCgroups(cgroupOf)) writeFileSync(join(path, 'cgroup.procs'), `${pid}`);
  }

  async process({
    cgroupOf = this.podUid,
    uid = qemuUser,
    hostNetwork = false,
    ownUserNamespace = false,
    claim,
  }: LauncherOptions = {}) {
    // Paths of sockets are short; and a launcher sees its volumes only, not what is above them.
    const launcher = await LauncherProcess.start(
      join(this.volume('sockets'), '..'),
      { uid, hostNetwork, ownUserNamespace, claim },
      (pid) => {
        if (cgroupOf !== null) this.adopt(pid, cgroupOf);
      },
    );
    this.launchers.push(launcher);
    return launcher;
  }

  /** The process of an attachment pod, which has a claim with a disk.img as the volume {@link claimVolume}. */
  async attachment(): Promise<LauncherProcess> {
    const claim = join(this.directory, 'claim');
    mkdirSync(claim, { mode: 0o755 });
    writeFileSync(join(claim, 'disk.img'), 'disk');
    const process = await this.process({ claim });
    const [major = '', minor = ''] = blockNumbers;
    grantDevice(this.computeCgroups(), { major: Number(major), minor: Number(minor) });
    const device = join(this.volume('hotplug-disks'), blockVolume, randomUUID());
    mkdirSync(join(device, '..'), { mode: 0o755 });
    await run('mknod', ['-m', '660', device, 'b', ...blockNumbers]);
    await process.tell('listen', 'hotplug-disks/hp.sock');
    return process;
  }

  /** Cgroups of a pod's compute container, one a hierarchy; made if they are not there. */
  computeCgroups(podUid: string = this.podUid): string[] {
    const cgroups = this.cgroups.get(podUid) ?? new PodCgroups(podUid, 'cgroupfs');
    this.cgroups.set(podUid, cgroups);
    return cgroups.create('compute');
  }

  /** A process that listens on launcher-sock. */
  async launcher(options: LauncherOptions = {}): Promise<LauncherProcess> {
    const launcher = await this.process(options);
    await launcher.tell('listen', 'sockets/launcher-sock');
    return launcher;
  }

  async destroy(): Promise<void> {
    await Promise.all(this.launchers.map((launcher) => launcher.kill()));
    for (const cgroups of this.cgroups.values()) await cgroups.destroy(deadlineMs);
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** Sends a text and resolves to what comes back until the same length is reached. */
export function echo(fd: number, text: string): Promise<string> {
  const socket = new Socket({ fd, readable: true, writable: true });
  return new Promise((resolve, reject) => {
    let answer = '';
    socket.on('error', reject);
    socket.on('data', (chunk) => {
      answer += chunk.toString();
      if (answer.length < text.length) return;
      socket.destroy();
      resolve(answer);
    });
    socket.write(text);
  });
}
