import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { parseClusterConfig } from '../../agent/cluster/config.js';
import type { JsonValue } from '../../agent/json/lossless.js';
import { PanicCounter } from '../../agent/reconcile/panics.js';
import type { GuestAgentInfo } from '../../agent/reconcile/ports.js';
import { accessCredentials } from '../../agent/reconcile/status/access-credentials.js';
import { applyStatusRules } from '../../agent/reconcile/status/apply.js';
import { backupStatus } from '../../agent/reconcile/status/backup-status.js';
import { type Condition, conditionsOf, updateCondition } from '../../agent/reconcile/status/conditions.js';
import { fsFreezeStatus, machine } from '../../agent/reconcile/status/domain-fields.js';
import { commandObstacle } from '../../agent/reconcile/status/guest-agent.js';
import { guestOsInfo } from '../../agent/reconcile/status/guest-os-info.js';
import { type Iso, isoOf } from '../../agent/reconcile/status/iso-size.js';
import { liveMigratable, migratability } from '../../agent/reconcile/status/live-migratable.js';
import { libvirtQuantity, memory } from '../../agent/reconcile/status/memory.js';
import { networkObstacle } from '../../agent/reconcile/status/network-migratable.js';
import type { StatusEvent, StatusPorts, StatusSettings } from '../../agent/reconcile/status/pass.js';
import { paused } from '../../agent/reconcile/status/paused.js';
import { softwareEmulation } from '../../agent/reconcile/status/software-emulation.js';
import { StatIsoRequestSchema } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type { PodVolume } from '../../native/binding.js';
import { statIso } from '../../privhelper/policy/images.js';
import { createPolicy } from '../../privhelper/policy/policy.js';
import { fakePorts } from '../unit/status/fakes.js';
import { loadVectors } from './load.js';
import { domainOf, type JsonObject as Json, vmiOf } from './objects.js';

function settings(configuration: unknown = {}, over: Partial<StatusSettings> = {}): StatusSettings {
  return {
    host: 'node01',
    hostArchitecture: 'amd64',
    hostCpuModel: 'Westmere',
    cluster: parseClusterConfig({ spec: { configuration } }),
    ...over,
  };
}

function withGates(configuration: JsonValue, featureGates: readonly string[] = []): JsonValue {
  return { ...(configuration as Json), developerConfiguration: { featureGates: [...featureGates] } };
}

describe('access-credentials', () => {
  it.each(
    loadVectors<
      { vmi: Json; domain: Json | null; now: string },
      { conditions: Condition[]; events: StatusEvent[] }
    >('reconcile', 'access-credentials'),
  )('REC-035 $name', ({ input, expected }) => {
    const conditions = conditionsOf(vmiOf(input.vmi).status);
    expect(accessCredentials(conditions, domainOf(input.domain), input.now)).toEqual(expected);
  });
});

describe('backup-status', () => {
  it.each(loadVectors<{ vmi: Json; domain: Json | null }, JsonValue>('reconcile', 'backup-status'))(
    'REC-036 $name',
    ({ input, expected }) => {
      const { changedBlockTracking } = vmiOf(input.vmi).status;
      expect(backupStatus(changedBlockTracking, domainOf(input.domain)) ?? null).toEqual(expected);
    },
  );
});

describe('cbt-state', () => {
  it.each(
    loadVectors<{ vmi: Json; domain: Json | null }, { changedBlockTracking: JsonValue; error: null }>(
      'reconcile',
      'cbt-state',
    ),
  )('REC-036 $name', async ({ input, expected }) => {
    const result = await applyStatusRules(
      { vmi: vmiOf(input.vmi), domain: domainOf(input.domain), branchFailed: false },
      fakePorts(),
      settings(),
    );
    expect(result.vmi.status.changedBlockTracking ?? null).toEqual(expected.changedBlockTracking);
  });
});

describe('condition-helpers', () => {
  interface Input {
    op: string;
    conditions: Condition[];
    condition: Condition;
  }
  const cases = loadVectors<Input, { conditions: Condition[] }>('reconcile', 'condition-helpers');

  it.each(cases.filter(({ input }) => input.op === 'updateCondition'))(
    'REC-035 $name',
    ({ input, expected }) => {
      expect(updateCondition(input.conditions, input.condition)).toEqual(
        expected.conditions.map((entry) => expect.objectContaining(entry)),
      );
    },
  );
});

interface AgentInput {
  vmi: Json;
  domain: Json | null;
  now: string;
  supportedGuestAgentVersions: string[];
  stubs?: { guestInfo?: GuestAgentInfo; guestInfoError?: string; launcherClientError?: string };
}

