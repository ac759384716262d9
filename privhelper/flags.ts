/** Command line of the helper. */
import { isAbsolute } from 'node:path';
import { parseArgs } from 'node:util';

export interface Flags {
  /** Directory of helper.sock and fd.sock. */
  readonly socketDir: string;
  readonly agentUid: number;
  /** Group of the sockets. */
  readonly agentGid: number;
  /** User and group that the helper becomes. */
  readonly uid: number;
  readonly gid: number;
  readonly kubeletPodsDir: string;
  /** Directory of the container-disk mount records. */
  readonly stateDir: string;
  readonly auditFile: string;
  readonly auditMaxBytes: number;
  readonly qemuUid: number;
  readonly qemuGid: number;
  /** The host's network namespace, which no call may enter. */
  readonly hostNetns: string;
  /** Privileged threads. */
  readonly threads: number;
}

const options = {
  'socket-dir': { type: 'string', default: '/run/virt-privsep' },
  'agent-uid': { type: 'string', default: '65531' },
  'agent-gid': { type: 'string', default: '65531' },
  uid: { type: 'string', default: '65530' },
  gid: { type: 'string', default: '65530' },
  'kubelet-pods-dir': { type: 'string', default: '/var/lib/kubelet/pods' },
  'state-dir': { type: 'string', default: '/var/run/kubevirt-private/container-disk-mount-state' },
  'audit-file': { type: 'string', default: '/var/log/virt-privsep/audit.jsonl' },
  'audit-max-bytes': { type: 'string', default: '67108864' },
  'qemu-uid': { type: 'string', default: '107' },
  'qemu-gid': { type: 'string', default: '107' },
  'host-netns': { type: 'string', default: '/proc/1/ns/net' },
  threads: { type: 'string', default: '4' },
} as const;

type Name = keyof typeof options;

const maxId = 0xffff_fffe;

/** Parses arguments (without program and script). Throws, naming the flag, when one is wrong. */
export function parseFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({ args: [...args], options, strict: true });
  const integer = (name: Name, min: number, max: number) => {
    const text = values[name];
    const value = Number(text);
    if (!/^\d{1,15}$/.test(text) || value < min || value > max) {
      throw new RangeError(`--${name}: ${text} is not an integer in ${min}..${max}`);
    }
    return value;
  };
  const path = (name: Name) => {
    const text = values[name];
    if (!isAbsolute(text) || text.includes('\0')) throw new Error(`--${name}: not an absolute path`);
    return text;
  };
  const flags: Flags = {
    socketDir: path('socket-dir'),
    agentUid: integer('agent-uid', 1, maxId),
    agentGid: integer('agent-gid', 1, maxId),
    uid: integer('uid', 1, maxId),
    gid: integer('gid', 1, maxId),
    kubeletPodsDir: path('kubelet-pods-dir'),
    stateDir: path('state-dir'),
    auditFile: path('audit-file'),
    auditMaxBytes: integer('audit-max-bytes', 4096, 2 ** 40),
    qemuUid: integer('qemu-uid', 1, maxId),
    qemuGid: integer('qemu-gid', 1, maxId),
    hostNetns: path('host-netns'),
    threads: integer('threads', 1, 16),
  };
  // Processes of one user may signal and trace each other.
  if (new Set([flags.uid, flags.agentUid, flags.qemuUid]).size < 3) {
    throw new Error('--uid, --agent-uid and --qemu-uid: must be three different users');
  }
  return flags;
}
