import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { CpuListError, parseCpuList } from '../../agent/resources/cpu-list.js';
import { computedMemoryOverhead, leastLockedMemory } from '../../agent/resources/memory-overhead.js';
import {
  parseRealtimeMask,
  type RealtimeMask,
  RealtimeMaskError,
} from '../../agent/resources/realtime-mask.js';
import { findQemu, findVirtqemud, vcpuOf } from '../../privhelper/pods/processes.js';
import { loadVectors } from './load.js';

interface MemlockInput {
  readonly additionalGuestMemoryOverheadRatio: string | null;
  readonly vmi: Pick<Vmi, 'spec'> & { readonly migrationState?: Vmi['status']['migrationState'] };
}

interface MemlockExpected {
  readonly overheadBytes: number;
  readonly memlockBytes: number;
}

describe('STO-029 vectors storage/memlock', () => {
  it.each(loadVectors<MemlockInput, MemlockExpected>('storage', 'memlock'))(
    '$name',
    ({ input: { vmi: given, additionalGuestMemoryOverheadRatio: ratio }, expected }) => {
      const { migrationState } = given;
      const status = migrationState === undefined ? {} : { migrationState };
      const vmi: Vmi = { metadata: { name: 'vm', namespace: 'default', uid: 'u' }, spec: given.spec, status };
      const settings = { architecture: 'amd64', hypervisor: 'kvm', ratio: ratio ?? undefined } as const;
      expect({
        overheadBytes: Number(computedMemoryOverhead(vmi, settings)),
        memlockBytes: Number(leastLockedMemory(vmi, settings)),
      }).toEqual(expected);
    },
  );
});

interface OverheadExpected {
  readonly memoryOverheadBytes: number;
  readonly memlockBytes: number;
}

describe('NODE-039 vectors node/memory-overhead', () => {
  it.each(loadVectors<MemlockInput, OverheadExpected>('node', 'memory-overhead'))(
    '$name',
    ({
      input: {
        vmi: { spec },
        additionalGuestMemoryOverheadRatio: ratio,
      },
      expected,
    }) => {
      const vmi: Vmi = { metadata: { name: 'vm', namespace: 'default', uid: 'u' }, spec, status: {} };
      const settings = { architecture: 'amd64', hypervisor: 'kvm', ratio: ratio ?? undefined } as const;
      // The text of the quantity depends on how the addends were written; the agent writes none.
      expect(expected).toMatchObject({
        memoryOverheadBytes: Number(computedMemoryOverhead(vmi, settings)),
        memlockBytes: Number(leastLockedMemory(vmi, settings)),
      });
    },
  );
});

interface MaskExpected {
  readonly enabledVcpusOf0to11?: readonly number[];
  readonly error?: string;
  readonly id?: string;
  readonly isVcpu?: boolean;
}

describe('NODE-039 vectors node/realtime-mask', () => {
  it.each(
    loadVectors<{ readonly mask?: string; readonly comm?: string }, MaskExpected>('node', 'realtime-mask'),
  )('$name', ({ input: { mask = '', comm }, expected }) => {
    if (comm !== undefined) {
      const id = vcpuOf(comm);
      expect({ id: id ?? '', isVcpu: id !== undefined }).toEqual(expected);
    } else if (expected.error !== undefined) {
      expect(() => parseRealtimeMask(mask)).toThrow(expected.error);
    } else {
      const parsed = parseRealtimeMask(mask);
      const enabled = Array.from({ length: 12 }, (_, i) => i).filter((i) => isRealtime(parsed, String(i)));
      expect(enabled).toEqual(expected.enabledVcpusOf0to11);
    }
  });
});

const isRealtime = (mask: RealtimeMask, vcpu: string) => mask.size === 0 || mask.get(vcpu) === true;

type Input =
  | { readonly op: 'realtimeMask'; readonly mask: string }
  | { readonly op: 'parseCPUSetLine'; readonly line: string; readonly limit: 100 }
  | { readonly op: 'vcpuComm'; readonly comm: string }
  | {
      readonly op: 'findProcesses';
      readonly launcherPid: number;
      readonly launcherPPid: number;
      readonly processes: readonly { readonly pid: number; readonly ppid: number; readonly comm: string }[];
    };

function answer(input: Input, expected: Readonly<Record<string, unknown>>): unknown {
  switch (input.op) {
    case 'realtimeMask':
      try {
        const mask = parseRealtimeMask(input.mask);
        const asked = Object.keys(expected['enabled'] ?? {});
        return {
          error: null,
          mask: mask.size === 0 ? null : Object.fromEntries(mask),
          enabled: Object.fromEntries(asked.map((vcpu) => [vcpu, isRealtime(mask, vcpu)])),
        };
      } catch (error) {
        if (!(error instanceof RealtimeMaskError)) throw error;
        return { error: error.message };
      }
    case 'parseCPUSetLine':
      try {
        const cpus = parseCpuList(input.line);
        return { error: false, cpus: cpus.length === 0 ? null : cpus, written: cpus.join(',') };
      } catch (error) {
        if (!(error instanceof CpuListError)) throw error;
        return { error: true, cpus: null };
      }
    case 'vcpuComm': {
      const id = vcpuOf(input.comm);
      return { id: id ?? '', isVCPU: id !== undefined };
    }
    case 'findProcesses': {
      const tree = { launcher: input.launcherPid, monitor: input.launcherPPid, children: input.processes };
      const qemu = findQemu(tree);
      return {
        qemuError: qemu === undefined,
        ...(qemu === undefined ? {} : { qemuPid: qemu.pid }),
        virtqemudPid: findVirtqemud(tree)?.pid ?? null,
      };
    }
  }
}

describe('STO-031 vectors storage/realtime-housekeeping', () => {
  it.each(loadVectors<Input, Readonly<Record<string, unknown>>>('storage', 'realtime-housekeeping'))(
    '$name',
    ({ input, expected }) => {
      expect(answer(input, expected)).toEqual(expected);
    },
  );
});
