import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { parseClusterConfig } from '../../../agent/cluster/config.js';
import { readDomain } from '../../../agent/domains/domain-json.js';
import { applyStatusRules } from '../../../agent/reconcile/status/apply.js';
import { commandObstacle, isAgentConnected } from '../../../agent/reconcile/status/guest-agent.js';
import type { Iso } from '../../../agent/reconcile/status/iso-size.js';
import type { StatusPorts, StatusSettings } from '../../../agent/reconcile/status/pass.js';
import { volumeMigration } from '../../../agent/reconcile/status/volume-migratable.js';
import { fakePorts } from './fakes.js';

function settings(configuration: object = {}): StatusSettings {
  return {
    host: 'node01',
    hostArchitecture: 'amd64',
    hostCpuModel: 'Westmere',
    cluster: parseClusterConfig({ spec: { configuration } }),
  };
}

function vmi(status: object = {}, spec: object = {}): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid: 'u1' },
    spec: { domain: { devices: {} }, ...spec },
    status: { phase: 'Running', nodeName: 'node01', activePods: { p1: 'node01', p0: 'node00' }, ...status },
  } as Vmi;
}

const domain = readDomain({ Status: { Status: 'Running', Reason: 'Unknown' } });

function apply(object: Vmi, over: Partial<StatusPorts> = {}, configuration = {}, branchFailed = false) {
  const ports = { ...fakePorts({ now: Date.parse('2000-01-01T00:00:00Z') }), ...over };
  return applyStatusRules({ vmi: object, domain, branchFailed }, ports, settings(configuration));
}

