import { describe, expect, it } from 'vitest';
import type { Domain } from '../../../agent/api/domain.js';
import type { Phase, Vmi, VmiSpec, VmiStatus } from '../../../agent/api/vmi.js';
import { parseDomain } from '../../../agent/domains/domain-json.js';
import { createLogger } from '../../../agent/log/log.js';
import { HelperHypervisor, locksMemory } from '../../../agent/resources/hypervisor.js';
import {
  leastLockedMemory,
  memoryOverhead,
  type OverheadSettings,
} from '../../../agent/resources/memory-overhead.js';
import { PodProcess } from '../../../gen/virtprivsep/privhelper/v1/resource_pb.js';

type DomainSpec = NonNullable<VmiSpec['domain']>;
const pod = { podUid: 'p', vmiUid: 'u' };
const settings: OverheadSettings = { architecture: 'amd64', hypervisor: 'kvm', ratio: undefined };

function vmi(domain: Partial<DomainSpec>, status: VmiStatus = {}): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'default', uid: 'u' },
    spec: { domain: { devices: {}, ...domain } } as VmiSpec,
    status,
  };
}

const pinned = (cpus: string): Domain =>
  parseDomain(JSON.stringify({ Spec: { CPUTune: { EmulatorPin: { CPUSet: cpus } } } }));

/** Calls in order; `failing` names one that fails. */
function world(failing?: string, overhead = settings) {
  const calls: unknown[] = [];
  const lines: string[] = [];
  const call =
    (name: string) =>
    async (of: typeof pod, argument: unknown): Promise<boolean> => {
      expect(of).toBe(pod);
      if (name === failing) throw new Error('no');
      calls.push([name, argument]);
      return true;
    };
  const hypervisor = new HelperHypervisor({
    helper: {
      setMemlock: call('setMemlock'),
      isolateEmulator: call('isolateEmulator'),
      scheduleVcpus: call('scheduleVcpus'),
      affinePit: call('affinePit'),
    },
    pods: { find: async () => pod },
    overhead: () => overhead,
    log: createLogger({
      component: 'test',
      level: 'debug',
      write: (line) => lines.push(line),
      now: () => new Date(0),
    }),
  });
  return { hypervisor, calls, lines };
}

const passthrough: [string, Partial<DomainSpec>][] = [
  ['a GPU', { devices: { gpus: [{ name: 'a', deviceName: 'b' }] } }],
  ['a host device', { devices: { hostDevices: [{ name: 'a', deviceName: 'b' }] } }],
  ['an SR-IOV interface', { devices: { interfaces: [{ name: 'a', sriov: {} }] } }],
];
const confidential: [string, Partial<DomainSpec>][] = [
  ['SEV', { launchSecurity: { sev: {} } }],
  ['SNP', { launchSecurity: { snp: {} } }],
];

