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

export const usage = `usage: virt-agent [flags]
  --hostname-override NAME              Kubernetes name of this node (default: NODE_NAME, else the host name)
  --helper-dir DIR                      directory of the helper's sockets (default /run/virt-privsep)
  --kubevirt-private-dir DIR            state of this agent (default /var/run/kubevirt-private)
  --kubeconfig FILE                     kubeconfig; otherwise the service account of the pod
  --watchdog-timeout DURATION           how long a launcher may be unreachable (default 30s)
  --domain-resync-period-seconds N      (default 300)
  --kube-api-qps N                      (default 50)
  --kube-api-burst N                    (default 100)
  --timeline-file FILE                  append each VMI's timeline as JSON lines
  -v N                                  verbosity: 0 warnings and errors, 2 information, 3 and more debug
                                        (default 2; logVerbosity of the KubeVirt object wins)

virt-agent timeline NAMESPACE/NAME [--output table|json|svg]
                                        the steps of a VMI of this node, as the running agent noted them`;

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
      options: {
        'hostname-override': { type: 'string' },
        'helper-dir': { type: 'string', default: '/run/virt-privsep' },
        'kubevirt-private-dir': { type: 'string', default: defaultPrivateDir },
        kubeconfig: { type: 'string' },
        'watchdog-timeout': { type: 'string', default: '30s' },
        'domain-resync-period-seconds': { type: 'string', default: '300' },
        'kube-api-qps': { type: 'string', default: '50' },
        'kube-api-burst': { type: 'string', default: '100' },
        'timeline-file': { type: 'string' },
        v: { type: 'string', short: 'v', default: '2' },
      },
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
