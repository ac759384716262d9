/** privctl when something is down: agent, launcher, helper; and a helper with a policy file. */
import { chmodSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { waitFor } from '../harness/pods/run.js';
import { PrivctlNode, ref, request } from './privctl-fixture.js';

const isRoot = process.getuid?.() === 0;
const deadlineMs = 20_000;

describe.runIf(isRoot)('privctl on a node in trouble', () => {
  let node: PrivctlNode;

  beforeAll(async () => {
    node = await PrivctlNode.create();
  }, 180_000);
  afterAll(() => node?.system.stop());

  it('works with the agent down, and needs no API server', async () => {
    await node.system.kill('agent');
    await waitFor('the helper to notice', deadlineMs, async () => {
      const findings = JSON.parse((await node.run(['doctor', ...node.files, '-o', 'json'])).out).findings;
      return findings.some(
        (each: { check: string; status: string }) => each.check === 'agent' && each.status === 'warn',
      );
    });
    expect((await node.json('pods')).pods).toHaveLength(3);
    for (const command of ['net', 'mounts', 'devices', 'cgroup']) {
      expect((await node.run([command, 'bravo'])).code).toBe(0);
    }
    expect((await node.run(['explain', 'PodService.Identify', request(ref(node.vm('bravo')))])).code).toBe(0);
  });

  it('lists a pod whose launcher is gone with the reason', async () => {
    const { pod, uid, launcher } = node.vm('charlie');
    launcher.crash();
    await launcher.exited;
    await waitFor('the pod to be seen without launcher', deadlineMs, async () => {
      const { pods } = await node.json('pods');
      const found = pods.find(({ state }: { state: { podUid: string } }) => state.podUid === pod.uid);
      return found.launcher === undefined && found.problem !== '' && found.vmiUid === uid;
    });
    expect(await node.run(['net', pod.uid])).toMatchObject({ code: 1 });
    const { findings } = JSON.parse((await node.run(['doctor', ...node.files, '-o', 'json'])).out);
    const dead = findings.find((each: { check: string }) => each.check === 'launcher pods without launcher');
    expect(dead).toMatchObject({ status: 'warn', finding: pod.uid });
  });

  it('shows what it can with the helper down, and what a killed helper left unfinished', async () => {
    const watch = node.start(['call', 'PodService.Watch']);
    await waitFor('the stream to begin', deadlineMs, () => watch.out() !== '');
    await node.system.kill('helper');
    await watch.process.exited;
    for (const args of [['describe'], ['policy', 'show'], ['audit', ...node.log], ['help']]) {
      expect([args, (await node.run(args)).code]).toEqual([args, 0]);
    }
    const doctor = await node.run(['doctor', ...node.files]);
    expect(doctor).toMatchObject({ code: 1, out: expect.stringContaining('the helper is not running here') });
    expect(doctor.out).toContain('openat2');
    for (const args of [['pods'], ['net', 'alpha'], ['call', 'HelperService.Health']]) {
      const { code, err } = await node.run(args);
      expect([args, code]).toEqual([args, 1]);
      expect(err).toContain('the helper is not running here');
    }
    rmSync(join(node.system.socketDir, 'ctl.sock'), { force: true });
    expect((await node.run(['pods'])).err).toContain('ENOENT');

    await node.system.startHelper();
    const lines = (await node.run(['audit', ...node.log, '-o', 'json', '--limit', '0'])).out
      .trim()
      .split('\n');
    const interrupted = lines
      .map((line) => JSON.parse(line))
      .filter(({ outcome }) => outcome === 'interrupted');
    expect(interrupted).toMatchObject([{ method: 'PodService.Watch', actor: 'privctl uid 0' }]);
    expect(lines.filter((line) => JSON.parse(line).outcome === 'started')).toHaveLength(2);
    // The new helper has set nothing up yet, and says so.
    const net = await node.json('net', 'alpha');
    expect(net.applied).toBeUndefined();
    expect((await node.run(['net', 'alpha'])).out).toContain('unknown: there is nothing to compare with');
    const pods = (await node.json('pods')).pods;
    expect(
      pods.find(({ state }: { state: { podUid: string } }) => state.podUid === node.vm('alpha').pod.uid),
    ).toMatchObject({
      pinned: false,
      vmiUid: '',
      mountedDisks: [0],
    });
  });

  it('STO-033 a policy file takes a device away, and one that others may write keeps the helper from starting', async () => {
    await node.system.terminate('helper');
    const file = join(node.system.node.root, 'devices.yaml');
    writeFileSync(file, 'version: 1\ndevices: [kvm]\n', { mode: 0o644 });
    await node.system.startHelper('--policy', file);
    expect((await node.run(['policy', 'show'])).out).toMatch(/^devices +kvm +file /m);
    const claim = request(ref(node.vm('alpha')), { devices: ['DEVICE_TUN'] });
    for (const command of ['explain', 'call']) {
      const { code, out, err } = await node.run([command, 'DeviceService.Claim', claim]);
      expect([command, code]).toEqual([command, 3]);
      expect(out + err).toContain('policy does not allow device tun');
    }
    await node.system.terminate('helper');
    chmodSync(file, 0o664);
    await expect(node.system.startHelper('--policy', file)).rejects.toThrow(
      'may be written by others (mode 664)',
    );
  });
});
