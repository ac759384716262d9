import { spawnSync } from 'node:child_process';
import { create } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SelinuxMode } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import {
  AppendOnly,
  type GetHelperResponse,
  GetHelperResponseSchema,
  InspectedPodSchema,
} from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { OperationReader } from '../../../privhelper/audit/operations.js';
import { declaredBy, services } from '../../../privhelper/declarations.js';
import {
  helperFindings,
  kernelFindings,
  kernelShortcomings,
  leftoverFindings,
  nodeFindings,
} from '../../../privhelper/inspect/health.js';
import { parseMountinfo } from '../../../privhelper/inspect/mountinfo.js';
import { selector, sinceTime } from '../../../privhelper/privctl/commands/audit.js';
import { findMethod } from '../../../privhelper/privctl/commands/describe.js';
import { commands } from '../../../privhelper/privctl/commands.js';
import { bashCompletion, commandHelp, overview } from '../../../privhelper/privctl/help.js';
import { callMs } from '../../../privhelper/privctl/helper.js';
import { age, bytes, CommandError, printable, table } from '../../../privhelper/privctl/output.js';
import { podA, podB, vmiA, vmiB } from './fakes.js';

it('a call may take as long as its method declares', () => {
  const deadlines = services.flatMap(({ methods }) => methods.map((method) => declaredBy(method).deadlineMs));
  expect(Math.max(...deadlines)).toBeLessThan(callMs);
});

describe('tables', () => {
  it('align, mark what is empty and leave out what nobody has', () => {
    const columns = [
      { title: 'A' },
      { title: 'N', align: 'right' },
      { title: 'EMPTY' },
      { title: 'Z' },
    ] as const;
    expect(
      table(columns, [
        ['one', '7', '', ''],
        ['o', '1234', '', 'z'],
      ]),
    ).toEqual(['A       N  Z', 'one     7  -', 'o    1234  z']);
  });

  it("never let a launcher's text steer the terminal", () => {
    expect(printable('a\u001b[2Jb\u009b\n\u202e')).toBe('a\\x1b[2Jb\\x9b\\x0a\\u202e');
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        const lines = table([{ title: 'T' }], [[text]]);
        expect(lines).toHaveLength(2);
        // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
        expect(lines.join('')).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
      }),
    );
  });

  it('show ages and sizes in one unit', () => {
    expect([0, 119_000, 120_000, 7_199_000, 7_200_000, 172_800_000].map(age)).toEqual([
      '0s',
      '119s',
      '2m',
      '119m',
      '2h',
      '2d',
    ]);
    expect(['512', '1536', '67108864', '9223372036854771712', 'max', '-1'].map(bytes)).toEqual([
      '512',
      '1.5 KiB',
      '64.0 MiB',
      'unlimited',
      'max',
      '-1',
    ]);
  });
});

describe('audit log', () => {
  const line = (event: string, more: object = {}) =>
    JSON.stringify({ time: '2026-01-01T00:00:00.000Z', event, ...more });
  const call = { call: 'i-1', method: 'PodService.Identify', pod: podA, vmi: vmiA };

  it('makes one operation of begin and end', () => {
    const reader = new OperationReader();
    expect(reader.read(line('begin', { ...call, arguments: { images: 2 } }))).toEqual([]);
    expect(reader.unfinished).toHaveLength(1);
    const end = line('end', { ...call, time: '2026-01-01T00:00:01.000Z', decision: 'failed', errno: 'EIO' });
    expect(reader.read(end)).toMatchObject([
      {
        outcome: 'failed',
        errno: 'EIO',
        pod: podA,
        time: '2026-01-01T00:00:00.000Z',
        actor: 'agent',
        arguments: { images: 2 },
      },
    ]);
    expect(reader.unfinished).toEqual([]);
  });

  it('keeps a claim and the call that made its descriptor apart', () => {
    const reader = new OperationReader();
    reader.read(line('begin', call));
    reader.read(line('begin', { ...call, method: 'claim descriptor' }));
    reader.read(line('end', { ...call, method: 'claim descriptor', decision: 'allowed' }));
    expect(reader.unfinished.map(({ method }) => method)).toEqual(['PodService.Identify']);
  });

  it('REC-051 shows a call that the helper did not live to end', () => {
    const reader = new OperationReader();
    reader.read(line('begin', call));
    expect(reader.read(line('start', { instance: 'j' }))).toMatchObject([
      { outcome: 'interrupted', method: 'PodService.Identify' },
      { outcome: 'started', actor: 'helper' },
    ]);
    expect(reader.unfinished).toEqual([]);
  });

  it('names who asked, and survives what is not a log', () => {
    const reader = new OperationReader();
    const refusal = { method: 'connect', peer: { pid: 5, uid: 1000 }, message: 'no' };
    expect(reader.read(line('refusal', refusal))).toMatchObject([
      { outcome: 'refused', actor: 'uid 1000 pid 5' },
    ]);
    const [end] = reader.read(line('end', { ...call, actor: 'privctl uid 0', decision: 'refused' }));
    expect(end).toMatchObject({ outcome: 'refused', actor: 'privctl uid 0' });
    expect(reader.read(line('suppressed', { suppressed: 9 }))).toMatchObject([{ suppressed: 9 }]);
    for (const text of ['', '{', '[]', 'null', '{"event":"end"}', line('unheard of')]) reader.read(text);
    expect(reader.malformed).toBe(6);
    for (let i = 0; i < 5000; i += 1) reader.read(line('begin', { ...call, call: `i-${i}` }));
    expect(reader.unfinished.length).toBeLessThanOrEqual(4096);
  });

  it('selects by pod, refusal and time', () => {
    const operation = { outcome: 'refused', time: '2026-01-01T00:00:00Z', actor: '', pod: podA } as const;
    const all = { refused: false, pod: undefined, since: 0 };
    expect(selector(all)(operation)).toBe(true);
    expect(selector({ ...all, pod: podA.slice(0, 6) })(operation)).toBe(true);
    expect(selector({ ...all, pod: podB })(operation)).toBe(false);
    expect(selector({ ...all, refused: true })({ ...operation, outcome: 'failed' })).toBe(false);
    expect(selector({ ...all, since: Date.parse('2026-01-02') })(operation)).toBe(false);
  });

  it('understands durations and points in time', () => {
    expect(['90s', '10m', '2h', '1d'].map((text) => 1e9 - sinceTime(text, 1e9))).toEqual([
      90_000, 600_000, 7_200_000, 86_400_000,
    ]);
    expect(sinceTime('2026-01-01T00:00:00Z', 0)).toBe(Date.parse('2026-01-01T00:00:00Z'));
    expect(() => sinceTime('yesterday-ish', 0)).toThrow(CommandError);
  });
});

