import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { DeviceNode, Native } from '../../../native/binding.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { openDeviceHierarchy } from '../../../privhelper/devices/hierarchy.js';
import { policyOfList, policyOfPrograms } from '../../../privhelper/devices/in-force.js';
import { changesTo, mergeRules, parseDeviceList } from '../../../privhelper/devices/list.js';
import { policyRules } from '../../../privhelper/devices/policy.js';
import { deviceProgram } from '../../../privhelper/devices/program.js';
import { parseRegisteredDevices } from '../../../privhelper/devices/registered.js';
import { any, type DeviceRule, deviceOf, type Permissions } from '../../../privhelper/devices/rules.js';
import { CallFailure } from '../../../privhelper/failure.js';
import type { Helper } from '../../../privhelper/helper.js';
import { setPolicy } from '../../../privhelper/operations/device-policy.js';
import type { PluggedDevice } from '../../../privhelper/pods/plugged-devices.js';
import { PodRegistry } from '../../../privhelper/pods/registry.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { FakeLaunchers, fakeNative, invocation, refA } from './fakes.js';

const registered = parseRegisteredDevices(
  'Character devices:\n  1 mem\n  4 tty\n 10 misc\n189 usb_device\n243 vfio\n246 macvtap\n\nBlock devices:\n  8 sd\n189 usb_device\n',
  '126 iommu\n124 sev\n 58 other\n',
);

describe('registered devices', () => {
  it('are read from both files, character devices only', () => {
    expect(registered.characterMajors.get('macvtap')).toEqual([246]);
    expect(registered.characterMajors.get('usb_device')).toEqual([189]);
    expect(registered.characterMajors.get('sd')).toBeUndefined();
    expect(registered.miscMinors.get('sev')).toEqual([124]);
  });

  it('are none in texts of another form', () => {
    expect(parseRegisteredDevices('', '').characterMajors.size).toBe(0);
    expect(parseRegisteredDevices('x\n12 y\n', 'a b\n').miscMinors.size).toBe(0);
  });
});

describe('policy rules', () => {
  const rulesFor = (
    characterDevices: readonly { major: number; minor: number }[],
    version: 1 | 2 = 2,
  ): string[] =>
    policyRules({ version, characterDevices, registered, blockDevices: [] }).map(
      (rule) => `${deviceOf(rule)} ${rule.permissions}`,
    );
  const defaults = rulesFor([]);

  it('AFT-035 have nodes of listed classes, and none of others', () => {
    const allowed = ['1:5', '1:7', '1:8', '1:9', '5:0', '10:196', '10:232', '10:241', '10:124', '10:126'];
    const dynamic = ['189:130', '243:7', '246:12'];
    for (const numbers of [...allowed, ...dynamic]) {
      const [major = 0, minor = 0] = numbers.split(':').map(Number);
      expect(rulesFor([{ major, minor }])).toEqual(expect.arrayContaining([...defaults, `c ${numbers} rwm`]));
    }
    for (const numbers of ['1:1', '1:2', '1:4', '5:1', '4:1', '10:58', '10:237', '8:0', '188:0', '253:0']) {
      const [major = 0, minor = 0] = numbers.split(':').map(Number);
      expect(rulesFor([{ major, minor }])).toEqual(defaults);
    }
  });

  it('have no wildcard but those of pseudo terminals', () => {
    const every = Array.from({ length: 256 }, (_, major) => ({ major, minor: 3 }));
    const wild = rulesFor(every).filter((rule) => rule.includes('*'));
    expect(wild).toEqual(Array.from({ length: 16 }, (_, i) => `c ${136 + i}:* rwm`));
  });

  it('of cgroup v1 have defaults and the hypervisor without the right to make nodes', () => {
    expect(rulesFor([{ major: 10, minor: 232 }], 1)).toEqual(
      expect.arrayContaining(['c 1:3 rw', 'c 10:232 rw', 'c 136:* rw']),
    );
  });
});

