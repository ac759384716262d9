import { toJson } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import type { Phase, Vmi, VmiStatus } from '../../agent/api/vmi.js';
import { parseClusterConfig } from '../../agent/cluster/config.js';
import { withPhaseTransition, withSynchronized } from '../../agent/reconcile/conditions.js';
import { graceState } from '../../agent/reconcile/grace-period.js';
import { parseHostTopology } from '../../agent/reconcile/host-topology.js';
import { IoErrorBackoff } from '../../agent/reconcile/io-errors.js';
import { preallocatedVolumes, virtualMachineOptions } from '../../agent/reconcile/options.js';
import { PanicCounter } from '../../agent/reconcile/panics.js';
import { calculatePhase, phaseNeedsProbe } from '../../agent/reconcile/phase.js';
import {
  domainMigrated,
  domainPausedFailedPostCopy,
  isMigrating,
  isMigrationInProgress,
} from '../../agent/reconcile/predicates.js';
import { replacePvcByHostDisk } from '../../agent/reconcile/pvc-hostdisk.js';
import { stopDomain, stopVm } from '../../agent/reconcile/shutdown.js';
import { rfc3339 } from '../../agent/reconcile/time.js';
import { SriovHotplug } from '../../agent/reconcile/update/sriov-hotplug.js';
import { VirtualMachineOptionsSchema } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { domainOf, key, vmiOf, World } from '../unit/reconcile/world.js';
import { loadVectors } from './load.js';

const start = Date.parse('2000-01-01T00:00:00Z');

function present(json: object): Vmi {
  const vmi = vmiOf(json);
  if (vmi === undefined) throw new Error('the case has no VMI');
  return vmi;
}

describe('phase', () => {
  for (const file of ['phase-status-reason', 'phase-destroyed', 'phase-random']) {
    it(`REC-029 ${file}`, () => {
      for (const { name, input, expected } of loadVectors<PhaseInput, Phase>('reconcile', file)) {
        const vmi = present(input.vmi);
        expect(calculatePhase(vmi, domainOf(input.domain), undefined).phase, name).toBe(expected);
      }
    });
  }

  it('REC-029 AFT-015 phase-no-domain', () => {
    for (const { name, input, expected } of loadVectors<NoDomainInput, NoDomainExpected>(
      'reconcile',
      'phase-no-domain',
    )) {
      const vmi = present(input.vmi);
      const probed = phaseNeedsProbe(vmi, undefined);
      const { launcher } = input;
      if (vmi.status.phase === 'Running' && !expected.launcherProbed && expected.phase !== 'Running') {
        // v1.9.0 gives a Running VMI up without asking its launcher.
        expect(probed, name).toBe(true);
        if (launcher.error !== undefined) continue;
        const result = calculatePhase(vmi, undefined, launcher);
        const dead = launcher.initialized && launcher.unresponsive;
        expect(result.phase, name).toBe(dead ? expected.phase : 'Running');
        expect(result.requeueAfterMs, name).toBe(launcher.initialized ? undefined : 1000);
        continue;
      }
      expect(probed, name).toBe(expected.launcherProbed);
      if (launcher.error !== undefined && probed) {
        expect(expected.error, name).not.toBeNull();
        continue;
      }
      const result = calculatePhase(vmi, undefined, launcher);
      expect(result.phase, name).toBe(expected.phase);
      const requeues = result.requeueAfterMs === undefined ? [] : [{ seconds: result.requeueAfterMs / 1000 }];
      expect(requeues, name).toEqual(expected.requeueAfter.map(({ seconds }) => ({ seconds })));
    }
  });
});

interface PhaseInput {
  vmi: object;
  domain: object | null;
}
interface NoDomainInput {
  vmi: object;
  launcher: { initialized: boolean; unresponsive: boolean; error?: string };
}
interface NoDomainExpected {
  error: string | null;
  launcherProbed: boolean;
  phase: Phase;
  requeueAfter: { seconds: number }[];
}

it('migration-predicates', () => {
  for (const { name, input, expected } of loadVectors<PhaseInput & { now: string }, object>(
    'reconcile',
    'migration-predicates',
  )) {
    const vmi = present(input.vmi);
    const domain = domainOf(input.domain);
    const answers = {
      domainMigrated: domainMigrated(domain),
      domainPausedFailedPostCopy: domainPausedFailedPostCopy(domain),
      isMigrating: isMigrating(vmi, Date.parse(input.now)),
      isMigrationInProgress: isMigrationInProgress(vmi, domain),
    };
    expect(answers, name).toEqual(expected);
  }
});

