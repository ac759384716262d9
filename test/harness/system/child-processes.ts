/** Helper and agent as children of the harness, each with its user. */
import { chownSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ApiServer } from '../apiserver/api-server.js';
import { repositoryRoot } from '../pods/bundle.js';
import type { HarnessNode } from '../pods/node.js';
import { run, start } from '../pods/run.js';
import { agentUser, type Component, helperUser, type ProgramName, type Programs } from './programs.js';

type MoreEnv = Readonly<Partial<Record<ProgramName, Readonly<Record<string, string>>>>>;

export class ChildProcesses implements Programs {
  readonly apiHost = '127.0.0.1';
  readonly paths;
  /** The repository as the agent's user can reach it. */
  private readonly product: string;
  private readonly kubeconfig: string;

  private constructor(
    private readonly node: HarnessNode,
    private readonly moreEnv: MoreEnv,
  ) {
    const at = (name: string) => join(node.root, name);
    const inRun = (name: string) => join(node.root, 'run', name);
    this.product = at('product');
    this.kubeconfig = at('kubeconfig');
    this.paths = {
      socketDir: inRun('sockets'),
      privateDir: inRun('private'),
      mountRecordDir: inRun('mount-state'),
      hotplugRecordDir: inRun('hotplug-state'),
      pluggedDevicesDir: inRun('plugged'),
      auditFile: at('audit/audit.jsonl'),
    };
  }

  /** @param moreEnv more of the environments */
  static async create(node: HarnessNode, moreEnv: MoreEnv = {}): Promise<ChildProcesses> {
    const programs = new ChildProcesses(node, moreEnv);
    mkdirSync(programs.product);
    await run('mount', ['--bind', repositoryRoot(), programs.product]);
    // Memory, as a node's /run is.
    const runDir = join(node.root, 'run');
    mkdirSync(runDir);
    await run('mount', ['-t', 'tmpfs', '-o', 'size=64m,mode=755', 'tmpfs', runDir]);
    const { socketDir, privateDir, mountRecordDir } = programs.paths;
    for (const directory of [socketDir, mountRecordDir, join(node.root, 'audit')]) mkdirSync(directory);
    mkdirSync(privateDir, { mode: 0o755 });
    chownSync(privateDir, agentUser, agentUser);
    return programs;
  }

  connect(api: ApiServer): void {
    writeFileSync(this.kubeconfig, api.kubeConfigText, { mode: 0o600 });
    chownSync(this.kubeconfig, agentUser, agentUser);
  }

  async start(which: ProgramName, extra: readonly string[], log: number): Promise<Component> {
    const { socketDir, privateDir, mountRecordDir, hotplugRecordDir, pluggedDevicesDir, auditFile } =
      this.paths;
    const [entry, user, args] =
      which === 'helper'
        ? [
            'dist/privhelper/main.js',
            undefined,
            [
              ...['--socket-dir', socketDir, '--kubelet-pods-dir', this.node.podsDir],
              ...['--state-dir', mountRecordDir, '--hotplug-state-dir', hotplugRecordDir],
              ...['--plugged-devices-dir', pluggedDevicesDir],
              ...['--audit-file', auditFile],
              ...['--agent-uid', String(agentUser), '--agent-gid', String(agentUser)],
              ...['--uid', String(helperUser), '--gid', String(helperUser)],
              // Process 1 of a sandboxed machine may be out of reach; the harness runs in the host's namespace.
              ...['--host-netns', '/proc/self/ns/net', '--host-cgroupns', '/proc/self/ns/cgroup'],
            ],
          ]
        : [
            'dist/agent/main.js',
            agentUser,
            [
              ...['--hostname-override', this.node.name, '--helper-dir', socketDir],
              ...['--kubevirt-private-dir', privateDir, '--kubeconfig', this.kubeconfig],
              ...['--timeline-file', join(privateDir, 'timeline.jsonl'), '-v', '4'],
            ],
          ];
    const process = start(globalThis.process.execPath, [join(this.product, entry), ...args, ...extra], {
      cwd: '/',
      stdio: ['ignore', log, log],
      ...(user === undefined ? {} : { uid: user, gid: user }),
      env: {
        PATH: globalThis.process.env['PATH'] ?? '',
        MY_POD_IP: '10.244.2.2',
        ...this.moreEnv[which],
      },
    });
    return { pid: process.pid, process };
  }

  async destroy(): Promise<void> {}
}