describe('device list', () => {
  const permission = fc.constantFrom<Permissions>('r', 'w', 'm', 'rw', 'rm', 'wm', 'rwm');
  const rule: fc.Arbitrary<DeviceRule> = fc.record({
    type: fc.constantFrom('b', 'c'),
    major: fc.constantFrom(any, 1, 8),
    minor: fc.constantFrom(any, 0, 3),
    permissions: permission,
  });
  const text = (list: ReadonlyMap<string, Set<string>>) =>
    [...list]
      .filter(([, letters]) => letters.size > 0)
      .map(
        ([device, letters]) => `${device} ${['r', 'w', 'm'].filter((each) => letters.has(each)).join('')}\n`,
      )
      .join('');

  /** As the kernel carries them out: on the rule of exactly that device. */
  function apply(list: Map<string, Set<string>>, change: { allow: boolean; rule: string }): void {
    const [, device = '', letters = ''] = /^(\S+ \S+) (\S+)$/.exec(change.rule) ?? [];
    const known = list.get(device) ?? new Set();
    for (const letter of letters) {
      if (change.allow) known.add(letter);
      else known.delete(letter);
    }
    list.set(device, known);
  }

  it('STO-018 becomes the target, and at no time has less than is in both', () => {
    fc.assert(
      fc.property(fc.array(rule, { maxLength: 12 }), fc.array(rule, { maxLength: 12 }), (before, after) => {
        const list = new Map<string, Set<string>>();
        for (const each of before)
          apply(list, { allow: true, rule: `${deviceOf(each)} ${each.permissions}` });
        const current = parseDeviceList(text(list));
        const target = mergeRules(after, current);
        const both = current.rules.flatMap((each) => {
          const kept = target.find((other) => deviceOf(other) === deviceOf(each))?.permissions ?? '';
          return [...each.permissions]
            .filter((letter) => kept.includes(letter))
            .map((letter) => [deviceOf(each), letter] as const);
        });
        for (const change of changesTo(target, current)) {
          apply(list, change);
          for (const [device, letter] of both) expect(list.get(device)?.has(letter)).toBe(true);
        }
        expect(changesTo(target, parseDeviceList(text(list)))).toEqual([]);
      }),
    );
  });

  it('STO-018 has fields that blanks and colons separate', () => {
    const rule = { type: 'b', major: 8, minor: any, permissions: 'rm' };
    expect(parseDeviceList('b 8:* rm\nb 8 *  rm').rules).toEqual([rule, rule]);
    for (const text of ['b 8:0', 'b 8:0 rwm x', 'b 8:0 mr', 'b -1:0 r', 'p 8:0 r', '\n']) {
      expect(() => parseDeviceList(text)).toThrow('devices.list has the line');
    }
  });

  it('keeps what else the runtime allows, but no single block device', () => {
    const current = parseDeviceList('c *:* m\nb *:* m\nb 8:0 rw\nb 8:16 rwm\nc 195:0 rw\n');
    const wanted: DeviceRule[] = [{ type: 'b', major: 8, minor: 16, permissions: 'rwm' }];
    expect(changesTo(mergeRules(wanted, current), current)).toEqual([{ allow: false, rule: 'b 8:0 rw' }]);
  });
});

describe('the policy in force', () => {
  const rules = policyRules({ version: 2, characterDevices: [], registered, blockDevices: [] });
  const program = { id: 7, instructions: deviceProgram(rules) };
  const texts = rules.map((rule) => `${deviceOf(rule)} ${rule.permissions}`);

  it('is told as rules, sorted by their numbers', () => {
    expect(policyOfPrograms([program])).toEqual({ rules: texts, note: '' });
    expect(policyOfList('c 5:2 rw\nb 1:3 m\n')).toEqual({ rules: ['b 1:3 m', 'c 5:2 rw'], note: '' });
  });

  it('says when something else decides', () => {
    const instructions = Uint8Array.from(program.instructions);
    // Answers yes at the end.
    instructions[instructions.length - 12] = 1;
    const note = (...programs: { id: number; instructions: Uint8Array }[]) => policyOfPrograms(programs).note;
    expect(note({ id: 8, instructions })).toBe('program 8 is not of the usual form');
    expect(note({ id: 9, instructions: new Uint8Array() })).toBe('program 9 is not of the usual form');
    expect(note({ id: 9, instructions: new Uint8Array(77).fill(255) })).toContain('not of the usual form');
    expect(note(program, program)).toBe('2 programs decide together');
    expect(note()).toBe('no program: everything is allowed');
    expect(policyOfList('a *:* rwm\n').note).toBe('everything is allowed');
  });
});