describe('conditions', () => {
  type Conditions = NonNullable<VmiStatus['conditions']>;
  interface Input {
    op: string;
    conditions: Conditions;
    error: string | null;
    now: string;
    oldPhase: Phase;
    newPhase: Phase;
    phaseTransitionTimestamps: NonNullable<VmiStatus['phaseTransitionTimestamps']>;
  }
  const cases = loadVectors<Input, { conditions: Conditions; changed: boolean }>(
    'reconcile',
    'condition-helpers',
  );

  it('REC-034 condition-helpers: Synchronized', () => {
    for (const { name, input, expected } of cases.filter(({ input: { op } }) => op === 'checkFailure')) {
      const error = input.error === null ? undefined : new Error(input.error);
      const result = withSynchronized(input.conditions, error, Date.parse(input.now));
      expect(result, name).toEqual(expected.conditions);
    }
  });

  it('REC-032 condition-helpers: phase transitions', () => {
    for (const { name, input, expected } of cases.filter(({ input: { op } }) => op === 'phaseTransition')) {
      const { phaseTransitionTimestamps, oldPhase, newPhase } = input;
      const result = withPhaseTransition(
        phaseTransitionTimestamps,
        oldPhase,
        newPhase,
        Date.parse(input.now),
      );
      expect(result, name).toEqual(expected);
    }
  });
});

describe('shutdown', () => {
  interface GraceInput {
    terminationGracePeriodSeconds: number | null;
    domainDeletionGracePeriodSeconds: number | null;
    domainDeletionTimestampSecondsAgo: number | null;
    now: string;
  }
  interface StopExpected {
    calls: string[];
    error: string | null;
    events: object[];
    requeueAfter: object[];
    gracePeriodExpired: boolean;
    timeLeftSeconds: number;
  }

  it('REC-028 REC-022 REC-023 grace-period', async () => {
    for (const { name, input, expected } of loadVectors<GraceInput, StopExpected>(
      'reconcile',
      'grace-period',
    )) {
      const now = Date.parse(input.now);
      const ago = input.domainDeletionTimestampSecondsAgo;
      const grace = {
        ...(input.domainDeletionGracePeriodSeconds === null
          ? {}
          : { DeletionGracePeriodSeconds: input.domainDeletionGracePeriodSeconds }),
        ...(ago === null ? {} : { DeletionTimestamp: rfc3339(now - ago * 1000) }),
      };
      const domain = domainOf({
        Status: { Status: 'Running' },
        Spec: { Metadata: { KubeVirt: { UID: 'uid-1', GracePeriod: grace } } },
      });
      const seconds = input.terminationGracePeriodSeconds;
      const state = graceState(seconds ?? undefined, domain, now);
      expect(state.expired, name).toBe(expected.gracePeriodExpired);
      expect(state.secondsLeft ?? -1, name).toBe(expected.timeLeftSeconds);

      const world = new World();
      const vmi = present({
        metadata: { namespace: 'default', name: 'testvmi', uid: 'uid-1' },
        ...(seconds === null ? {} : { spec: { terminationGracePeriodSeconds: seconds } }),
      });
      const ref = { namespace: 'default', name: 'testvmi', uid: 'uid-1' };
      await stopDomain(world.deps(), { key, ref, vmi, domain }, true);
      expect(world.calls, name).toEqual(expected.calls);
      expect(world.events, name).toEqual(expected.events);
      expect(world.requeues, name).toEqual(expected.requeueAfter);
    }
  });

  it('REC-028 shutdown-commands', async () => {
    interface Input {
      domainHasGracePeriod: boolean;
      domainStatus: string;
      fail: string;
      tryGracefully: boolean;
    }
    for (const { name, input, expected } of loadVectors<Input, StopExpected>(
      'reconcile',
      'shutdown-commands',
    )) {
      const world = new World();
      world.stubs =
        {
          client: { launcherClientError: 'no socket' },
          ping: { launcherPingError: 'ping failed' },
          kill: { KillVirtualMachineError: 'kill failed' },
          shutdown: { ShutdownVirtualMachineError: 'shutdown failed' },
        }[input.fail] ?? {};
      const domain = domainOf({
        Status: { Status: input.domainStatus },
        Spec: {
          Metadata: {
            KubeVirt: {
              UID: 'uid-1',
              ...(input.domainHasGracePeriod ? { GracePeriod: { DeletionGracePeriodSeconds: 30 } } : {}),
            },
          },
        },
      });
      const vmi = present({ metadata: { namespace: 'default', name: 'testvmi', uid: 'uid-1' } });
      const ref = { namespace: 'default', name: 'testvmi', uid: 'uid-1' };
      const error = await stopVm(world.deps(), { key, ref, vmi, domain }, input.tryGracefully).then(
        () => null,
        (thrown: Error) => thrown.message,
      );
      expect(error, name).toBe(expected.error);
      expect(world.calls, name).toEqual(expected.calls);
      expect(world.events, name).toEqual(expected.events);
      expect(world.requeues, name).toEqual(expected.requeueAfter);
    }
  });
});

