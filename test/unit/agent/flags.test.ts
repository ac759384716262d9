import { describe, expect, it } from 'vitest';
import { parseFlags, UsageError } from '../../../agent/flags.js';

describe('flags', () => {
  it('has the defaults of virt-handler', () => {
    expect(parseFlags([], { NODE_NAME: 'node01' })).toMatchObject({
      nodeName: 'node01',
      privateDir: '/var/run/kubevirt-private',
      watchdogTimeoutSeconds: 30,
      domainResyncPeriodSeconds: 300,
      kubeApiQps: 50,
      kubeApiBurst: 100,
      logLevel: 'info',
    });
  });

  it('takes --name value and --name=value; the flag wins over the environment', () => {
    const flags = parseFlags(['--hostname-override', 'n2', '--watchdog-timeout=1m30s', '-v', '4'], {
      NODE_NAME: 'n1',
    });
    expect(flags).toMatchObject({ nodeName: 'n2', watchdogTimeoutSeconds: 90, logLevel: 'debug' });
  });

  it.each([
    [['--no-such-flag'], 'no-such-flag'],
    [['--watchdog-timeout', 'soon'], '--watchdog-timeout: soon'],
    [['--watchdog-timeout', ''], '--watchdog-timeout'],
    [['--domain-resync-period-seconds', '0'], '--domain-resync-period-seconds: 0'],
    [['--kube-api-qps', '1e3'], '--kube-api-qps: 1e3'],
    [['stray'], 'stray'],
  ])('refuses %j and names it', (args, named) => {
    expect(() => parseFlags(args, {})).toThrow(UsageError);
    expect(() => parseFlags(args, {})).toThrow(named);
  });
});