describe('locked memory', () => {
  it.each([
    ...passthrough,
    ...confidential,
    ['real-time CPUs', { cpu: { realtime: {} } }],
    ['reservedOverhead', { memory: { reservedOverhead: { memLock: 'Required' } } }],
  ] as [string, Partial<DomainSpec>][])('AFT-049 is lifted for %s', async (_what, domain) => {
    const { hypervisor, calls } = world();
    await hypervisor.adjustResources(vmi(domain));
    expect(calls).toEqual([['setMemlock', PodProcess.VIRTQEMUD]]);
  });

  it.each([
    ['nothing of that', {}],
    ['a bridge', { devices: { interfaces: [{ name: 'a', bridge: {} }] } }],
    ['TDX', { launchSecurity: { tdx: {} } }],
    ['dedicated CPUs', { cpu: { dedicatedCpuPlacement: true } }],
    ['reservedOverhead without it', { memory: { reservedOverhead: { memLock: 'NotRequired' } } }],
  ] as [string, Partial<DomainSpec>][])('AFT-049 is left alone for %s', async (_what, domain) => {
    const { hypervisor, calls } = world();
    expect(locksMemory(vmi(domain), 'kvm')).toBe(false);
    await hypervisor.adjustResources(vmi(domain));
    expect(calls).toEqual([]);
  });

  it.each<[Phase, VmiStatus['migrationState'], PodProcess]>([
    ['Scheduled', undefined, PodProcess.VIRTQEMUD],
    ['Running', undefined, PodProcess.QEMU],
    ['Running', {}, PodProcess.VIRTQEMUD],
    ['Running', { targetNodeDomainDetected: false }, PodProcess.VIRTQEMUD],
    ['Running', { targetNodeDomainDetected: true }, PodProcess.QEMU],
  ])(
    'STO-029 of a VMI in phase %s with migration state %j is that of %s',
    async (phase, migrationState, process) => {
      const { hypervisor, calls } = world();
      const status = { phase, ...(migrationState === undefined ? {} : { migrationState }) };
      await hypervisor.adjustResources(vmi({ launchSecurity: { sev: {} } }, status));
      expect(calls).toEqual([['setMemlock', process]]);
    },
  );

  it('that cannot be lifted is an error that says how much the VM takes', async () => {
    const guest = vmi({ memory: { guest: '2Gi' }, devices: { gpus: [{ name: 'a', deviceName: 'b' }] } });
    const least = leastLockedMemory(guest, settings);
    await expect(world('setMemlock').hypervisor.adjustResources(guest)).rejects.toThrow(
      `virtqemud must be able to lock ${least} bytes: no`,
    );
  });

  it('AFT-058 a recorded overhead is used instead of the formula, the migration’s before the other', async () => {
    const domain = { memory: { guest: '1G' } };
    const formula = memoryOverhead(vmi(domain), settings);
    const memory = { memoryOverhead: '123M' };
    const migrationState = { targetMemoryOverhead: '77M' };
    expect(memoryOverhead(vmi(domain, { memory }), settings)).toBe(123_000_000n);
    expect(memoryOverhead(vmi(domain, { memory, migrationState }), settings)).toBe(77_000_000n);
    expect(leastLockedMemory(vmi(domain, { memory }), settings)).toBe(1_123_000_000n);
    expect(leastLockedMemory(vmi(domain), settings)).toBe(1_000_000_000n + formula);
    const none = { migrationState: { targetMemoryOverhead: null }, memory: { memoryOverhead: null } };
    expect(memoryOverhead(vmi(domain, none as unknown as VmiStatus), settings)).toBe(formula);
    // The cluster's ratio is part of the formula.
    expect(memoryOverhead(vmi(domain, { memory }), { ...settings, ratio: '2' })).toBe(123_000_000n);
    const { hypervisor, lines } = world();
    await hypervisor.adjustResources(vmi({ ...domain, launchSecurity: { sev: {} } }, { memory }));
    expect(lines.join()).toContain('the VM takes 1123000000 bytes');
  });
});