describe('applyStatusRules', () => {
  it('REC-037 changes nothing in a second pass, and never the object that it was given', async () => {
    const object = vmi({ volumeStatus: [{ name: 'data', target: '', phase: 'Ready', hotplugVolume: {} }] });
    object.spec.volumes = [{ name: 'data', persistentVolumeClaim: { claimName: 'c' } }];
    const before = structuredClone(object);
    const first = await apply(object);
    expect(object).toEqual(before);
    expect(first.volumesOnTheirWay).toBe(true);
    const second = await apply(first.vmi);
    expect(second.vmi.status).toEqual(first.vmi.status);
    expect(second.events).toEqual([]);
    expect(second.volumesOnTheirWay).toBe(true);
  });

  it('AFT-032 leaves the phase of a removed volume alone while nobody can tell whether it is mounted', async () => {
    const object = vmi({ volumeStatus: [{ name: 'data', target: '', phase: 'Ready', hotplugVolume: {} }] });
    for (const [isMounted, phase] of [
      [undefined, 'Ready'],
      [true, 'Ready'],
      [false, 'UnMountedFromPod'],
    ] as const) {
      const { vmi: written, volumesOnTheirWay } = await apply(object, {
        hotplug: { isMounted: async () => isMounted },
      });
      expect(written.status.volumeStatus?.[0]?.phase).toBe(phase);
      expect(volumesOnTheirWay).toBe(true);
    }
  });

  it('REC-036 sets the size of ISO volumes while the VM runs', async () => {
    const spec = {
      domain: { devices: { disks: [{ name: 'init' }, { name: 'root' }] } },
      volumes: [
        { name: 'init', cloudInitNoCloud: {} },
        { name: 'root', containerDisk: { image: 'i' } },
      ],
    };
    const status = {
      volumeStatus: [
        { name: 'init', target: '' },
        { name: 'root', target: '' },
      ],
    };
    const asked: unknown[] = [];
    const facts = {
      selinuxContext: async () => undefined,
      isoSize: async (_vmi: Vmi, pod: string, iso: Iso) => {
        asked.push([pod, iso]);
        return 1024;
      },
    };
    const { vmi: running } = await apply(vmi(status, spec), { facts });
    expect(asked).toEqual([['p1', { case: 'cloudInitNoCloud', value: { namespace: 'ns', vmiName: 'vm' } }]]);
    expect(running.status.volumeStatus?.map(({ size }) => size)).toEqual([1024, undefined]);
    await apply(vmi({ ...status, phase: 'Scheduled' }, spec), { facts });
    await apply(running, { facts });
    expect(asked).toHaveLength(1);
    const unread = { ...facts, isoSize: () => Promise.reject(new Error('no such file')) };
    const { vmi: without } = await apply(vmi(status, spec), { facts: unread });
    expect(without.status.volumeStatus?.map(({ size }) => size)).toEqual([undefined, undefined]);
  });

  it('AFT-047 keeps an SELinux label with categories when a later one has none', async () => {
    const reads = (label: string | undefined) => ({
      facts: { selinuxContext: async () => label, isoSize: () => Promise.reject(new Error('no ISO here')) },
    });
    const full = 'system_u:object_r:container_file_t:s0:c1,c2';
    const bare = 'system_u:object_r:container_file_t:s0';
    expect((await apply(vmi(), reads('none'))).vmi.status.selinuxContext).toBe('none');
    expect((await apply(vmi({ selinuxContext: bare }), reads(full))).vmi.status.selinuxContext).toBe(full);
    expect((await apply(vmi({ selinuxContext: full }), reads(bare))).vmi.status.selinuxContext).toBe(full);
    expect((await apply(vmi({ selinuxContext: full }), reads(undefined))).vmi.status.selinuxContext).toBe(
      full,
    );
  });

  it('STO-032 leaves the SELinux label as it is when none could be read, and asks for the pod on this node', async () => {
    const asked: (string | undefined)[] = [];
    const selinuxContext = async (_vmi: unknown, podUid: string | undefined) => {
      asked.push(podUid);
      throw new Error('no such launcher');
    };
    const facts = { selinuxContext, isoSize: () => Promise.reject(new Error('no ISO here')) };
    const status = { selinuxContext: 'u:r:t:s0', nodeName: 'n1', activePods: { p2: 'n2', p1: 'n1' } };
    expect((await apply(vmi(status), { facts })).vmi.status.selinuxContext).toBe('u:r:t:s0');
    expect(asked).toEqual(['p1']);
  });

  it('REC-036 marks the trackers of checkpoints before it enables block tracking', async () => {
    const marked: string[] = [];
    const tracking = vmi({ changedBlockTracking: { state: 'Initializing' } });
    const backupTrackers = {
      list: () => [
        { name: 't1', hasLatestCheckpoint: true, checkpointRedefinitionRequired: false },
        { name: 't2', hasLatestCheckpoint: false, checkpointRedefinitionRequired: false },
        { name: 't3', hasLatestCheckpoint: true, checkpointRedefinitionRequired: true },
      ],
      requireRedefinition: async (_vmi: unknown, tracker: string) => {
        marked.push(tracker);
      },
    };
    const result = await apply(tracking, { backupTrackers });
    expect([marked, result.vmi.status.changedBlockTracking?.state]).toEqual([['t1'], 'Enabled']);

    const failing = {
      ...backupTrackers,
      requireRedefinition: async () => Promise.reject(new Error('conflict')),
    };
    await expect(apply(tracking, { backupTrackers: failing })).rejects.toThrow(
      'failed to mark tracker t1 for checkpoint redefinition: conflict',
    );
  });

  it('aborts when the network status cannot be told', async () => {
    const netStat = { updateStatus: async () => Promise.reject(new Error('no')) };
    await expect(apply(vmi(), { netStat })).rejects.toThrow('no');
  });

  describe('checksums', () => {
    const status = (entry: object = {}) => ({ volumeStatus: [{ name: 'root', target: 'vda', ...entry }] });
    const spec = { volumes: [{ name: 'root', containerDisk: { image: 'i' } }] };
    const noImageVolumes = { developerConfiguration: { disabledFeatureGates: ['ImageVolume'] } };
    let computed = 0;
    const containerDisks = {
      computeChecksums: () => {
        computed++;
        return { containerDisks: new Map([['root', 42]]), kernel: 7 };
      },
    };

    it.each([{}, { containerDiskVolume: {} }, { containerDiskVolume: { checksum: 0 } }])(
      'STO-014 are written where they are missing: %j',
      async (entry) => {
        computed = 0;
        const { vmi: result } = await apply(vmi(status(entry), spec), { containerDisks }, noImageVolumes);
        expect(result.status.volumeStatus?.[0]?.containerDiskVolume?.checksum).toBe(42);
        expect(result.status.kernelBootStatus).toEqual({ kernelInfo: { checksum: 7 } });
        await apply(result, { containerDisks }, noImageVolumes);
        expect(computed).toBe(1);
      },
    );

    it('STO-014 are missing of no volume that is null where a container disk would be', async () => {
      const volumes = [{ name: 'root', containerDisk: null, persistentVolumeClaim: { claimName: 'c' } }];
      const given = vmi(status(), { volumes } as never);
      computed = 0;
      expect((await apply(given, { containerDisks }, noImageVolumes)).vmi.status.volumeStatus).toHaveLength(
        1,
      );
      expect(computed).toBe(0);
    });

    it('STO-014 are not asked for with image volumes, after a failed branch or while deleting', async () => {
      computed = 0;
      await apply(vmi(status(), spec), { containerDisks });
      await apply(vmi(status(), spec), { containerDisks }, noImageVolumes, true);
      const deleting = vmi(status(), spec);
      deleting.metadata.deletionTimestamp = '2000-01-01T00:00:00Z';
      await apply(deleting, { containerDisks }, noImageVolumes);
      expect(computed).toBe(0);
    });
  });
});

it('REC-035 a guest has an agent as long as there is the condition, whatever it says', () => {
  expect(isAgentConnected([{ type: 'AgentConnected', status: 'False' }])).toBe(true);
  expect(isAgentConnected([{ type: 'Ready', status: 'True' }])).toBe(false);
});

describe('entries of the same name', () => {
  it('REC-035 the later one of a guest agent command counts', () => {
    const basic =
      'ping get-time info shutdown network-get-interfaces get-fsinfo get-host-name get-users get-timezone get-osinfo';
    const all = basic.split(' ').map((name) => ({ name: `guest-${name}`, enabled: true }));
    const ping = { name: 'guest-ping', enabled: false };
    expect(commandObstacle(vmi(), [ping, ...all])).toBeUndefined();
    expect(commandObstacle(vmi(), [...all, ping])).toMatch('required basic commands');
  });

  it('REC-035 any read-only CD-ROM makes a volume one that every node has', () => {
    const disks = [
      { name: 'v', disk: {} },
      { name: 'v', cdrom: {} },
    ];
    const volumes = [{ name: 'v', containerDisk: { image: 'i' } }];
    const given = vmi({}, { volumes, domain: { devices: { disks } } });
    expect(volumeMigration(given).blockMigration).toBe(false);
  });
});