it('REC-039 io-error-retry', () => {
  interface Input {
    initialWaitSeconds: number;
    maxWaitSeconds: number;
    maxFailResponseSeconds: number;
    steps: { advanceSeconds: number; failure: boolean }[];
  }
  for (const { name, input, expected } of loadVectors<Input, { delay: boolean; seconds: number }[]>(
    'reconcile',
    'io-error-retry',
  )) {
    let now = start;
    const backoff = new IoErrorBackoff(
      { now: () => now },
      {
        initialWaitMs: input.initialWaitSeconds * 1000,
        maxWaitMs: input.maxWaitSeconds * 1000,
        maxResponseMs: input.maxFailResponseSeconds * 1000,
      },
    );
    const answers = input.steps.map(({ advanceSeconds, failure }) => {
      now += advanceSeconds * 1000;
      return backoff.delay('uid-1', failure);
    });
    expect(
      answers.map((delayMs) => ({ delay: delayMs !== undefined, ms: delayMs ?? 0 })),
      name,
    ).toEqual(expected.map(({ delay, seconds }) => ({ delay, ms: delay ? seconds * 1000 : 0 })));
  }
});

it('REC-021 vm-options', () => {
  interface Input {
    capabilitiesXml: string | null;
    kubevirtConfig: object;
    vmi: object;
  }
  for (const { name, input, expected } of loadVectors<Input, { panic?: string }>('reconcile', 'vm-options')) {
    const vmi = present(input.vmi);
    const options = toJson(
      VirtualMachineOptionsSchema,
      virtualMachineOptions({
        vmi,
        preallocatedVolumes: preallocatedVolumes(vmi),
        config: parseClusterConfig({ spec: { configuration: input.kubevirtConfig } }),
        topology: input.capabilitiesXml === null ? undefined : parseHostTopology(input.capabilitiesXml),
        pluginsJson: new Uint8Array(),
      }),
      { useProtoFieldName: true },
    );
    if (expected.panic !== undefined) {
      // Capabilities without topology crash v1.9.0; here they are a host without cells.
      expect(options, name).toMatchObject({ topology: {} });
      continue;
    }
    expect(withPlainNumbers(options), name).toEqual(expected);
  }
});

/** 64-bit numbers are texts in proto3 JSON and numbers in the vectors. */
function withPlainNumbers(value: unknown, field = ''): unknown {
  if (Array.isArray(value)) return value.map((item) => withPlainNumbers(item, field));
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(
      Object.entries(value).map(([name, inner]) => [name, withPlainNumbers(inner, name)]),
    );
  }
  return ['amount', 'count', 'value'].includes(field) ? Number(value) : value;
}

it('REC-020 replace-pvc-by-hostdisk', () => {
  for (const { name, input, expected } of loadVectors<
    { vmi: object },
    { error: string | null; volumes: object[] }
  >('reconcile', 'replace-pvc-by-hostdisk')) {
    const vmi = present(input.vmi);
    const before = JSON.stringify(vmi);
    let result = vmi;
    let error: string | null = null;
    try {
      result = replacePvcByHostDisk(vmi);
    } catch (thrown) {
      error = (thrown as Error).message;
    }
    expect(error, name).toBe(expected.error);
    expect(result.spec.volumes ?? [], name).toEqual(expected.volumes ?? []);
    expect(JSON.stringify(vmi), name).toBe(before);
  }
});

it('panic-metric', () => {
  interface Step {
    PanicCount: number;
    GuestPanicInfo?: object;
  }
  for (const { name, input, expected } of loadVectors<Step[], { increment: number; labels: string }[][]>(
    'reconcile',
    'panic-metric',
  )) {
    const counter = new PanicCounter();
    input.forEach((status, index) => {
      const panic = counter.next('uid-1', domainOf({ Status: status }));
      const labels = panic && `type=${panic.type},bugcheck_code=${panic.bugcheckCode}`;
      expect(labels, `${name} ${index}`).toBe(expected[index]?.[0]?.labels);
    });
  }
});

it('workqueue-rate: SR-IOV executor', () => {
  const cases = loadVectors<{ durationSeconds: number; pollSeconds?: number }, number[]>(
    'reconcile',
    'workqueue-rate',
  );
  for (const { name, input, expected } of cases) {
    if (input.pollSeconds === undefined) continue;
    let seconds = 0;
    const hotplug = new SriovHotplug({ now: () => start + seconds * 1000 });
    const runs: number[] = [];
    while (seconds < input.durationSeconds) {
      seconds += input.pollSeconds;
      if (hotplug.turn('uid-1').run) runs.push(seconds);
    }
    expect(runs, name).toEqual(expected);
  }
});