describe('housekeeping', () => {
  const isolated = { cpu: { dedicatedCpuPlacement: true, isolateEmulatorThread: true } };
  const running: VmiStatus = { phase: 'Running' };

  it.each([
    ['without domain', undefined, []],
    ['without emulatorpin', parseDomain('{}'), []],
    ['with emulatorpin', pinned('0-1,4,4'), [0, 1, 4]],
  ])('STO-030 isolates the emulator %s', async (_what, domain, cpus) => {
    const { hypervisor, calls } = world();
    await hypervisor.handleHousekeeping(vmi(isolated, running), domain);
    expect(calls).toEqual([['isolateEmulator', cpus]]);
  });

  it.each([
    ['3-1', 'emulatorpin of the domain names no CPU: "3-1"'],
    ['0-200', 'has more than 101 CPUs'],
    ['x', '"x" is no list of CPUs'],
  ])('refuses emulatorpin %j', async (list, message) => {
    const { hypervisor, calls } = world();
    const handled = hypervisor.handleHousekeeping(vmi(isolated, running), pinned(list));
    await expect(handled).rejects.toThrow(message);
    await expect(handled).rejects.toThrow('failed to isolate the emulator thread: ');
    expect(calls).toEqual([]);
  });

  it.each<[string, Partial<DomainSpec>, VmiStatus, unknown[]]>([
    ['nothing for an ordinary VM', {}, {}, []],
    ['nothing for isolation alone', { cpu: { isolateEmulatorThread: true } }, {}, []],
    ['the timer of dedicated CPUs', { cpu: { dedicatedCpuPlacement: true } }, {}, [['affinePit', false]]],
    ['all vCPUs without a mask', { cpu: { realtime: {} } }, {}, [['scheduleVcpus', []]]],
    ['those of the mask', { cpu: { realtime: { mask: '0-2,^1' } } }, {}, [['scheduleVcpus', [0, 2]]]],
    ['none where the mask has none', { cpu: { realtime: { mask: '^1' } } }, {}, []],
    ['none that a vCPU is not called', { cpu: { realtime: { mask: '007,5000' } } }, {}, []],
    [
      'a mask of more vCPUs than there can be',
      { cpu: { realtime: { mask: '1022-999999999999' } } },
      {},
      [['scheduleVcpus', [1022, 1023]]],
    ],
    [
      'both',
      { cpu: { dedicatedCpuPlacement: true, realtime: {} } },
      { phase: 'Scheduled' },
      [
        ['scheduleVcpus', []],
        ['affinePit', true],
      ],
    ],
    ['nothing once it runs', { cpu: { dedicatedCpuPlacement: true, realtime: {} } }, running, []],
    ['nothing once it has ended', { cpu: { realtime: {} } }, { phase: 'Failed' }, []],
  ])('STO-031 schedules %s', async (_what, domain, status, expected) => {
    const { hypervisor, calls } = world();
    await hypervisor.handleHousekeeping(vmi(domain, status), undefined);
    expect(calls).toEqual(expected);
  });

  it.each([
    ['isolateEmulator', 'failed to isolate the emulator thread: no'],
    ['scheduleVcpus', 'failed to schedule real-time vCPUs: no'],
    ['affinePit', 'failed to bind the timer thread of the VM: no'],
  ])('names the step when %s fails', async (call, message) => {
    const guest = vmi({ cpu: { ...isolated.cpu, realtime: {} } });
    await expect(world(call).hypervisor.handleHousekeeping(guest, undefined)).rejects.toThrow(message);
  });

  it('has no timer thread, own architecture, or memory that a VMI asks to be locked under another hypervisor', async () => {
    const other = { ...settings, hypervisor: 'hyperv-direct' } as const;
    const { hypervisor, calls } = world(undefined, other);
    await hypervisor.handleHousekeeping(vmi({ cpu: { dedicatedCpuPlacement: true } }), undefined);
    await hypervisor.adjustResources(vmi({ memory: { reservedOverhead: { memLock: 'Required' } } }));
    expect(calls).toEqual([]);
    const gpus = ['a', 'b'].map((name) => ({ name, deviceName: name }));
    const guest = vmi({ memory: { guest: '1G' }, devices: { gpus } });
    const difference = leastLockedMemory(guest, settings) - leastLockedMemory(guest, other);
    expect(difference).toBe(1_000_000_000n);
    guest.spec.architecture = 'arm64';
    expect(memoryOverhead(guest, settings) - memoryOverhead(guest, other)).toBe(128n << 20n);
  });

  it('a mask that is none fails the pass', async () => {
    await expect(
      world().hypervisor.handleHousekeeping(vmi({ cpu: { realtime: { mask: '1-0' } } }), undefined),
    ).rejects.toThrow('invalid mask range `1-0`');
  });
});