describe('guest-agent-conditions', () => {
  it.each(
    loadVectors<AgentInput, { calls: string[]; conditions: Condition[]; error: string | null }>(
      'reconcile',
      'guest-agent-conditions',
    ),
  )('REC-035 $name', async ({ input, expected }) => {
    const calls: string[] = [];
    const stubs = input.stubs ?? {};
    const ports: StatusPorts = {
      ...fakePorts({ now: Date.parse(input.now) }),
      launchers: {
        get: async () => {
          calls.push('clients.Get');
          if (stubs.launcherClientError !== undefined) throw new Error(stubs.launcherClientError);
          return {
            getGuestInfo: async () => {
              calls.push('launcher.GetGuestInfo');
              if (stubs.guestInfoError !== undefined) throw new Error(stubs.guestInfoError);
              return { guestAgentVersion: '', supportedCommands: [], ...stubs.guestInfo };
            },
          } as never;
        },
      },
    };
    const run = applyStatusRules(
      { vmi: vmiOf(input.vmi), domain: domainOf(input.domain), branchFailed: false },
      ports,
      settings({ supportedGuestAgentVersions: input.supportedGuestAgentVersions }),
    );
    if (expected.error !== null) {
      await expect(run).rejects.toThrow(expected.error);
    } else {
      const others = new Set(['LiveMigratable', 'StorageLiveMigratable']);
      const conditions = (await run).vmi.status.conditions?.filter(({ type }) => !others.has(type));
      expect(conditions).toEqual(expected.conditions);
    }
    expect(calls).toEqual(expected.calls);
  });
});

describe('guest-agent-supported', () => {
  interface Input {
    vmi: Json;
    supportedCommands: { name: string; enabled: boolean }[];
  }
  it.each(loadVectors<Input, { supported: boolean; reason: string }>('reconcile', 'guest-agent-supported'))(
    'REC-035 $name',
    ({ input, expected }) => {
      const obstacle = commandObstacle(vmiOf(input.vmi), input.supportedCommands);
      expect(obstacle).toBe(expected.supported ? undefined : expected.reason);
    },
  );
});

describe('iso-guest-volume-path', () => {
  const mountPoints: Partial<Record<PodVolume, string>> = {
    'ephemeral-disks': '/var/run/kubevirt-ephemeral-disks',
    private: '/var/run/kubevirt-private',
  };
  const uid = '11111111-1111-4111-8111-111111111111';

  /** Where the launcher has what the helper looks at for the agent's question. */
  function isoPathInLauncher(iso: Iso): string {
    const request = create(StatIsoRequestSchema, { pod: { podUid: uid, vmiUid: uid }, iso });
    const { volume, path } = statIso.parse(createPolicy(), request).entry;
    return [mountPoints[volume], ...path].join('/');
  }

  it.each(
    loadVectors<{ namespace: string; name: string; volume: { name: string } }, string>(
      'reconcile',
      'iso-guest-volume-path',
    ),
  )('REC-036 $name', ({ input, expected }) => {
    const iso = isoOf(input.namespace, input.name, input.volume);
    expect(iso === undefined ? '' : isoPathInLauncher(iso)).toBe(expected);
  });
});

describe('libvirt-quantity', () => {
  it.each(
    loadVectors<{ value: number; unit: string }, { bytes: JsonValue; quantity: string } | null>(
      'reconcile',
      'libvirt-quantity',
    ),
  )('REC-036 $name', ({ input, expected }) => {
    // Where KubeVirt's 64-bit arithmetic wraps round, the size is unknown here.
    const wraps = BigInt(input.value) * bytesOf(input.unit) >= 2n ** 63n;
    expect(libvirtQuantity(BigInt(input.value), input.unit)).toBe(wraps ? undefined : expected?.quantity);
  });

  function bytesOf(unit: string): bigint {
    const [, prefix = '', decimal] = /^([KMGTPE])i?(B?)/i.exec(unit) ?? [];
    const power = BigInt(' KMGTPE'.indexOf(prefix.toUpperCase() || ' '));
    return decimal === 'B' && !unit.includes('i') ? 1000n ** power : 1024n ** power;
  }
});

describe('migratable', () => {
  interface Input {
    vmi: Json;
    hostCpuModel: string;
    featureGates?: string[];
  }
  type Shown = { status: string; reason: string; message: string };
  const configuration = loadVectors('reconcile', 'data-migratable-kubevirt-config') as unknown as JsonValue;
  const shown = ({ status, reason = '', message = '' }: Condition): Shown => ({ status, reason, message });

  it.each(
    loadVectors<Input, { LiveMigratable: Shown; StorageLiveMigratable: Shown; blockMigration: boolean }>(
      'reconcile',
      'migratable',
    ),
  )('REC-035 $name', ({ input, expected }) => {
    const result = migratability(
      vmiOf(input.vmi),
      settings(withGates(configuration, input.featureGates), { hostCpuModel: input.hostCpuModel }),
    );
    expect({
      LiveMigratable: shown(result.live),
      StorageLiveMigratable: shown(result.storage),
      blockMigration: result.blockMigration,
    }).toEqual(expected);
  });
});

