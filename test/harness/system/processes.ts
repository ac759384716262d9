/** What /proc says of a process: the privileges of its threads, its descriptors. */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';

const names = [
  ...['chown', 'dac_override', 'dac_read_search', 'fowner', 'fsetid', 'kill', 'setgid', 'setuid', 'setpcap'],
  ...[
    'linux_immutable',
    'net_bind_service',
    'net_broadcast',
    'net_admin',
    'net_raw',
    'ipc_lock',
    'ipc_owner',
  ],
  ...[
    'sys_module',
    'sys_rawio',
    'sys_chroot',
    'sys_ptrace',
    'sys_pacct',
    'sys_admin',
    'sys_boot',
    'sys_nice',
    'sys_resource',
  ],
];

export interface ThreadPrivileges {
  readonly tid: number;
  readonly uid: number;
  readonly permitted: bigint;
  readonly effective: bigint;
  readonly inheritable: bigint;
  readonly ambient: bigint;
  readonly noNewPrivs: boolean;
  readonly seccomp: number;
}

/** The privileges of every thread. Threads that end meanwhile are left out. */
export function threadsOf(pid: number): ThreadPrivileges[] {
  return readdirSync(`/proc/${pid}/task`).flatMap((tid) => {
    let status: string;
    try {
      status = readFileSync(`/proc/${pid}/task/${tid}/status`, 'utf8');
    } catch {
      return []; // ended
    }
    const field = (name: string) => new RegExp(`^${name}:\\s*(\\S+)`, 'm').exec(status)?.[1] ?? '';
    const mask = (name: string) => BigInt(`0x${field(name) || '0'}`);
    return [
      {
        tid: Number(tid),
        uid: Number(field('Uid')),
        permitted: mask('CapPrm'),
        effective: mask('CapEff'),
        inheritable: mask('CapInh'),
        ambient: mask('CapAmb'),
        noNewPrivs: field('NoNewPrivs') === '1',
        seccomp: Number(field('Seccomp')),
      },
    ];
  });
}

export function capabilityNames(mask: bigint): string {
  const found = names.filter((_, bit) => (mask & (1n << BigInt(bit))) !== 0n);
  return found.length === 0 ? 'none' : found.join(', ');
}

/** One line for each kind of thread that the process has. */
export function describeProcess(name: string, pid: number): string {
  const kinds = new Map<string, number>();
  for (const t of threadsOf(pid)) {
    const text = `uid ${t.uid}, permitted: ${capabilityNames(t.permitted)}; effective: ${capabilityNames(t.effective)}; no_new_privs ${t.noNewPrivs ? 'set' : 'NOT SET'}; seccomp ${t.seccomp === 2 ? 'filter' : 'NONE'}`;
    kinds.set(text, (kinds.get(text) ?? 0) + 1);
  }
  return [...kinds].map(([text, count]) => `${name} (process ${pid}), ${count} threads: ${text}`).join('\n');
}

/** An open descriptor of a process. */
export interface Descriptor {
  readonly fd: number;
  /** What /proc says it is: a path, `socket:[n]`, `pipe:[n]`, `anon_inode:[eventpoll]`, ... */
  readonly link: string;
  /** Owner of the inode. */
  readonly uid: number;
}

/** Descriptors that are closed meanwhile are left out. */
export function descriptorsOf(pid: number): Descriptor[] {
  const directory = `/proc/${pid}/fd`;
  return readdirSync(directory).flatMap((name) => {
    try {
      const path = `${directory}/${name}`;
      return [{ fd: Number(name), link: readlinkSync(path), uid: statSync(path).uid }];
    } catch {
      return []; // closed
    }
  });
}
