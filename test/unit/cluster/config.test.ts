import { LosslessNumber } from 'lossless-json';
import { describe, expect, it } from 'vitest';
import {
  type ClusterConfig,
  ClusterConfigError,
  isGateOn,
  parseClusterConfig,
} from '../../../agent/cluster/config.js';
import { gateStates, isFeatureGateOn } from '../../../agent/cluster/feature-gates.js';
import { ClusterConfigWatch } from '../../../agent/cluster/watch.js';
import type { KubeObject } from '../../../agent/kube/objects.js';
import { loadVectors } from '../../vectors/load.js';
import { testLogger } from '../kube/test-logger.js';

const configured = (configuration: unknown) => parseClusterConfig({ spec: { configuration } });

it('feature gates as KubeVirt resolves them', () => {
  interface Input {
    featureGates: string[] | null;
    disabledFeatureGates: string[] | null;
    developerConfigurationNil: boolean;
  }
  interface Expected {
    enabled?: string[];
    addedToDefaultSet?: string[];
    removedFromDefaultSet?: string[];
  }
  const on = (input: Input) => {
    const { featureGates, disabledFeatureGates } = input;
    const developerConfiguration = input.developerConfigurationNil
      ? null
      : { featureGates, disabledFeatureGates };
    const { featureGates: gates } = configured({ developerConfiguration });
    const named = [...(featureGates ?? []), ...(disabledFeatureGates ?? [])];
    return [...new Set([...gateStates.keys(), ...named])]
      .filter((name) => isFeatureGateOn(gates, name))
      .sort();
  };
  const byDefault = on({ featureGates: null, disabledFeatureGates: null, developerConfigurationNil: true });
  for (const { name, input, expected } of loadVectors<Input, Expected>('node', 'featuregate-resolution')) {
    const enabled = on(input);
    if (expected.enabled !== undefined) {
      expect(enabled, name).toEqual(expected.enabled);
      continue;
    }
    expect(
      enabled.filter((gate) => !byDefault.includes(gate)),
      name,
    ).toEqual(expected.addedToDefaultSet ?? []);
    expect(
      byDefault.filter((gate) => !enabled.includes(gate)),
      name,
    ).toEqual(expected.removedFromDefaultSet ?? []);
  }
});

/** KubeVirt writes these defaults into the configuration; here the command line has them. */
function withDefaults({ apiRateLimit, logVerbosity, ...rest }: ClusterConfig): object {
  return {
    ...rest,
    apiRateLimit: { qps: apiRateLimit.qps ?? 50, burst: apiRateLimit.burst ?? 100 },
    logVerbosity: { ...logVerbosity, virtHandler: logVerbosity.virtHandler ?? 2 },
  };
}

it('effective configurations as KubeVirt makes them, as far as they are used here', () => {
  interface Input {
    configuration: Record<string, unknown>;
  }
  interface Expected {
    effective?: Record<string, unknown>;
    topLevelKeysDifferentFromFirstCase?: Record<string, unknown>;
    rejected: boolean;
  }
  const cases = loadVectors<Input, Expected>('node', 'clusterconfig-effective');
  const defaults = cases[0]?.expected.effective;
  if (defaults === undefined) throw new Error('the case of the defaults is missing');
  for (const { name, input, expected } of cases) {
    if (expected.rejected) {
      expect(() => configured(input.configuration), name).toThrow(ClusterConfigError);
      continue;
    }
    // What KubeVirt makes of the object, read again, is the same as what this makes of it.
    const changed = expected.topLevelKeysDifferentFromFirstCase ?? {};
    expect(withDefaults(configured(input.configuration)), name).toEqual(
      withDefaults(configured({ ...defaults, ...changed })),
    );
  }
});

