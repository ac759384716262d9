/** Every command of privctl on a node where everything runs. */
import { execFile } from 'node:child_process';
import { chmodSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { inspection, table } from '../../privhelper/dispatch.js';
import { run, waitFor } from '../harness/pods/run.js';
import { agentUser, helperUser } from '../harness/system/system.js';
import { PrivctlNode, ref, request } from './privctl-fixture.js';

const isRoot = process.getuid?.() === 0;
const deadlineMs = 20_000;

describe.runIf(isRoot)('privctl', () => {
  let node: PrivctlNode;

  beforeAll(async () => {
    node = await PrivctlNode.create();
  }, 180_000);
  afterAll(() => node?.system.stop());

  it('lists launcher pods with VMI, process, namespaces, disks and links', async () => {
    const { pods } = await node.json('pods');
    expect(pods).toHaveLength(3);
    for (const each of node.vms) {
      const pod = pods.find((found: { state: { podUid: string } }) => found.state.podUid === each.pod.uid);
      expect(pod).toMatchObject({ vmiUid: each.uid, pinned: true, problem: '', links: expect.any(Number) });
      expect(pod.launcher).toMatchObject({
        pid: each.launcher.pid,
        uid: 107,
        claimedName: each.name,
        claimedNamespace: each.namespace,
      });
      expect(pod.launcher.networkNamespace).toBe(`${statSync(each.pod.netns).ino}`);
      expect(pod.mountedDisks).toEqual(each.name === 'alpha' ? [0] : []);
    }
    const { out, code } = await node.run(['pods']);
    expect(code).toBe(0);
    const [heading, ...rows] = out.trimEnd().split('\n');
    expect(heading).toMatch(/^POD {2,}VMI {2,}NAME {2,}PID {2,}UID {2,}NETNS {2,}MNTNS {2,}LINKS {2,}DISKS/);
    expect(rows).toHaveLength(3);
    expect(out).toContain('other/charlie');
    expect(out).toContain('disk_0');
    const { out: quiet } = await node.run(['pods', '--quiet']);
    expect(quiet.trim().split('\n').sort()).toEqual(node.vms.map(({ pod }) => pod.uid).sort());
  });

  it('names a pod by pod UID, VMI UID, the beginning of either, or the VMI', async () => {
    const { pod, uid } = node.vm('alpha');
    for (const name of [pod.uid, uid, pod.uid.slice(0, 8), uid.slice(0, 8), 'alpha', 'default/alpha']) {
      const { out } = await node.run(['devices', name]);
      expect(out.split('\n')[0]).toBe(`Pod ${pod.uid}`);
    }
    expect(await node.run(['devices', 'delta'])).toMatchObject({
      code: 1,
      err: expect.stringContaining('no launcher pod'),
    });
  });

  it('shows the network and that it is as it was set up', async () => {
    const alpha = await node.json('net', 'alpha');
    expect(alpha.links.map(({ name }: { name: string }) => name).sort()).toEqual([
      'eth0',
      'k6t-eth0',
      'lo',
      'tap0',
    ]);
    expect(alpha.nat).toContainEqual(
      expect.objectContaining({
        family: 'ip',
        name: 'prerouting',
        hook: 'prerouting',
        priority: -100,
        rules: 1,
      }),
    );
    expect(alpha.applied).toMatchObject({
      attachments: [{ podInterface: 'eth0', binding: 'masquerade', primary: true }],
      pending: [],
      problem: '',
    });
    expect((await node.json('net', 'bravo')).applied).toMatchObject({
      attachments: [{ binding: 'bridge' }],
      pending: [],
    });
    const { out, code } = await node.run(['net', 'alpha']);
    expect(code).toBe(0);
    for (const title of ['LINKS', 'ROUTES', 'SYSCTLS', 'NAT', 'SET UP BY THE HELPER', 'DIFFERENCE']) {
      expect(out).toContain(`\n${title}`);
    }
    expect(out).toContain('none: links, addresses, sysctls and NAT are as they were set up');
  });

  it('shows what setting the network up again would change, and changes nothing itself', async () => {
    const { pod } = node.vm('charlie');
    const inPod = (...command: string[]) => run('nsenter', [`--net=${pod.netns}`, ...command]);
    await inPod('ip', 'link', 'set', 'k6t-eth0', 'down');
    await inPod('ip', 'address', 'flush', 'dev', 'k6t-eth0');
    await inPod('nft', 'flush', 'chain', 'ip', 'nat', 'KUBEVIRT_PREINBOUND');
    const expected = ['add 10.0.2.1/24 to k6t-eth0', 'set k6t-eth0 up', 'commit NAT rules'];
    for (let i = 0; i < 2; i += 1)
      expect((await node.json('net', 'charlie')).applied.pending).toEqual(expected);
    expect((await node.run(['net', 'charlie'])).out).toContain('setting it up again would');
  });

  it('marks container disks among the mounts', async () => {
    const { mounts } = await node.json('mounts', 'alpha');
    const disk = mounts.find(({ containerDisk }: { containerDisk?: number }) => containerDisk === 0);
    expect(disk).toMatchObject({
      mountPoint: expect.stringMatching(/disk_0\.img$/),
      options: expect.stringContaining('ro'),
    });
    const { out } = await node.run(['mounts', 'alpha']);
    expect(out).toMatch(/^disk_0 +\S+disk_0\.img/m);
    expect(out).not.toContain('/proc');
    const full = (await node.run(['mounts', 'alpha', '--full'])).out;
    expect(full).toMatch(/^- +\/proc/m);
    expect(full).toContain('ON THE NODE');
    const usr = mounts.find(({ mountPoint }: { mountPoint: string }) => mountPoint === '/usr');
    expect(statSync(usr.nodePath).ino).toBe(statSync('/usr').ino);
  });

  it('shows whose the device nodes are', async () => {
    const { devices } = await node.json('devices', 'alpha');
    expect(devices.map(({ device }: { device: string }) => device)).toEqual([
      'DEVICE_KVM',
      'DEVICE_MSHV',
      'DEVICE_TUN',
      'DEVICE_VHOST_NET',
      'DEVICE_VHOST_VSOCK',
      'DEVICE_SEV',
      'DEVICE_VFIO',
    ]);
    expect(devices[2]).toMatchObject({
      state: 'DEVICE_NODE_STATE_PRESENT',
      uid: 107,
      gid: 107,
      allowed: true,
      claimed: true,
    });
    const { out } = await node.run(['devices', 'alpha']);
    expect(out).toMatch(/^tun +present +107:107/m);
    expect(out.split('The container may open\n')[1]).toMatch(/c 10:200 rwm|everything is allowed/);
  });

  it('shows the cgroups of the launcher', async () => {
    const { hierarchies } = await node.json('cgroup', 'alpha');
    expect(hierarchies.length).toBeGreaterThan(0);
    const own = readFileSync(`/proc/${node.vm('alpha').launcher.pid}/cgroup`, 'utf8');
    for (const { path } of hierarchies) expect(own).toContain(path);
    expect(hierarchies.flatMap(({ values }: { values: object[] }) => values).length).toBeGreaterThan(0);
    expect((await node.run(['cgroup', 'alpha'])).out).toContain(`pod${node.vm('alpha').pod.uid}`);
  });

  it('explains what would be allowed, refused or fail, and a call then does just that', async () => {
    const alpha = node.vm('alpha');
    const foreign = { podUid: alpha.pod.uid, vmiUid: node.vm('bravo').uid };
    const absent = { podUid: crypto.randomUUID(), vmiUid: alpha.uid };
    const cases: [string, string, number][] = [
      ['PodService.Identify', request(ref(alpha)), 0],
      ['PodService.Identify', request(foreign), 3],
      ['PodService.Identify', request(absent), 1],
      ['PodService.Identify', request({ podUid: '../..', vmiUid: alpha.uid }), 3],
      ['StorageService.StatContainerDisks', request(ref(alpha), { volumeIndexes: [1000] }), 3],
      ['StorageService.MountContainerDisks', request(ref(alpha)), 3],
      ['DeviceService.Claim', request(ref(alpha), { devices: ['DEVICE_KVM', 'DEVICE_KVM'] }), 3],
      ['NetworkService.Observe', request(ref(node.vm('bravo'))), 0],
    ];
    for (const [method, body, code] of cases) {
      const explained = await node.run(['explain', method, body]);
      const called = await node.run(['call', method, body]);
      expect([method, body, explained.code, called.code]).toEqual([method, body, code, code]);
      expect(explained.out).toContain('Nothing was done.');
      // Both give the same reason.
      const reason = called.err.split('\n')[0]?.replace(/^privctl: (?:refused|failed): /, '') ?? '';
      if (code !== 0) expect(explained.out).toContain(reason);
    }
    const explained = JSON.parse(
      (await node.run(['explain', 'PodService.Identify', request(foreign), '-o', 'json'])).out,
    );
    expect(explained).toMatchObject({ allowed: false, refused: true });
  });

  it('calls under the same checks and audit as the agent', async () => {
    const body = request(ref(node.vm('charlie')));
    expect(await node.json('call', 'PodService.Identify', body)).toMatchObject({ changed: false, uid: 107 });
    const { pod } = node.vm('charlie');
    const lines = node.system
      .audit()
      .filter((line) => line['actor'] === 'privctl uid 0' && line['pod'] === pod.uid);
    expect(lines.map((line) => [line['event'], line['method']])).toEqual(
      expect.arrayContaining([
        ['begin', 'PodService.Identify'],
        ['end', 'PodService.Identify'],
      ]),
    );
    expect(await node.run(['call', 'PodService.Stat', '{'])).toMatchObject({ code: 2 });
    expect(await node.run(['call', 'PodService.Stat', '{"path":"/etc"}'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('Its fields: podUid.'),
    });
  });

  it('shows a stream until it is interrupted', async () => {
    const watch = node.start(['call', 'PodService.Watch']);
    await waitFor('the pods to be shown', deadlineMs, () => watch.out().includes('"synced"'));
    for (const { pod } of node.vms) expect(watch.out()).toContain(pod.uid);
    watch.process.child.kill('SIGINT');
    await watch.process.exited;
  });

  it('pairs begin and end in the audit log, and selects', async () => {
    const { out, code } = await node.run(['audit', ...node.log, '--limit', '0']);
    expect(code).toBe(0);
    expect(out).toMatch(/^TIME +OUTCOME +METHOD +POD +BY +MS +DETAIL/);
    expect(out).toMatch(/ allowed +NetworkService\.Apply /);
    expect(out).toMatch(/ running +PodService\.Watch /);
    const lines = (await node.run(['audit', ...node.log, '--refused', '-o', 'json', '--limit', '0'])).out
      .trim()
      .split('\n');
    const refused = lines.map((line) => JSON.parse(line));
    expect(refused.length).toBeGreaterThan(0);
    expect(refused.every(({ outcome }) => outcome === 'refused')).toBe(true);
    const { pod } = node.vm('bravo');
    const ofPod = (await node.run(['audit', ...node.log, '--pod', pod.uid.slice(0, 8), '-o', 'json'])).out;
    expect(
      ofPod
        .trim()
        .split('\n')
        .every((line) => JSON.parse(line).pod === pod.uid),
    ).toBe(true);
    expect(await node.run(['audit', ...node.log, '--since', '0s'])).toMatchObject({
      code: 0,
      out: expect.stringContaining('Nothing'),
    });
    expect(await node.run(['audit', '--audit-file', '/nowhere/audit'])).toMatchObject({ code: 1 });
  });

  it('follows the audit log', async () => {
    const follow = node.start(['audit', ...node.log, '-f', '-o', 'json']);
    await waitFor('the log so far', deadlineMs, () => follow.out() !== '');
    const foreign = { podUid: node.vm('bravo').pod.uid, vmiUid: node.vm('alpha').uid };
    const body = request(foreign, { listener: 'POD_LISTENER_NOTIFY' });
    await node.run(['call', 'SocketService.CloseListener', body]);
    await waitFor('the refusal to be followed', deadlineMs, () =>
      follow.out().includes('SocketService.CloseListener'),
    );
    follow.process.child.kill('SIGINT');
    await follow.process.exited;
  });

  it('describes methods with declaration and checks', async () => {
    const { methods } = await node.json('describe');
    expect(methods).toHaveLength(table.length + inspection.length);
    const apply = methods.find(({ method }: { method: string }) => method.endsWith('.NetworkService.Apply'));
    expect(apply.declaration.capabilities).toContain('CAPABILITY_NET_ADMIN');
    expect(apply.checks.length).toBeGreaterThan(3);
    const { out } = await node.run(['describe']);
    expect(out).toMatch(/^PodService\.Identify +DAC_OVERRIDE SYS_PTRACE +- +changes helper +5 s +launcher$/m);
    expect((await node.run(['describe', 'podservice.identify'])).out).toContain(
      '2. while its launcher lives',
    );
  });

  it('shows the policy of the running helper and checks a file', async () => {
    const { values } = await node.json('policy', 'show');
    const value = (path: string) => values.find((each: { path: string }) => each.path === path);
    expect(value('paths.kubeletPodsDir')).toMatchObject({ value: node.system.node.podsDir, origin: 'flag' });
    expect(value('limits.maxPods')).toMatchObject({ value: '1024', origin: 'default' });
    const file = join(node.system.node.root, 'policy.yaml');
    writeFileSync(file, 'version: 1\nlimits: {maxPods: 12}\n', { mode: 0o644 });
    expect(await node.run(['policy', 'check', file])).toMatchObject({ code: 0 });
    expect((await node.run(['policy', 'show', '--policy', file])).out).toMatch(/^limits\.maxPods +12 +file/m);
    chmodSync(file, 0o666);
    expect(await node.run(['policy', 'check', file])).toMatchObject({
      code: 1,
      out: expect.stringContaining('may be written by others'),
    });
  });

  it('examines node, kernel and helper', async () => {
    const ran = await node.run(['doctor', ...node.files, '-o', 'json']);
    const { findings, failures } = JSON.parse(ran.out);
    expect([failures, ran.code]).toEqual([0, 0]);
    const finding = (check: string) => findings.find((each: { check: string }) => each.check === check);
    for (const check of [
      'running',
      'agent',
      'capabilities',
      'seccomp',
      'no_new_privs',
      'openat2',
      '/dev/net/tun',
    ]) {
      expect(finding(check)).toMatchObject({ status: 'ok' });
    }
    const { out } = await node.run(['doctor', ...node.files]);
    for (const title of ['HELPER', 'NODE', 'KERNEL', 'LEFT BEHIND']) expect(out).toContain(title);
  });

  it('REC-051 is for root and the group of operators only', async () => {
    const stranger = await node.run(['pods'], { uid: 1000, gid: 1000 });
    expect(stranger).toMatchObject({ code: 3, out: '' });
    expect(stranger.err).toContain(`needs root or the operators' group (gid ${helperUser})`);
    expect(await node.run(['pods'], { uid: agentUser, gid: agentUser })).toMatchObject({ code: 3, out: '' });
    expect(await node.run(['audit', ...node.log], { uid: 1000, gid: 1000 })).toMatchObject({ code: 3 });
    expect(await node.run(['pods', '--quiet'], { uid: 1000, gid: helperUser })).toMatchObject({ code: 0 });
    // What needs no helper and no secret is for everybody.
    expect(await node.run(['describe'], { uid: 1000, gid: 1000 })).toMatchObject({ code: 0 });
  });

  it('the helper itself refuses a stranger that gets hold of the socket', async () => {
    chmodSync(join(node.system.socketDir, 'ctl.sock'), 0o666);
    const script = `const s = require('node:net').connect(${JSON.stringify(join(node.system.socketDir, 'ctl.sock'))});
      s.on('close', () => process.exit(7)).on('error', () => {}); setTimeout(() => process.exit(1), ${deadlineMs});`;
    const code = await new Promise((resolve) =>
      execFile(process.execPath, ['-e', script], { uid: 1000, gid: 1000 }, (error) => resolve(error?.code)),
    );
    chmodSync(join(node.system.socketDir, 'ctl.sock'), 0o660);
    expect(code).toBe(7);
    await waitFor('the refusal in the audit log', deadlineMs, () =>
      node.system
        .audit()
        .some((line) => line['actor'] === 'privctl uid 1000' && line['decision'] === 'refused'),
    );
  });

  it('wrong usage is told apart from failure', async () => {
    for (const args of [
      ['frobnicate'],
      ['net'],
      ['pods', 'x'],
      ['pods', '--follow'],
      ['pods', '-o', 'xml'],
      ['call', 'No.Such'],
      ['--unknown'],
    ]) {
      const { code, err } = await node.run(args);
      expect([args, code]).toEqual([args, 2]);
      expect(err).toMatch(/^privctl: /);
    }
    expect((await node.run([])).code).toBe(2);
    expect(await node.run(['help', 'net'])).toMatchObject({ code: 0 });
    expect((await node.run(['completion', 'bash'])).out).toContain('complete -F _privctl privctl');
  });
});
