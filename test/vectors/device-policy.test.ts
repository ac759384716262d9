/**
 * Device cgroup rules against virt-handler's. Ours are computed whole and applied at once: there are rules that allow
 * and none that deny, so a denied device is one that is not in the list.
 */
import { describe, expect, it } from 'vitest';
import { blockVolumes } from '../../agent/devices/block-volumes.js';
import { changesTo, type ListChange, mergeRules, parseDeviceList } from '../../privhelper/devices/list.js';
import { policyRules } from '../../privhelper/devices/policy.js';
import { deviceProgram, rulesOfProgram } from '../../privhelper/devices/program.js';
import { answerOf } from '../../privhelper/devices/program-run.js';
import { any, type DeviceRule, deviceOf, uniteRules } from '../../privhelper/devices/rules.js';
import { loadVectors } from './load.js';
import { type JsonObject, vmiOf } from './objects.js';

interface Rule extends Omit<DeviceRule, 'type'> {
  readonly type: 'a' | 'b' | 'c';
  readonly allow: boolean;
}
interface Node {
  readonly type: 'b' | 'c' | 'f';
  readonly major: number;
  readonly minor: number;
}
interface Step {
  readonly rules: Rule[];
  readonly cleanRules: Rule[];
  readonly ebpf: string;
}
interface Input {
  readonly op: string;
  readonly cgroup: 'v1' | 'v2';
  readonly devices: Record<string, Node>;
  readonly host: string;
  readonly vmi: JsonObject;
  readonly sets: Rule[];
  readonly set: Rule[];
  readonly rules: Rule[];
  readonly devicesList: string;
  readonly text: string;
}
interface Expected {
  readonly error: boolean | string | null;
  readonly rules?: Rule[];
  readonly steps?: Step[];
  readonly cleanRules?: Rule[];
  readonly ebpf?: string;
  readonly writes?: [string, string][];
}

const cases = ['cgroup-v1', 'cgroup-v2'].flatMap((file) => loadVectors<Input, Expected>('storage', file));
const of = (...ops: string[]) => cases.filter(({ input }) => ops.includes(input.op));

/** Operations without a function here, and where what they are about is tested. */
const elsewhere: Readonly<Record<string, string>> = {
  managerPath: 'device_cgroup_paths, native/test/device_cgroup_test.cc',
  v2Paths: 'device_cgroup_paths, native/test/device_cgroup_test.cc',
  miscCapacity: 'of TDX, whose device plugin is not there',
};
/** No list of ours has a rule that allows everything, or one that denies. */
const isForeign = ({ type, allow }: Rule) => type === 'a' || !allow;

const plain = ({ type, major, minor, permissions }: Rule): DeviceRule => {
  if (type === 'a') throw new Error('a rule for all devices');
  return { type, major, minor, permissions };
};

/** The rules that are left when those that deny are carried out. */
function allowed(rules: readonly Rule[]): DeviceRule[] {
  const left = new Map<string, Rule>();
  for (const rule of rules) {
    if (rule.allow) left.set(deviceOf(plain(rule)), rule);
    else left.delete(deviceOf(plain(rule)));
  }
  return [...left.values()].map(plain);
}

const bytes = (rules: readonly DeviceRule[]) => Buffer.from(deviceProgram(rules)).toString('hex');

it('every operation is known', () => {
  const here = ['generateDeviceRules', 'v1Set', 'parseDevicesList', 'v2Set', 'ebpfFilter'];
  expect(new Set(cases.map(({ input }) => input.op))).toEqual(new Set([...here, ...Object.keys(elsewhere)]));
});

describe('v2Set', () => {
  it.each(of('v2Set'))('STO-019 $name', ({ expected }) => {
    for (const step of expected.steps ?? []) {
      const rules = uniteRules(allowed(step.rules));
      expect(rules).toEqual(step.cleanRules.map(plain));
      expect(bytes(rules)).toBe(step.ebpf);
      expect(rulesOfProgram(Buffer.from(step.ebpf, 'hex'))).toEqual(rules);
    }
  });
});

describe('ebpfFilter', () => {
  it.each(of('ebpfFilter').filter(({ input }) => !input.rules.some(isForeign)))(
    'STO-019 $name',
    ({ input, expected }) => {
      expect(expected.error).toBeNull();
      const rules = uniteRules(input.rules.map(plain));
      expect(rules).toEqual(expected.cleanRules?.map(plain));
      expect(bytes(rules)).toBe(expected.ebpf);
      expect(rulesOfProgram(Buffer.from(expected.ebpf ?? '', 'hex'))).toEqual(rules);
    },
  );
});

