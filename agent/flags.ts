/** Command line of the agent. Names shared with virt-handler keep their meaning and default. */
import { hostname } from 'node:os';
import { parseArgs } from 'node:util';
import type { Level } from './log/log.js';

export interface Flags {
  /** Kubernetes name of this node. */
  readonly nodeName: string;
  /** Directory of helper.sock and fd.sock. */
  readonly helperDir: string;
  /** Where ghost records and network state live. */
  readonly privateDir: string;
  readonly kubeconfig: string | undefined;
  /** Seconds that a launcher socket must be dead before its domain counts as gone. */
  readonly watchdogTimeoutSeconds: number;
  readonly domainResyncPeriodSeconds: number;
  /** Kubernetes API requests a second and burst, where the KubeVirt object does not say. */
  readonly kubeApiQps: number;
  readonly kubeApiBurst: number;
  /** Where to write the timeline of every VMI as JSON lines, if anywhere. */
  readonly timelineFile: string | undefined;
  readonly logLevel: Level;
}

export const defaultPrivateDir = '/var/run/kubevirt-private';

export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** What the command line may say; docs/deployment.md has the same. */
export const options = {
  'hostname-override': {
    type: 'string',
    value: 'NAME',
    help: 'Kubernetes name of this node; otherwise NODE_NAME of the environment, else the host name',
  },
  'helper-dir': {
    type: 'string',
    default: '/run/virt-privsep',
    value: 'DIR',
    help: "directory of the helper's sockets",
  },
  'kubevirt-private-dir': {
    type: 'string',
    default: defaultPrivateDir,
    value: 'DIR',
    help: 'state of this agent, and its own socket',
  },
  kubeconfig: { type: 'string', value: 'FILE', help: 'otherwise the service account of the pod' },
  'watchdog-timeout': {
    type: 'string',
    default: '30s',
    value: 'DURATION',
    help: 'how long a launcher may be unreachable, 1s to 24h',
  },
  'domain-resync-period-seconds': {
    type: 'string',
    default: '300',
    value: 'N',
    help: 'time between two questions to every launcher for its domain',
  },
  'kube-api-qps': {
    type: 'string',
    default: '50',
    value: 'N',
    help: 'requests of the API a second, where the KubeVirt object does not say',
  },
  'kube-api-burst': {
    type: 'string',
    default: '100',
    value: 'N',
    help: 'requests of the API at once, likewise',
  },
  'timeline-file': {
    type: 'string',
    value: 'FILE',
    help: 'append the steps of every VMI as JSON lines; the file grows without bound',
  },
  v: {
    type: 'string',
    short: 'v',
    default: '2',
    value: 'N',
    help: 'below 2 warnings and errors, 2 information, above debug; logVerbosity of the KubeVirt object wins',
  },
} as const;

export function usage(): string {
  const rows = Object.entries(options).map(([name, option]) => {
    const fallback = 'default' in option ? ` (${option.default})` : '';
    return [`${'short' in option ? '-' : '--'}${name} ${option.value}`, `${option.help}${fallback}`] as const;
  });
  const longest = Math.max(...rows.map(([flag]) => flag.length));
  return [
    'usage: virt-agent [flags]',
    ...rows.map(([flag, help]) => `  ${flag.padEnd(longest)}  ${help}`),
    '',
    'virt-agent timeline NAMESPACE/NAME',
    '  the steps of a VMI of this node, as the running agent noted them; see virt-agent timeline --help',
  ].join('\n');
}

/** Warnings and errors are always written, as by virt-handler. */
export function logLevelOf(verbosity: number): Level {
  if (verbosity < 2) return 'warning';
  return verbosity === 2 ? 'info' : 'debug';
}

/** Parses the command line. Throws UsageError naming the flag at fault. */
export function parseFlags(
  args: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): Flags {
  let values: Record<string, string | undefined>;
  try {
    values = parseArgs({
      args: [...args],
      strict: true,
      allowPositionals: false,
      options,
    }).values;
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const integer = (flag: string, min: number, max: number): number => {
    const text = values[flag] ?? '';
    const value = Number(text);
    if (!/^\d+$/.test(text) || value < min || value > max) {
      throw new UsageError(`--${flag}: ${text} is not a whole number from ${min} to ${max}`);
    }
    return value;
  };
  return {
    nodeName: values['hostname-override'] || env['NODE_NAME'] || hostname(),
    helperDir: values['helper-dir'] ?? '',
    privateDir: values['kubevirt-private-dir'] ?? '',
    kubeconfig: values['kubeconfig'],
    watchdogTimeoutSeconds: durationSeconds('watchdog-timeout', values['watchdog-timeout'] ?? ''),
    domainResyncPeriodSeconds: integer('domain-resync-period-seconds', 1, 86_400),
    kubeApiQps: integer('kube-api-qps', 1, 10_000),
    kubeApiBurst: integer('kube-api-burst', 1, 10_000),
    timelineFile: values['timeline-file'],
    logLevel: logLevelOf(integer('v', 0, 10)),
  };
}

/** Go duration text such as 30s or 1m30s, whole seconds. */
function durationSeconds(flag: string, text: string): number {
  const match = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$/.exec(text);
  const [, h = '0', m = '0', s = '0'] = match ?? [];
  const seconds = Number(h) * 3600 + Number(m) * 60 + Number(s);
  if (match === null || text === '' || seconds < 1 || seconds > 86_400) {
    throw new UsageError(`--${flag}: ${text} is not a duration from 1s to 24h`);
  }
  return seconds;
}