describe('the hierarchy of devices', () => {
  it('must be one', () => {
    const directory = mkdtempSync(join(tmpdir(), 'cgroup-'));
    try {
      expect(() => openDeviceHierarchy(directory, -1)).toThrow(`${directory}: no cgroup hierarchy`);
      mkdirSync(join(directory, 'devices'));
      expect(() => openDeviceHierarchy(directory, -1)).toThrow(`${directory}: no cgroup hierarchy`);
      expect(() => openDeviceHierarchy(join(directory, 'missing'), -1)).toThrow('no cgroup hierarchy');
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
});

describe('SetPolicy', () => {
  const nodes: DeviceNode[] = [
    { path: 'null', type: 'c', major: 1, minor: 3 },
    { path: 'data', type: 'b', major: 8, minor: 16 },
    { path: 'sub/other', type: 'b', major: 8, minor: 32 },
    { path: 'tty', type: 'c', major: 5, minor: 0 },
  ];

  function setUp({
    version = 1,
    list = () => 'c 1:3 rw\n',
    plugged = [] as readonly PluggedDevice[],
    uses = {} as Record<string, string>,
  }) {
    const changes: unknown[] = [];
    const programs: number[] = [];
    const native = fakeNative({
      ...new FakeLaunchers().methods,
      listDeviceNodes: async () => nodes,
      readDeviceList: async () => list(),
      changeDeviceList: async (_call, _hierarchy, _launcher, _pod, lines) => {
        changes.push(...lines);
      },
      replaceDevicePrograms: async (_call, _hierarchy, _launcher, _pod, instructions) => {
        programs.push(instructions.length);
        return true;
      },
    } satisfies Partial<Native>);
    const policy = createPolicy();
    const identify = declaredBy(PodService.method.identify);
    const pods = new PodRegistry({ native, podsDir: 3, policy, identify, onExit: () => undefined });
    const helper = {
      native,
      policy,
      pods,
      deviceHierarchy: { root: 4, version },
      plugged: {
        list: () => {
          if (plugged.length > 1)
            throw new CallFailure({ code: Code.DataLoss, operation: 'x', message: 'x' });
          return plugged;
        },
      },
      disksInUse: {
        uses: async (devices: { major: number; minor: number }[]) =>
          devices.map(({ major, minor }) => uses[`${major}:${minor}`]),
      },
    } as unknown as Helper;
    const call = (...blockVolumes: string[]) => setPolicy(helper, invocation(), { ...refA, blockVolumes });
    return { call, changes, programs };
  }

  it('allows block devices right in /dev that are named, and nothing for names without one', async () => {
    const { call, changes } = setUp({});
    await call('data', 'tty', 'other', 'missing').catch(() => undefined);
    expect(changes).toContainEqual({ allow: true, rule: 'b 8:16 rwm' });
    expect(JSON.stringify(changes)).not.toContain('8:32');
    expect(changes.filter((change) => JSON.stringify(change).includes('b '))).toHaveLength(1);
  });

  it('fails when the list is not what was written', async () => {
    const { call, changes } = setUp({});
    await expect(call()).rejects.toMatchObject({ code: Code.Aborted, unchanged: false });
    expect(changes.length).toBeGreaterThan(0);
  });

  it('changes nothing for a disk of the host, named or plugged', async () => {
    const uses = { '8:16': '8:17 is mounted at /' };
    const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };
    for (const version of [1, 2]) {
      const named = setUp({ version, uses });
      await expect(named.call('data')).rejects.toMatchObject({
        ...refused,
        message: 'volume data is a disk of the host: 8:17 is mounted at /',
      });
      const plugged = setUp({ version, uses, plugged: [{ volume: 'hot', major: 8, minor: 16 }] });
      await expect(plugged.call()).rejects.toMatchObject(refused);
      expect([...named.changes, ...named.programs, ...plugged.changes, ...plugged.programs]).toEqual([]);
    }
  });

  it('changes nothing without the record of what is plugged', async () => {
    const device = { volume: 'hot', major: 8, minor: 16 };
    const { call, changes, programs } = setUp({ version: 2, plugged: [device, device] });
    await expect(call()).rejects.toMatchObject({ code: Code.DataLoss });
    expect([...changes, ...programs]).toEqual([]);
  });
});
