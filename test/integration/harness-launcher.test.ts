import { execFileSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  watch,
  writeFileSync,
} from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { guestVmi } from '../harness/guest/vmi.js';
import { LauncherTestClient } from '../harness/launcher/client.js';
import { FakeMachine } from '../harness/launcher/fake-machine.js';
import { noFaults } from '../harness/launcher/faults.js';
import { Launcher, LauncherPanic, type LauncherTimes } from '../harness/launcher/launcher.js';
import { launcherTimes } from '../harness/launcher/notifier.js';
import { NotifyRecorder } from '../harness/launcher/notify-recorder.js';
import { type StartLauncherOptions, startLauncher } from '../harness/launcher/start.js';
import { runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import { waitFor } from '../harness/pods/run.js';

const uid = '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10';
const name = { namespace: 'default', name: 'vm1' };
const vmi = guestVmi({ ...name, uid, nodeName: 'node01', activePods: {}, binding: 'masquerade' });

/** Error code of a connection attempt; undefined when it succeeds. */
function connectError(path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once('connect', () => resolve(undefined));
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code));
  });
}

const peerPid = `
import socket, struct, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
print(struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])`;

describe('launcher in a pod', () => {
  let node: HarnessNode;
  let lastAddress = 20;

  beforeAll(async () => {
    node = await createNode();
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });
  afterAll(async () => {
    await node?.destroy();
    expect(await node.leftovers()).toEqual([]);
  });

  async function start(options: Partial<StartLauncherOptions> = {}, image?: string) {
    const pod = await node.createPod({
      name: 'virt-launcher-vm1-x',
      vmiUid: uid,
      podIP: `10.244.2.${lastAddress++}`,
      ...(image === undefined ? {} : { containerDisks: [{ index: 0, image }] }),
    });
    const launcher = await startLauncher(pod, { ...name, vmiUid: uid, machine: 'fake', ...options });
    return { pod, launcher, client: new LauncherTestClient(launcher.socketPath) };
  }

  it('LAU-004 launcher-sock appears by rename, answers at once, names the launcher, and stays when it is dead', async () => {
    const pod = await node.createPod({ name: 'p', vmiUid: uid, podIP: `10.244.2.${lastAddress++}` });
    // The socket's host path is too long for connect(2), so it is reached through its directory.
    const sockets = openSync(pod.emptyDir('sockets'), 'r');
    const path = `/proc/self/fd/${sockets}/launcher-sock`;
    const first: Promise<string | undefined>[] = [];
    const watcher = watch(pod.emptyDir('sockets'), (_, file) => {
      if (file === 'launcher-sock' && first.length === 0 && existsSync(path)) first.push(connectError(path));
    });
    const launcher = await startLauncher(pod, { ...name, vmiUid: uid, machine: 'fake' });
    expect(await waitFor('the watch', 5000, () => first[0]?.then((error) => error ?? 'connected'))).toBe(
      'connected',
    );
    watcher.close();
    expect(existsSync(join(pod.emptyDir('sockets'), 'launcher-init-sock'))).toBe(false);
    const bound = await runInNetns(launcher.pid, 'cat', ['/proc/net/unix']);
    expect(bound).toMatch(/ \/var\/run\/kubevirt\/sockets\/launcher-init-sock$/m);
    expect(
      execFileSync('/usr/bin/python3', ['-c', peerPid, launcher.socketPath], { encoding: 'utf8' }).trim(),
    ).toBe(String(launcher.pid));
    launcher.terminate();
    expect(await launcher.exited).toEqual({ code: 0, signal: null });
    expect(await connectError(path)).toBe('ECONNREFUSED');
    closeSync(sockets);
  });

  it('LAU-008 SIGTERM only marks; the padded grace period ends the machine', async () => {
    const { pod, launcher, client } = await start({ terminationGracePeriodSeconds: 0 });
    const recorder = new NotifyRecorder(`/proc/${launcher.pid}/root/run/kubevirt/domain-notify-pipe.sock`);
    await recorder.listen();
    await client.command('syncVirtualMachine', vmi);
    await recorder.state('Running/Unknown');
    const terminated = Date.now();
    launcher.terminate();
    const marked = await recorder.event(
      'mark',
      ({ domain }) => domain.Spec.Metadata.KubeVirt.GracePeriod?.MarkedForGracefulShutdown === true,
    );
    expect(marked.state).toBe('Running/Unknown');
    const destroyed = await recorder.state('Shutoff/Destroyed', 30_000);
    expect(destroyed.at - terminated).toBeGreaterThanOrEqual(15_000);
    await client.command('deleteVirtualMachine', vmi);
    expect(await launcher.exited).toEqual({ code: 0, signal: null });
    client.close();
    recorder.close();
    await pod.destroy();
  });

  it('ends the container with an error when the launcher is killed, and its container disks with it', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'vp-image-'));
    writeFileSync(join(directory, 'disk.raw'), 'image');
    const { pod, launcher } = await start({}, join(directory, 'disk.raw'));
    launcher.crash();
    expect((await launcher.exited).code).toBe(1);
    expect(await pod.containers.get('volumedisk0')?.exited).toEqual({ code: 0, signal: null });
    rmSync(directory, { recursive: true });
  });

  it('shows faults on demand', async () => {
    const future = await start({ faults: { versions: [42] } });
    expect(await future.client.versions()).toEqual([42]);
    future.client.close();

    const slow = await start({ faults: { slowSyncSeconds: 1 } });
    const before = Date.now();
    await slow.client.command('syncVirtualMachine', vmi);
    expect(Date.now() - before).toBeGreaterThanOrEqual(1000);
    slow.client.close();

    const hung = await start({ faults: { hang: true } });
    expect(await hung.client.versions()).toEqual([1]);
    const ping = hung.client.ping(500);
    await expect(ping).rejects.toMatchObject({ details: expect.stringContaining('Deadline') });
    hung.client.close();

    const frozen = await start();
    frozen.launcher.freeze();
    expect(await connectError(frozen.launcher.socketPath)).toBeUndefined();
    await expect(frozen.client.ping(500)).rejects.toMatchObject({
      details: expect.stringContaining('Deadline'),
    });
    frozen.launcher.thaw();
    await frozen.client.ping(5000);
    frozen.client.close();

    const pod = await node.createPod({ name: 'p', vmiUid: uid, podIP: `10.244.2.${lastAddress++}` });
    await expect(
      startLauncher(pod, { ...name, vmiUid: uid, machine: 'fake', faults: { simulateCrash: true } }),
    ).rejects.toThrow('simulated crash');
  });
});