describe('help', () => {
  it('has every command, within the width of a terminal where it can be', () => {
    const text = overview().join('\n');
    for (const command of commands) {
      expect(text).toContain(`  ${command.synopsis}`);
      const lines = commandHelp(command);
      expect(lines[0]).toBe(`Usage: privctl ${command.synopsis} [OPTIONS]`);
      // Lines of options may be longer: they end with a default.
      const texts = lines.filter((line) => !line.startsWith('  '));
      expect(Math.max(...texts.map(({ length }) => length))).toBeLessThanOrEqual(100);
    }
  });

  it('finds a method by its name in any case', () => {
    expect(findMethod('podservice.identify').declared.name).toBe('PodService.Identify');
    expect(findMethod('virtprivsep.privhelper.v1.PodService.Stat').declared.name).toBe('PodService.Stat');
    expect(() => findMethod('PodService.Format')).toThrow('no method PodService.Format');
  });

  it('completes commands, methods and options in bash', () => {
    const complete = (...words: string[]) => {
      const script = [
        ...bashCompletion(),
        `COMP_WORDS=(${words.map((word) => `'${word}'`).join(' ')})`,
        `COMP_CWORD=${words.length - 1}`,
        '_privctl; printf "%s\\n" "$' + '{COMPREPLY[@]}"',
      ].join('\n');
      return spawnSync('bash', ['-c', script], { encoding: 'utf8' }).stdout.trim().split('\n');
    };
    expect(complete('privctl', 'po')).toEqual(['pods', 'policy']);
    expect(complete('privctl', 'explain', 'PodService.I')).toEqual(['PodService.Identify']);
    expect(complete('privctl', 'policy', '')).toEqual(['show', 'check']);
    expect(complete('privctl', 'audit', '--re')).toEqual(['--refused']);
    expect(complete('privctl', 'pods', '-o', 'j')).toEqual(['json']);
    expect(complete('privctl', 'help', 'ca')).toEqual(['call']);
  });
});

