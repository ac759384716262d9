import { create, toBinary } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { describe, expect, it, vi } from 'vitest';
import { IdentifyRequestSchema, PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ConnectAttachmentRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import type { AttachmentPlan, Launcher, NetworkPlan } from '../../../native/binding.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { inspection, subjectWords, table } from '../../../privhelper/dispatch.js';
import { toFailure } from '../../../privhelper/failure.js';
import type { Helper } from '../../../privhelper/helper.js';
import { parseCgroup, parseHierarchyMounts } from '../../../privhelper/inspect/cgroup.js';
import { CommandLines } from '../../../privhelper/inspect/command-lines.js';
import { mountedDisks, mountOf, parseMountinfo } from '../../../privhelper/inspect/mountinfo.js';
import {
  parseClaims,
  parseStartTicks,
  readBounded,
  readCommandLine,
  readProcess,
} from '../../../privhelper/inspect/proc.js';
import type { Invocation } from '../../../privhelper/invocation.js';
import { explain } from '../../../privhelper/operations/explain.js';
import { getNetwork, listPods } from '../../../privhelper/operations/inspect.js';
import { PodRegistry } from '../../../privhelper/pods/registry.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { declareAll } from '../../../privhelper/server/routes.js';
import {
  emptyState,
  FakeLaunchers,
  fakeNative,
  invocation,
  nativeError,
  podA,
  podB,
  refA,
  vmiB,
} from './fakes.js';

const identifyRequest = (pod: { podUid: string; vmiUid: string }) =>
  toBinary(IdentifyRequestSchema, create(IdentifyRequestSchema, { pod }));

function setUp(more: Partial<Helper> = {}, methods: Parameters<typeof fakeNative>[0] = {}) {
  const launchers = new FakeLaunchers();
  const native = fakeNative({ ...launchers.methods, ...methods });
  const policy = createPolicy();
  const identify = declaredBy(PodService.method.identify);
  const pods = new PodRegistry({ native, podsDir: 3, policy, identify, onExit: () => undefined });
  const helper = {
    native,
    policy,
    pods,
    podsDir: 3,
    forbiddenNetworks: [],
    methods: declareAll([...table, ...inspection]),
    records: { names: () => false },
    ...more,
  } as unknown as Helper;
  const pin = () => pods.withLauncher(invocation(), refA, async (launcher) => launcher);
  return { helper, pods, launchers, pin };
}

describe('looking at a launcher', () => {
  const look = (pods: PodRegistry, podUid = podA) =>
    pods.observe(invocation(), podUid, async (observed) => observed);

  it('uses the pinned one after a check, and binds nothing', async () => {
    const { pods, launchers, pin } = setUp();
    await pin();
    expect(await look(pods)).toMatchObject({ pinned: true, vmiUid: refA.vmiUid });
    expect(launchers.checked).toEqual([podA]);
    expect(pods.pinned).toBe(1);
    expect(launchers.closed).toEqual([]);
  });

  it('pins one for as long as it looks, so the pod stays unbound', async () => {
    const { pods, launchers } = setUp();
    const { launcher, pinned, vmiUid } = await look(pods);
    expect([pinned, vmiUid]).toEqual([false, undefined]);
    expect(launchers.closed).toEqual([launcher.pidfd, launcher.mntns, launcher.netns]);
    expect(pods.pinned).toBe(0);
    await pods.withLauncher(invocation(), { podUid: podA, vmiUid: vmiB }, async () => undefined);
  });

  it('refuses a launcher of another user and closes it', async () => {
    const { pods, launchers } = setUp();
    launchers.uid = 1000;
    const failure = await look(pods).catch(toFailure);
    expect(failure).toMatchObject({ code: Code.PermissionDenied, refused: true });
    expect(launchers.closed).toHaveLength(3);
  });

  it("does not wait for the pod's turn: a call that hangs can be looked into", async () => {
    const { pods, pin } = setUp();
    await pin();
    let finish = () => {};
    const hanging = pods.withLauncher(invocation(), refA, () => new Promise<void>((r) => (finish = r)));
    expect(await look(pods)).toMatchObject({ pinned: true });
    finish();
    await hanging;
  });
});

describe('the network that was set up', () => {
  const attachment = (podInterface: string, queues = 0): AttachmentPlan => ({
    podInterface,
    primary: podInterface === 'eth0',
    index: 0,
    queues,
    binding: { kind: 'bridge' },
  });
  const plan = (attachments: AttachmentPlan[], detachments: string[] = []): NetworkPlan => ({
    attachments,
    detachments: detachments.map((podInterface) => ({ podInterface, primary: false })),
    uid: 107,
    gid: 107,
  });

  it('is what every set-up named last, without what was taken away', async () => {
    const { pods, pin } = setUp();
    await pin();
    pods.noteNetwork(podA, new Date(1), plan([attachment('eth0'), attachment('net1')]));
    pods.noteNetwork(podA, new Date(2), plan([attachment('eth0', 4), attachment('net2')], ['net1']));
    expect(pods.appliedNetwork(podA)).toEqual({
      at: new Date(2),
      plan: plan([attachment('eth0', 4), attachment('net2')]),
    });
    // A set-up does not take away what another has allowed for passt.
    pods.noteNetwork(podA, new Date(3), { ...plan([]), passtGid: 107 });
    pods.noteNetwork(podA, new Date(4), plan([]));
    expect(pods.appliedNetwork(podA)?.plan).toMatchObject({ passtGid: 107 });
    pods.release(podA);
    expect(pods.appliedNetwork(podA)).toBeUndefined();
    pods.noteNetwork(podB, new Date(3), plan([]));
    expect(pods.appliedNetwork(podB)).toBeUndefined();
  });

  it('is compared with what is there; what cannot be found out is said', async () => {
    const state = { links: [], routes: [], sysctls: {} as never };
    const { helper, pods, pin } = setUp(
      {},
      {
        observeNetwork: async () => state,
        observeNat: async () => Promise.reject(nativeError('EPROTO')),
        pendingNetworkChanges: async () => ['create bridge k6t-eth0'],
      },
    );
    const before = await getNetwork(helper, invocation(), { podUid: podA });
    expect(before).toMatchObject({ nat: [], natProblem: 'fake operation: EPROTO' });
    expect(before.applied).toBeUndefined();
    await pin();
    pods.noteNetwork(podA, new Date(5), { ...plan([attachment('eth0')]), passtGid: 107 });
    const after = await getNetwork(helper, invocation(), { podUid: podA });
    expect(after.applied).toMatchObject({ atMs: 5n, pending: ['create bridge k6t-eth0'], passt: true });
  });
});

describe('list of pods', () => {
  it('has every pod, also those that cannot be looked at', async () => {
    const known = [
      { ...emptyState, podUid: podB, launcherSocket: 'refused', launcherExited: false },
      { ...emptyState, podUid: podA, launcherSocket: 'present', launcherExited: false },
    ];
    const { helper, launchers } = setUp({ watcher: { known } as never });
    launchers.pin = () => Promise.reject(nativeError('ECONNREFUSED', { operation: 'connect launcher-sock' }));
    const { pods } = await listPods(helper, invocation());
    expect(pods?.map(({ state, problem }) => [state?.podUid, problem])).toEqual([
      [podA, 'connect launcher-sock: ECONNREFUSED'],
      [podB, 'launcher-sock is refused'],
    ]);
  });
});

describe('explain', () => {
  const steps = async (helper: Helper, request: Uint8Array, method = 'PodService.Identify') => {
    const answer = await explain(helper, invocation(), { method, request });
    const { allowed, refused } = answer;
    return { allowed, refused, steps: answer.steps?.map(({ check, passed }) => [check, passed]) };
  };

  it('passes through request, binding and launcher without pinning', async () => {
    const { helper, pods } = setUp();
    expect(await steps(helper, identifyRequest(refA))).toEqual({
      allowed: true,
      refused: false,
      steps: [
        ['request', true],
        ['binding', true],
        ['launcher', true],
      ],
    });
    expect(pods.pinned).toBe(0);
    expect(pods.boundTo(podA)).toBeUndefined();
  });

  it('stops where the call would be refused', async () => {
    const { helper, pin } = setUp();
    await pin();
    expect(await steps(helper, identifyRequest({ podUid: '..', vmiUid: '' }))).toMatchObject({
      refused: true,
      steps: [['request', false]],
    });
    expect(await steps(helper, Uint8Array.of(0x0a, 0xff))).toMatchObject({ steps: [['request', false]] });
    expect(await steps(helper, identifyRequest({ podUid: podA, vmiUid: vmiB }))).toMatchObject({
      allowed: false,
      refused: true,
      steps: [
        ['request', true],
        ['binding', false],
      ],
    });
  });

  it('knows to which launcher pod an attachment pod belongs', async () => {
    const { helper, pods, pin } = setUp();
    await pin();
    const attachmentPodUid = '33333333-3333-4333-8333-333333333333';
    await pods.withAttachment({ podUid: podA, attachmentPodUid }, async () => undefined);
    const request = (pod: typeof refA) =>
      toBinary(
        ConnectAttachmentRequestSchema,
        create(ConnectAttachmentRequestSchema, { pod, attachmentPodUid }),
      );
    const method = 'SocketService.ConnectAttachment';
    expect(await steps(helper, request(refA), method)).toMatchObject({ allowed: true });
    expect(await steps(helper, request({ podUid: podB, vmiUid: vmiB }), method)).toMatchObject({
      refused: true,
      steps: [
        ['request', true],
        ['binding', false],
      ],
    });
  });

  it('tells a failure from a refusal, and knows when no launcher is needed', async () => {
    const { helper, launchers } = setUp();
    launchers.pin = () => Promise.reject(nativeError('ECONNREFUSED'));
    const request = identifyRequest(refA);
    expect(await steps(helper, request)).toMatchObject({ allowed: false, refused: false });
    expect(await steps(helper, request, 'PodService.Release')).toMatchObject({ allowed: true });
    expect(await steps(helper, request, 'StorageService.UnmountContainerDisks')).toMatchObject({
      allowed: true,
    });
    await expect(steps(helper, request, 'PodService.Format')).rejects.toThrow('no PodService.Format');
  });

  it.each([
    ['StorageService.UnmountContainerDisks', 'records', 'mount record'],
    ['HotplugService.UnplugAll', 'hotplugRecords', 'record of hot-plugged volumes'],
  ] as const)('%s: says which record stands in for the launcher', async (method, kept, noun) => {
    const { helper, launchers } = setUp();
    launchers.pin = () => Promise.reject(nativeError('ECONNREFUSED'));
    const request = identifyRequest(refA);
    const finding = async (named: boolean) => {
      const [records, hotplugRecords] = [kept === 'records', kept !== 'records'].map((asked) => ({
        names: () => asked === named,
      }));
      const knowing = { ...helper, records, hotplugRecords } as unknown as Helper;
      return (await explain(knowing, invocation(), { method, request })).steps?.at(-1)?.finding;
    };
    expect(await finding(true)).toBe(`nobody listens; the ${noun} names the pod`);
    expect(await finding(false)).toBe(`nobody listens; no ${noun} names the pod, so nothing is done`);
  });
});

describe('dispatch table', () => {
  /** Runs an operation with a registry that notes how it is asked and stops there. */
  async function asked(run: (helper: Helper, invocation: Invocation, checked: never) => unknown) {
    const calls: string[] = [];
    const stop = new Error('stop');
    const note = (name: string) => () => {
      calls.push(name);
      return Promise.reject(stop);
    };
    const pods = {
      withLauncher: note('launcher'),
      callOnLauncher: note('launcher'),
      withPod: note('pod'),
      withLauncherIfAny: note('launcher or record'),
      observe: note('observed launcher'),
    };
    const anything: unknown = new Proxy(() => undefined, { get: () => anything, apply: () => anything });
    const helper = { ...(anything as object), pods } as unknown as Helper;
    await Promise.resolve(run(helper, invocation(), { ...refA, method: 'x' } as never)).catch(
      () => undefined,
    );
    return calls;
  }

  it('says of each method about a pod what its operation really asks for', async () => {
    for (const entry of [...table, ...inspection]) {
      if (entry.kind === 'stream' || entry.subject === 'helper') continue;
      // Which record stands in for a launcher is the operation's.
      const subject = entry.subject.replace('hotplug record', 'record');
      expect([entry.method.name, await asked(entry.run)]).toEqual([entry.method.name, [subject]]);
    }
  });

  it("has methods about the helper only where none is about one pod's launcher", () => {
    const names = [...table, ...inspection]
      .filter(({ subject }) => subject === 'helper')
      .map(({ method }) => method.name);
    expect(names).toEqual([
      'Health',
      'Describe',
      'Watch',
      'Stat',
      'ListenVsock',
      'GetHelper',
      'ListPods',
      'Explain',
    ]);
    expect(subjectWords.launcher).toHaveLength(2);
  });

  it('lets operators look at more than the agent, and change nothing more', () => {
    for (const { entry, declared } of declareAll(inspection)) {
      expect(entry.method.parent.name).toBe('InspectService');
      expect(declared.declaration.changes).toMatch(/^Nothing/);
    }
    expect(table.some(({ method }) => method.parent.name === 'InspectService')).toBe(false);
  });
});

describe('files of /proc', () => {
  it('reads this process', async () => {
    const { ageMs, claimedName } = await readProcess(process.pid, new CommandLines(readCommandLine));
    expect(ageMs).toBeGreaterThan(0);
    expect(ageMs).toBeLessThan(24 * 3600 * 1000);
    expect(claimedName).toBe('');
    await expect(readBounded('/proc/self/status', 10)).rejects.toThrow('read /proc/self/status');
  });

  it('keeps no more than two threads waiting for command lines that do not come', async () => {
    const answers = new Map<number, (text: string) => void>();
    const asked: number[] = [];
    const lines = new CommandLines((pid) => {
      asked.push(pid);
      if (pid >= 10) return pid === 11 ? Promise.reject(new Error('gone')) : Promise.resolve(`line ${pid}`);
      return new Promise((resolve) => answers.set(pid, resolve));
    });
    expect([await lines.of(10), await lines.of(11)]).toEqual(['line 10', '']);
    expect(await lines.of(1)).toBe('');
    expect([await lines.of(1), await lines.of(10)]).toEqual(['', 'line 10']);
    expect(await lines.of(2)).toBe('');
    // Two threads are enough for them: nobody else is read until one answers.
    expect(await lines.of(10)).toBe('');
    expect(asked).toEqual([10, 11, 1, 10, 2]);
    answers.get(2)?.('late');
    await new Promise(setImmediate);
    expect([await lines.of(1), await lines.of(10)]).toEqual(['', 'line 10']);
  });

  it('finds the start time behind any command name', () => {
    const rest = Array.from({ length: 30 }, (_, i) => `${i + 3}`);
    expect(parseStartTicks(`42 (a) b (c) ${rest.join(' ')}`)).toBe(22);
    expect(parseStartTicks('')).toBeNaN();
  });

  it('takes a name from the command line only when it is one', () => {
    const line = (...words: string[]) => parseClaims(words.join('\0'));
    expect(line('/usr/bin/virt-launcher', '--name', 'vm', '--namespace=ns')).toEqual({
      claimedNamespace: 'ns',
      claimedName: 'vm',
    });
    expect(line('--name', '../etc').claimedName).toBe('');
    expect(line('--name', '\u001b[2J').claimedName).toBe('');
    expect(line('--name').claimedName).toBe('');
    expect(line('x').claimedName).toBe('');
  });

  const mountinfo = [
    '21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw',
    '30 21 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755',
    '31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory',
    '32 30 0:28 /kubepods /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct',
    '33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw',
    '40 21 0:40 / /var/run/kubevirt/container-disks/disk_11.img ro,nosuid master:3 - tmpfs a\\040b rw',
    '41 21 0:40 / /run/kubevirt/container-disks/disk_2.img ro - tmpfs x rw',
    '42 21 0:40 / /elsewhere/disk_3.img ro unbindable - tmpfs x rw',
    'not a mount',
    '',
  ].join('\n');

  it('reads mounts, and which of them are container disks', () => {
    const mounts = parseMountinfo(mountinfo);
    expect(mounts).toHaveLength(8);
    expect(mounts[5]).toMatchObject({ source: 'a b', options: 'ro,nosuid', propagation: 'slave' });
    expect([mounts[0]?.propagation, mounts[6]?.propagation]).toEqual(['shared', 'private']);
    expect(mounts[7]?.propagation).toBe('unbindable');
    expect(mountedDisks(mounts)).toEqual([2, 11]);
    expect(mountOf(mounts, '/sys/fs/cgroup/memory/x')?.filesystem).toBe('cgroup');
    expect(mountOf(mounts, '/sys/fs/cgroupx')?.mountPoint).toBe('/');
  });

  it.each([
    ['36 35 98:0 /a\\043\\303\\244 /b rw - nfs h:/\\043 rw,dir=\\040', { root: '/a#ä', source: 'h:/#' }],
    ['36 35 98:0 / /b rw - cifs //h/My\\040Docs rw,unc=//h/My Docs', { superOptions: 'rw,unc=//h/My' }],
    ['36 35 98:0 / /b rw - tmpfs - rw', { source: '-', optionalFields: '' }],
    [
      '36 35 98:0 / /b rw shared:1 propagate_from:2 - tmpfs  a\\040b',
      { source: '', superOptions: 'a\\040b' },
    ],
    ['x 35 98: / /b rw - tmpfs t rw', { id: 0, parent: 35, major: 98, minor: 0 }],
  ])('STO-004 reads the mount %s', (line, mount) => {
    expect(parseMountinfo(line)).toEqual([expect.objectContaining(mount)]);
  });

  it.each([
    '36 35 98:0 / /b rw - ext4 x',
    '36 35 98:0 / /b - ext4 x rw seclabel',
    '36 35 98:0 / /b rw ext4 x rw a b',
    '36 35 98:0:1 / /b rw - ext4 x rw',
    '36 35 98:0 /\\09 /b rw - ext4 x rw',
    '36 35 98:0 / /b\\04 rw - ext4 x rw',
    '36 35 98:0 / /b rw - ext4 x\\y rw',
  ])('STO-004 leaves out %s', (line) => {
    expect(parseMountinfo(line)).toEqual([]);
  });

  it('reads cgroups and where they are mounted', () => {
    expect(parseCgroup('9:name=systemd:/a\n4:cpu,cpuacct:/kubepods/b:c\n0::/u\nx\n')).toEqual([
      { controllers: 'name=systemd', path: '/a' },
      { controllers: 'cpu,cpuacct', path: '/kubepods/b:c' },
      { controllers: '', path: '/u' },
    ]);
    const found = parseHierarchyMounts(mountinfo, '/sys/fs/cgroup');
    expect(found.map(({ version, root }) => [version, root])).toEqual([
      [1, '/'],
      [1, '/kubepods'],
      [2, '/'],
    ]);
    expect(parseHierarchyMounts(mountinfo, '/sys/fs/cgroup/unified')).toHaveLength(1);
  });
});

it('closes what a failed look has opened', async () => {
  const { pods, launchers } = setUp();
  const failing = vi.fn(async (_: { launcher: Launcher }) => Promise.reject(new Error('no')));
  await expect(pods.observe(invocation(), podA, failing)).rejects.toThrow('no');
  expect(launchers.closed).toHaveLength(3);
});