/** Times that let a test see each rule without waiting as long as the launcher really does. */
const shortTimes: LauncherTimes = {
  qemuTimeoutMs: 60_000,
  gracePeriodMs: 60_000,
  finalMs: [300, 300],
  killEveryMs: 100,
  notifier: { ...launcherTimes, retryMs: 20, giveUpMs: 1000 },
};

describe('launcher in this process', () => {
  const undo: (() => void)[] = [];
  afterEach(() => {
    for (const step of undo.splice(0).reverse()) step();
  });

  function launch(times: Partial<LauncherTimes> = {}, lateMetadata = false) {
    const root = mkdtempSync(join(tmpdir(), 'vp-l-'));
    undo.push(() => rmSync(root, { recursive: true, force: true }));
    for (const directory of ['share/sockets', 'links/eth0'])
      mkdirSync(join(root, directory), { recursive: true });
    writeFileSync(join(root, 'links/eth0/address'), '0a:58:0a:f4:02:05\n');
    writeFileSync(join(root, 'links/eth0/mtu'), '1450\n');
    const lines: string[] = [];
    const launcher = new Launcher({
      ...name,
      uid,
      podName: 'target-pod',
      directories: {
        share: join(root, 'share'),
        privateDirectory: join(root, 'private'),
        run: join(root, 'run'),
        links: join(root, 'links'),
      },
      times: { ...shortTimes, ...times },
      faults: noFaults,
      lateMetadata,
      createMachine: (listener) => new FakeMachine(listener, true),
      dhcpProgram: undefined,
      log: (line) => lines.push(line),
    });
    const ended = launcher.run();
    ended.catch(() => {});
    const recorder = new NotifyRecorder(join(root, 'share/domain-notify-pipe.sock'));
    undo.push(() => recorder.close());
    const connectClient = async () => {
      const socket = join(root, 'share/sockets/launcher-sock');
      await waitFor('launcher-sock', 5000, () => existsSync(socket));
      const client = new LauncherTestClient(socket);
      undo.push(() => client.close());
      return client;
    };
    return { launcher, ended, recorder, connectClient, lines };
  }

  it('LAU-006 a pipe that appears late gets the events; after that, connections are made anew', async () => {
    const { ended, recorder, connectClient } = launch({ notifier: { ...launcherTimes, retryMs: 20 } });
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    await recorder.listen();
    expect(await recorder.state('Shutoff/Unknown')).toMatchObject({ type: 'ADDED' });
    await recorder.state('Running/Unknown');
    await recorder.event('all events', () => recorder.events.length === 5);

    recorder.close();
    await client.command('pauseVirtualMachine', vmi);
    await recorder.listen();
    await recorder.state('Paused/User');
    await client.command('killVirtualMachine', vmi);
    await recorder.state('Shutoff/Destroyed');
    await client.command('deleteVirtualMachine', vmi);
    await ended;
    expect(recorder.events.at(-1)).toMatchObject({ type: 'MODIFIED', state: 'NoState/NonExistent' });
  });

  it('LAU-006 an event that cannot be delivered in time is lost, the next one is not', async () => {
    const { recorder, connectClient, lines } = launch({
      notifier: { ...launcherTimes, dialMs: 30, retryMs: 20, giveUpMs: 100 },
    });
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    await waitFor(
      'all events to be dropped',
      10_000,
      () => lines.filter((line) => line.endsWith('not delivered')).length === 5,
    );
    await recorder.listen();
    await client.command('pauseVirtualMachine', vmi);
    await recorder.state('Paused/User');
    expect(recorder.events).toHaveLength(1);
  });

  it('LAU-006 the queue holds ten events', async () => {
    const { connectClient, lines } = launch({ notifier: { ...launcherTimes, giveUpMs: 60_000 } });
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    for (let n = 0; n < 4; n++) {
      await client.command('pauseVirtualMachine', vmi);
      await client.command('unpauseVirtualMachine', vmi);
    }
    // 5 of the start and 8: one is being sent, ten wait, two are lost.
    expect(lines.filter((line) => line === 'event dropped: the queue is full')).toHaveLength(2);
  });

  it('LAU-006 keeps the real launcher’s times outside of tests', () => {
    expect(launcherTimes).toEqual({
      dialMs: 2000,
      versionMs: 5000,
      callMs: 5000,
      retryMs: 1000,
      giveUpMs: 20_000,
    });
  });

  it('LAU-007 the final notification goes out before the end', async () => {
    const { ended, recorder, connectClient } = launch({ finalMs: [15_000, 30_000] });
    await recorder.listen();
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    await client.command('shutdownVirtualMachine', vmi);
    await recorder.state('Shutoff/Shutdown');
    expect(await client.domain()).toMatchObject({ Status: { Status: 'Shutoff', Reason: 'Shutdown' } });
    await client.command('deleteVirtualMachine', vmi);
    await ended;
    const last = recorder.events.at(-1);
    expect(last).toMatchObject({ type: 'MODIFIED', state: 'NoState/NonExistent' });
    expect(last?.domain.ObjectMeta.deletionTimestamp).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    expect(last?.domain.Spec.Metadata.KubeVirt.UID).toBe(uid);
  });

  it('LAU-007 ends without a deletion after both waits', async () => {
    const { ended, recorder, connectClient, lines } = launch();
    await recorder.listen();
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    await client.command('killVirtualMachine', vmi);
    await ended;
    expect(lines.slice(-2)).toEqual([
      'no final notification yet, killing once more',
      'ending without the final notification',
    ]);
  });

  it('LAU-008 SIGTERM leaves the machine to the node agent’s commands', async () => {
    const { launcher, ended, recorder, connectClient } = launch();
    await recorder.listen();
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    launcher.requestStop();
    await recorder.event(
      'mark',
      ({ domain }) => domain.Spec.Metadata.KubeVirt.GracePeriod?.MarkedForGracefulShutdown === true,
    );
    expect(await client.domain()).toMatchObject({ Status: { Status: 'Running' } });
    await client.command('shutdownVirtualMachine', vmi);
    await recorder.state('Shutoff/Shutdown');
    await client.command('deleteVirtualMachine', vmi);
    await ended;
  });

  it('can send its first event before it knows the UID', async () => {
    const { recorder, connectClient } = launch({}, true);
    await recorder.listen();
    const client = await connectClient();
    await client.command('syncVirtualMachine', vmi);
    await recorder.event('all events', () => recorder.events.length === 5);
    expect(recorder.events[0]).toMatchObject({
      type: 'ADDED',
      domain: { Spec: { Metadata: { KubeVirt: { UID: '' } } } },
    });
    expect(recorder.events[0]?.domain.ObjectMeta.uid).toBeUndefined();
    expect(recorder.events.at(-1)?.domain.ObjectMeta.uid).toBe(uid);
  });

  it('starts paused when asked, and does not resume what the user paused', async () => {
    const { recorder, connectClient } = launch();
    await recorder.listen();
    const client = await connectClient();
    const paused = { ...vmi, spec: { ...vmi.spec, startStrategy: 'Paused' } };
    await client.command('syncVirtualMachine', paused);
    await recorder.state('Paused/User');
    await client.command('syncVirtualMachine', paused);
    expect(await client.domain()).toMatchObject({ Status: { Status: 'Paused', Reason: 'User' } });
    await client.command('unpauseVirtualMachine', vmi);
    await recorder.state('Running/Unknown');
  });

  it('ends at once when it is stopped before there is a domain, and panics when none comes', async () => {
    const stopped = launch();
    await stopped.connectClient();
    stopped.launcher.requestStop();
    await stopped.ended;
    const waiting = launch({ qemuTimeoutMs: 50 });
    await expect(waiting.ended).rejects.toThrow(LauncherPanic);
  });

  it('obeys SignalTargetPodCleanup only for its own pod', async () => {
    const { ended, connectClient } = launch();
    const client = await connectClient();
    const named = (targetPod: string) => ({
      ...vmi,
      status: { ...vmi.status, migrationState: { targetPod } },
    });
    await client.command('signalTargetPodCleanup', named('another-pod'));
    expect(await client.domain()).toBeUndefined();
    await client.command('signalTargetPodCleanup', named('target-pod')).catch(() => {});
    await expect(ended).rejects.toThrow(LauncherPanic);
  });
});