describe('programs of the runtime', () => {
  const programs = [
    ...of('v2Set').flatMap(({ name, expected }) =>
      (expected.steps ?? []).map(({ ebpf, cleanRules }) => ({ name, ebpf, rules: cleanRules })),
    ),
    ...of('ebpfFilter').flatMap(({ name, expected: { ebpf = '', cleanRules = [] } }) =>
      ebpf === '' ? [] : [{ name, ebpf, rules: cleanRules }],
    ),
  ].filter(({ ebpf }, i, all) => all.findIndex((each) => each.ebpf === ebpf) === i);
  const probesOf = (rules: readonly Rule[]) =>
    [...rules, { major: 4000, minor: 70_000 }].flatMap(({ major, minor }) => [
      { major: major === any ? 3 : major, minor: minor === any ? 5 : minor },
      { major: major === any ? 3 : major, minor: (minor === any ? 5 : minor) + 1 },
    ]);

  it.each(programs)('STO-019 answer what their rules say: $name', ({ ebpf, rules }) => {
    const instructions = Buffer.from(ebpf, 'hex');
    for (const { major, minor } of probesOf(rules)) {
      for (const access of ['r', 'w', 'm', 'rw', 'rwm']) {
        for (const type of ['b', 'c'] as const) {
          const fits = (rule: Rule) =>
            (rule.type === 'a' || rule.type === type) &&
            [any, major].includes(rule.major) &&
            [any, minor].includes(rule.minor) &&
            (rule.allow
              ? [...access].every((letter) => rule.permissions.includes(letter))
              : [...access].some((letter) => rule.permissions.includes(letter)));
          const yes = rules.filter(fits).at(-1)?.allow ?? false;
          expect([access, type, answerOf(instructions, { type, access, major, minor })]).toEqual([
            access,
            type,
            yes,
          ]);
        }
      }
    }
  });
});

describe('parseDevicesList', () => {
  it.each(of('parseDevicesList'))('STO-018 $name', ({ input, expected }) => {
    if (expected.error !== null) {
      expect(() => parseDeviceList(input.text)).toThrow('devices.list has the line');
      return;
    }
    const list = parseDeviceList(input.text);
    expect(list.rules).toEqual(expected.rules?.map(plain));
    expect(list.allowAll).toBe(input.text.startsWith('a '));
  });
});

describe('v1Set', () => {
  it.each(of('v1Set'))('STO-018 $name', ({ input, expected }) => {
    if (expected.error === true) {
      expect(() => parseDeviceList(input.devicesList)).toThrow('devices.list has the line');
      return;
    }
    const current = parseDeviceList(input.devicesList);
    // What the list has besides is the runtime's; its block devices are taken for volumes of the VMI.
    const runtime = new Set(current.rules.filter(({ type }) => type === 'c').map(deviceOf));
    const named = allowed(expected.rules ?? []);
    const defaultsAndSet = named.filter((rule) => !runtime.has(deviceOf(rule)) || isWanted(rule, input.set));
    const target = mergeRules(defaultsAndSet, current);
    expect(target).toEqual(uniteRules(named));
    expect(changesTo(target, current)).toEqual(allowedFirst(expected.writes ?? []));
  });

  /** Named by the request or by the defaults: the permissions are theirs and not the list's. */
  function isWanted(rule: DeviceRule, set: readonly Rule[]): boolean {
    const defaults = policyRules({ version: 1, characterDevices: [], registered, blockDevices: [] });
    return [...defaults, ...set.map(plain)].some((each) => deviceOf(each) === deviceOf(rule));
  }

  /** virt-handler writes in the order of numbers: a device may be denied before another is allowed. */
  function allowedFirst(writes: readonly [string, string][]): ListChange[] {
    const changes = writes.map(([file, rule]) => ({ allow: file === 'devices.allow', rule }));
    const closing = changes.filter(({ rule }) => rule.startsWith('a '));
    const others = changes.filter(({ rule }) => !rule.startsWith('a '));
    return [...closing, ...others.filter(({ allow }) => allow), ...others.filter(({ allow }) => !allow)];
  }
});

/** The numbers that the nodes of the cases have. */
const registered = {
  characterMajors: new Map([
    ['vfio', [243]],
    ['vfio-dev', [511]],
    ['usb_device', [189]],
  ]),
  miscMinors: new Map([
    ['mshv', [122]],
    ['sev', [124]],
    ['iommu', [126]],
  ]),
};

describe('generateDeviceRules', () => {
  it.each(of('generateDeviceRules'))('AFT-035 $name', ({ input, expected }) => {
    const version = input.cgroup === 'v1' ? 1 : 2;
    const nodes = Object.entries(input.devices);
    const volumes = blockVolumes(vmiOf(input.vmi), input.host);
    const rules = policyRules({
      version,
      characterDevices: nodes.flatMap(([, node]) => (node.type === 'c' ? node : [])),
      registered,
      blockDevices: nodes.flatMap(([path, node]) =>
        node.type === 'b' && volumes.includes(path.slice('/dev/'.length)) ? node : [],
      ),
    });
    const byDevice = new Map(rules.map((rule) => [deviceOf(rule), rule]));
    const blockRules = (list: readonly DeviceRule[]) => list.filter(({ type }) => type === 'b');
    // A node that the VMI needs and that is missing is the matter of ownership, not of the policy.
    const wanted = expected.error === true ? [] : (expected.rules ?? []).map(plain);
    for (const rule of wanted) {
      // A volume is a block device or nothing.
      if (rule.type === 'c' && rule.major === 253) expect(byDevice.has(deviceOf(rule))).toBe(false);
      else expect(byDevice.get(deviceOf(rule))).toEqual(rule);
    }
    if (expected.error !== true) expect(blockRules(rules)).toEqual(blockRules(wanted));
    // What there is besides are defaults and nodes of a listed class.
    const present = new Set(nodes.map(([, { major, minor }]) => `c ${major}:${minor}`));
    const defaults = ['c 1:3', 'c 5:2', 'c 10:200', 'c 10:238'];
    for (const { type, major, minor } of rules) {
      const device = deviceOf({ type, major, minor });
      const pty = type === 'c' && major >= 136 && major <= 151 && minor === any;
      expect(type === 'b' || pty || defaults.includes(device) || present.has(device)).toBe(true);
    }
  });
});