describe('parseClusterConfig', () => {
  it('has the defaults of KubeVirt without a KubeVirt object', () => {
    const config = parseClusterConfig(undefined);
    expect(config).toMatchObject({
      useEmulation: false,
      pvcTolerateLessSpaceUpToPercent: 10,
      minimumReservePvcBytes: 131072,
      evictionStrategy: 'None',
      additionalGuestMemoryOverheadRatio: undefined,
      supportedGuestAgentVersions: ['2.*', '3.*', '4.*', '5.*'],
      memBalloonStatsPeriod: 10,
      smbios: { family: 'KubeVirt', manufacturer: 'KubeVirt', product: 'None', sku: '', version: '' },
      permittedHostDevices: { pciHostDevices: [], mediatedDevices: [] },
      networkBindings: {},
      freePageReportingDisabled: false,
      serialConsoleLogDisabled: false,
      vgaDisplayForEfiGuests: false,
      migrations: { network: undefined, disableTls: false },
    });
    expect(parseClusterConfig({ spec: {} })).toEqual(config);
    expect(isGateOn(config, 'ImageVolume')).toBe(true);
    expect(isGateOn(config, 'Plugins')).toBe(false);
  });

  it('reads what is set', () => {
    const config = parseClusterConfig({
      metadata: { annotations: { 'kubevirt.io/vga-display-efi-x86': '' } },
      spec: {
        configuration: {
          developerConfiguration: { useEmulation: true, featureGates: ['VSOCK'] },
          memBalloonStatsPeriod: new LosslessNumber('0'),
          network: { binding: { passt: { domainAttachmentType: 'tap', migration: {} }, plain: {} } },
          migrations: { network: 'migration', disableTLS: true },
          virtualMachineOptions: { disableFreePageReporting: {} },
        },
      },
    });
    expect(config).toMatchObject({
      useEmulation: true,
      memBalloonStatsPeriod: 0,
      networkBindings: { passt: { domainAttachmentType: 'tap', migration: {} }, plain: {} },
      migrations: { network: 'migration', disableTls: true },
      freePageReportingDisabled: true,
      serialConsoleLogDisabled: false,
      vgaDisplayForEfiGuests: true,
    });
    expect(isGateOn(config, 'VSOCK')).toBe(true);
  });

  it('reads limits of API requests and verbosities; what is not positive is not configured', () => {
    const limit = (tokenBucketRateLimiter: object) =>
      configured({ handlerConfiguration: { restClient: { rateLimiter: { tokenBucketRateLimiter } } } })
        .apiRateLimit;
    expect(limit({ qps: 12.5, burst: 7 })).toEqual({ qps: 12.5, burst: 7 });
    expect(limit({ qps: 12, burst: 0 })).toEqual({ qps: 12, burst: undefined });
    expect(limit({ burst: 9 })).toEqual({ qps: undefined, burst: 9 });
    const { logVerbosity } = configured({
      developerConfiguration: { logVerbosity: { virtHandler: 5, nodeVerbosity: { n1: 9 } } },
    });
    expect(logVerbosity).toEqual({ virtHandler: 5, nodes: new Map([['n1', 9]]) });
  });

  it.each([
    ['text', 'KubeVirt: string instead of object'],
    [{ spec: [] }, 'KubeVirt.spec: array instead of object'],
    [{ spec: { configuration: { smbios: { family: 3 } } } }, 'family'],
    [{ spec: { configuration: { memBalloonStatsPeriod: -1 } } }, 'memBalloonStatsPeriod'],
    [{ spec: { configuration: { memBalloonStatsPeriod: 1.5 } } }, 'memBalloonStatsPeriod'],
    [{ spec: { configuration: { developerConfiguration: { featureGates: 'VSOCK' } } } }, 'featureGates'],
    [{ spec: { configuration: { developerConfiguration: { useEmulation: 'yes' } } } }, 'useEmulation'],
    [{ spec: { configuration: { network: { binding: { x: 1 } } } } }, 'binding.x'],
    [{ spec: { configuration: { supportedGuestAgentVersions: Array(5000).fill('2.*') } } }, 'at most 4096'],
  ])('refuses %j with an error that names the field', (kubevirt, field) => {
    expect(() => parseClusterConfig(kubevirt)).toThrow(ClusterConfigError);
    expect(() => parseClusterConfig(kubevirt)).toThrow(field);
  });
});

describe('ClusterConfigWatch', () => {
  const kubevirt = (configuration: unknown, resourceVersion: string) =>
    ({ metadata: { name: 'kubevirt', resourceVersion }, spec: { configuration } }) as KubeObject;

  it('tells of another configuration only, and keeps the last one that is valid', () => {
    const changes: string[] = [];
    const watch: ClusterConfigWatch = new ClusterConfigWatch(testLogger(), () => {
      changes.push(watch.current().evictionStrategy);
    });
    watch.add(kubevirt({}, '1'));
    watch.update(kubevirt({}, '1'), kubevirt({ evictionStrategy: 'LiveMigrate' }, '2'));
    watch.update(kubevirt({}, '2'), kubevirt({ evictionStrategy: 'LiveMigrate' }, '3'));
    watch.update(kubevirt({}, '3'), kubevirt({ evictionStrategy: 7 }, '4'));
    expect(watch.current().evictionStrategy).toBe('LiveMigrate');
    watch.update(kubevirt({}, '4'), kubevirt({}, '5'));
    expect(changes).toEqual(['LiveMigrate', 'None']);
  });

  it('does not take a failure of those who are told for one of the object', () => {
    const lines: string[] = [];
    const failure = new Error('queue is broken');
    const watch = new ClusterConfigWatch(testLogger(lines), () => {
      throw failure;
    });
    expect(() => watch.add(kubevirt({ evictionStrategy: 'LiveMigrate' }, '1'))).toThrow(failure);
    expect(watch.current().evictionStrategy).toBe('LiveMigrate');
    expect(lines).toEqual([]);
    watch.add(kubevirt({ evictionStrategy: 7 }, '2'));
    expect(lines.join('')).toContain('not valid');
  });
});