describe('doctor', () => {
  const thread = { tid: 1, effective: '0', permitted: '0', bounding: '0', noNewPrivs: true, seccomp: 2 };
  const privileged = { ...thread, tid: 2, permitted: '6', bounding: '6' };
  const helper = (more: object = {}): GetHelperResponse =>
    create(GetHelperResponseSchema, {
      version: '1',
      pid: 5,
      agentPid: 6,
      startedAtMs: 1000n,
      threads: [thread, privileged],
      auditAppendOnly: AppendOnly.SET,
      usage: [{ name: 'watches', used: 1, limit: 4 }],
      ...more,
    });
  const status = (response: GetHelperResponse, check: string) =>
    helperFindings(response, { version: '1', permitted: 6n, dispensable: 4n, now: 5000 }).find(
      (each) => each.check === check,
    )?.status;

  it('tells whether the audit log can be changed', () => {
    const of = (auditAppendOnly: AppendOnly) => status(helper({ auditAppendOnly }), 'audit log');
    expect(
      [AppendOnly.SET, AppendOnly.UNSUPPORTED, AppendOnly.FAILED, AppendOnly.UNSPECIFIED].map(of),
    ).toEqual(['ok', 'note', 'warn', 'warn']);
  });

  it('is content with a helper as it should be', () => {
    const findings = helperFindings(helper(), { version: '1', permitted: 6n, dispensable: 4n, now: 5000 });
    expect(findings.every((finding) => finding.status === 'ok')).toBe(true);
    expect(findings[0]?.finding).toBe('process 5, version 1, for 4 s');
  });

  it.each([
    ['capabilities', { threads: [{ ...thread, permitted: '1' }] }, 'fail'],
    ['capabilities', { threads: [{ ...privileged, bounding: '7' }] }, 'fail'],
    ['capabilities', { threads: [{ ...thread, effective: '2' }] }, 'fail'],
    ['seccomp', { threads: [{ ...thread, seccomp: 0 }] }, 'fail'],
    ['no_new_privs', { threads: [{ ...thread, noNewPrivs: false }] }, 'fail'],
    ['agent', { agentPid: 0 }, 'warn'],
    ['version', { version: '2' }, 'warn'],
    ['watches', { usage: [{ name: 'watches', used: 4, limit: 4 }] }, 'warn'],
  ])('sees what is wrong: %s %j', (check, more, expected) => {
    expect(status(helper(more), check)).toBe(expected);
  });

  it('tells missing interfaces from those that it may not try', () => {
    const findings = kernelFindings([
      { name: 'openat2', error: 'ENOSYS' },
      { name: 'SO_PEERPIDFD', error: 'ENOPROTOOPT' },
      { name: 'nf_tables', error: 'EPERM' },
      { name: 'move_mount', error: '' },
    ]);
    expect(findings.map((finding) => finding.status)).toEqual(['fail', 'note', 'note', 'ok']);
  });

  it('STO-035 tells what a kernel lacks, and does not start on one that lacks what everything needs', () => {
    const lacking = [
      { name: 'openat2', error: '' },
      { name: 'SO_PEERPIDFD', error: 'ENOPROTOOPT' },
      { name: 'nf_tables', error: 'EPERM' },
    ];
    expect(kernelShortcomings(lacking)).toEqual([
      'SO_PEERPIDFD is missing (ENOPROTOOPT): since Linux 6.5; without it a launcher is asked for twice, which is as safe',
    ]);
    expect(() => kernelShortcomings([...lacking, { name: 'mount_setattr', error: 'ENOSYS' }])).toThrow(
      'this kernel will not do: mount_setattr is missing (ENOSYS): Linux 5.12 or newer',
    );
    const older = [...lacking, { name: 'MOUNT_ATTR_NOSYMFOLLOW', error: 'EINVAL' }];
    expect(() => kernelShortcomings(older)).toThrow(
      'this kernel will not do: MOUNT_ATTR_NOSYMFOLLOW is missing (EINVAL): Linux 5.14 or newer',
    );
  });

  it('finds what pods have left behind', () => {
    const pods = '/var/lib/kubelet/pods';
    const disks = (uid: string) =>
      `${pods}/${uid}/volumes/kubernetes.io~empty-dir/container-disks/disk_0.img`;
    const mount = (path: string) => `30 21 0:26 / ${path} ro - tmpfs x rw`;
    const facts = {
      hotplugRecords: [{ vmiUid: vmiB, podUid: podB, disks: 1, podPresent: false }],
      records: [
        { vmiUid: vmiA, podUid: podB, disks: 2, podPresent: false },
        { vmiUid: vmiA, podUid: podA, disks: 1, podPresent: true },
      ],
      pods: [create(InspectedPodSchema, { state: { podUid: podA } })],
      hostMounts: parseMountinfo([mount(disks(podA)), mount(disks(podB)), mount('/var')].join('\n')),
      kubeletPodsDir: pods,
      interrupted: 1,
    };
    const findings = leftoverFindings(facts);
    expect(findings.map((each) => each.status)).toEqual(['warn', 'warn', 'warn', 'warn', 'warn']);
    expect(findings[0]?.advice).toContain(podB);
    expect(findings[1]?.advice).toContain('HotplugService.UnplugAll');
    expect(findings[3]?.finding).toBe(disks(podA));
    const none = { ...facts, records: [], hotplugRecords: [], pods: [], hostMounts: [], interrupted: 0 };
    expect(leftoverFindings(none).every((each) => each.status === 'ok')).toBe(true);
  });

  it("knows the node's cgroups, SELinux and propagation", () => {
    const facts = {
      mounts: parseMountinfo(
        ['1 0 0:1 / / rw shared:1 - ext4 x rw', '2 1 0:2 / /sys/fs/cgroup rw - cgroup2 x rw'].join('\n'),
      ),
      cgroupRoot: '/sys/fs/cgroup',
      kubeletPodsDir: '/var/lib/kubelet/pods',
      selinux: SelinuxMode.ENFORCING,
      helperLabel: 'system_u:system_r:container_t:s0',
    };
    expect(nodeFindings(facts)).toMatchObject([
      { check: 'cgroups', finding: 'v2' },
      { check: 'SELinux', status: 'warn', finding: expect.stringContaining('enforcing') },
      { status: 'note', finding: 'shared (/)' },
    ]);
    expect(nodeFindings({ ...facts, mounts: [], selinux: SelinuxMode.DISABLED })).toMatchObject([
      { status: 'warn' },
      { status: 'ok', finding: expect.stringContaining('off') },
      { finding: 'unknown (/var/lib/kubelet/pods)' },
    ]);
  });
});