describe('migratable-condition-update', () => {
  it.each(
    loadVectors<
      { vmi: Json; kubevirtConfig: Json },
      { conditions: Condition[]; events: StatusEvent[]; migrationMethod: string }
    >('reconcile', 'migratable-condition-update'),
  )('REC-035 $name', ({ input, expected }) => {
    const vmi = vmiOf(input.vmi);
    const result = liveMigratable(conditionsOf(vmi.status), vmi, settings(input.kubevirtConfig));
    expect(result).toEqual({
      conditions: expected.conditions,
      events: expected.events,
      migrationMethod: expected.migrationMethod,
    });
  });
});

describe('network-migratable', () => {
  it.each(
    loadVectors<{ vmi: Json; bindings: Json }, { error: string | null }>('reconcile', 'network-migratable'),
  )('REC-035 $name', ({ input, expected }) => {
    const { cluster } = settings({ network: { binding: input.bindings } });
    expect(networkObstacle(vmiOf(input.vmi), cluster.networkBindings) ?? null).toBe(expected.error);
  });
});

describe('panic-metric', () => {
  it.each(loadVectors<Json[], { increment: number; labels: string }[][]>('reconcile', 'panic-metric'))(
    'REC-036 $name',
    ({ input, expected }) => {
      const counter = new PanicCounter();
      const increments = input.map((status) => {
        const panic = counter.next('uid-1', domainOf({ Status: status }));
        return panic === undefined
          ? []
          : [{ increment: 1, labels: `type=${panic.type},bugcheck_code=${panic.bugcheckCode}` }];
      });
      expect(increments).toEqual(expected);
    },
  );
});

describe('paused-condition', () => {
  it.each(
    loadVectors<{ vmi: Json; domain: Json | null; host: string; now: string }, Condition[]>(
      'reconcile',
      'paused-condition',
    ),
  )('REC-035 $name', ({ input, expected }) => {
    const vmi = vmiOf(input.vmi);
    const result = paused(conditionsOf(vmi.status), vmi, domainOf(input.domain), input.host, input.now);
    expect(result).toEqual(expected);
  });
});

describe('software-emulation-condition', () => {
  interface Input {
    vmi: Json;
    domain: Json | null;
    hostArch: string;
    kubevirtConfig: Json;
    now: string;
  }
  it.each(loadVectors<Input, Condition[]>('reconcile', 'software-emulation-condition'))(
    'REC-035 $name',
    ({ input, expected }) => {
      const vmi = vmiOf(input.vmi);
      const result = softwareEmulation(
        conditionsOf(vmi.status),
        vmi,
        domainOf(input.domain),
        settings(input.kubevirtConfig, { hostArchitecture: input.hostArch }),
        input.now,
      );
      expect(result).toEqual(expected);
    },
  );
});

describe('status-fields', () => {
  it.each(loadVectors<{ vmi: Json; domain: Json | null }, Json>('reconcile', 'status-fields'))(
    'REC-036 $name',
    ({ input, expected }) => {
      const { status } = vmiOf(input.vmi);
      const domain = domainOf(input.domain);
      const result = {
        guestOSInfo: guestOsInfo(status.guestOSInfo, domain) ?? {},
        fsFreezeStatus: fsFreezeStatus(status.fsFreezeStatus, domain) || undefined,
        machine: machine(status.machine, domain),
        memory: memory(status.memory, domain),
      };
      // KubeVirt always writes runtimeUser; it is none of these fields.
      const { runtimeUser: _, ...wanted } = expected;
      expect(result).toEqual(wanted);
    },
  );
});

describe('volume-status', () => {
  interface Input {
    vmi: Json;
    domain: Json | null;
    mounted?: Record<string, boolean>;
    isMountedError?: string;
    now?: string;
  }
  interface Expected {
    volumeStatus: Json[] | null;
    events: StatusEvent[];
    requeueAfter: { seconds: number }[];
  }
  it.each(loadVectors<Input, Expected>('reconcile', 'volume-status'))('REC-036 $name', async (vector) => {
    const { input, expected } = vector;
    const ports: StatusPorts = {
      ...fakePorts({ now: Date.parse(input.now ?? '2000-01-01T00:00:00Z') }),
      hotplug: {
        isMounted: async (_vmi, volume) => {
          if (input.isMountedError !== undefined) throw new Error(input.isMountedError);
          return input.mounted?.[volume] ?? false;
        },
      },
    };
    const result = await applyStatusRules(
      { vmi: vmiOf(input.vmi), domain: domainOf(input.domain), branchFailed: true },
      ports,
      settings(),
    );
    const shown = (result.vmi.status.volumeStatus ?? []).map(({ phase, ...status }) =>
      phase ? { ...status, phase } : status,
    );
    expect(shown).toEqual(expected.volumeStatus ?? []);
    expect(result.events.filter(({ reason }) => reason !== 'Migrated')).toEqual(expected.events);
    expect(result.volumesOnTheirWay).toBe(expected.requeueAfter.length > 0);
  });
});
