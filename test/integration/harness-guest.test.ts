import { chownSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { buildGuestDisk, guestLines } from '../harness/guest/disk.js';
import { type Peer, startPeer } from '../harness/guest/peer.js';
import { guestVmi } from '../harness/guest/vmi.js';
import { LauncherTestClient } from '../harness/launcher/client.js';
import { NotifyRecorder } from '../harness/launcher/notify-recorder.js';
import { type LauncherHandle, type StartLauncherOptions, startLauncher } from '../harness/launcher/start.js';
import { runInNetns } from '../harness/pods/network.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run, waitFor } from '../harness/pods/run.js';

const uid = '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10';
const bootSeconds = 40_000;

/** Of the guest that is paused and resumed before it turns off. */
const lifeOfGuest = [
  'Shutoff/Unknown',
  'Paused/StartingUp',
  'Running/Unknown',
  'Paused/User',
  'Running/Unknown',
  'ShuttingDown/User',
  'Shutoff/Shutdown',
  'NoState/NonExistent',
];

/** What the node agent will do (an ifb stands in for the dummy on kernels without that kind): links, address note, tap's device, disk. */
async function prepare(pod: Pod, launcher: LauncherHandle, vmi: Vmi, image: string): Promise<void> {
  const bridge = vmi.spec.domain.devices.interfaces?.[0]?.bridge !== undefined;
  const script = bridge
    ? `ip link set eth0 down && ip link set eth0 name eth0-nic && ip addr flush dev eth0-nic &&
       ip link add k6t-eth0 type bridge && ip link set eth0-nic address 02:11:22:33:44:55 master k6t-eth0 up &&
       ip addr add 169.254.75.10/32 dev k6t-eth0 && ip link set k6t-eth0 up &&
       (ip link add eth0 address ${pod.mac} mtu 1450 type dummy || ip link add eth0 address ${pod.mac} mtu 1450 type ifb)`
    : `ip link add k6t-eth0 address 02:00:00:00:00:00 type bridge && ip addr add 10.0.2.1/24 dev k6t-eth0 &&
       ip link set k6t-eth0 up && echo 1 >/proc/sys/net/ipv4/ip_forward &&
       nft 'table ip nat {
         chain pre { type nat hook prerouting priority dstnat; iifname "eth0" dnat to 10.0.2.2; }
         chain post { type nat hook postrouting priority srcnat; ip saddr 10.0.2.2 masquerade; }
       }'`;
  await runInNetns(launcher.pid, 'sh', ['-c', script]);
  await runInNetns(launcher.pid, 'sh', [
    '-c',
    'ip tuntap add dev tap0 mode tap user 107 group 107 && ip link set tap0 mtu 1450 master k6t-eth0 up',
  ]);
  if (bridge) {
    const cache = join(pod.emptyDir('private'), 'vif-cache-eth0.json');
    const mac = Buffer.from(pod.mac.replaceAll(':', ''), 'hex').toString('base64');
    const address = { IP: pod.podIP, Mask: Buffer.from([255, 255, 255, 0]).toString('base64') };
    writeFileSync(
      cache,
      JSON.stringify({ IP: address, MAC: mac, Gateway: '10.244.2.1', IPAMDisabled: false }),
    );
    chownSync(cache, 107, 107);
  }
  chownSync(`/proc/${launcher.pid}/root/dev/net/tun`, 107, 107);
  const target = join(pod.emptyDir('container-disks'), 'disk_0.img');
  writeFileSync(target, '');
  await run('mount', ['--bind', '-o', 'ro', image, target]);
}

describe('guest', () => {
  let node: HarnessNode;
  let peer: Peer;
  let directory: string;

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-guest-'));
    await buildGuestDisk({ path: join(directory, 'acpi.raw'), obeysAcpi: true });
    await buildGuestDisk({ path: join(directory, 'deaf.raw'), obeysAcpi: false });
    node = await createNode();
    peer = await startPeer(node, {
      '/boot.ipxe': `#!ipxe\nimgfetch http://${node.gateway}:8080/report?mac=\${net0/mac} ||\n:idle\nsleep 1\ngoto idle\n`,
      '/report': 'thanks',
    });
  });
  afterEach(async () => {
    await node.destroyPods();
    expect((await node.present()).filter((line) => !line.includes('peer.mjs'))).toEqual([]);
  });
  afterAll(async () => {
    await peer?.stop();
    await node?.destroy();
    rmSync(directory, { recursive: true, force: true });
    expect(await node.leftovers()).toEqual([]);
  });

  async function boot(
    binding: 'bridge' | 'masquerade',
    podIP: string,
    disk: string,
    options: Partial<StartLauncherOptions> = {},
  ) {
    const image = join(directory, disk);
    const pod = await node.createPod({
      name: 'virt-launcher-vm1-x',
      vmiUid: uid,
      podIP,
      containerDisks: [{ index: 0, image }],
    });
    const launcher = await startLauncher(pod, { namespace: 'default', name: 'vm1', vmiUid: uid, ...options });
    const vmi = guestVmi({
      namespace: 'default',
      name: 'vm1',
      uid,
      nodeName: node.name,
      activePods: { [pod.uid]: node.name },
      binding,
      bootUrl: `${peer.url}/boot.ipxe`,
    });
    await prepare(pod, launcher, vmi, image);
    const recorder = new NotifyRecorder(`/proc/${launcher.pid}/root/run/kubevirt/domain-notify-pipe.sock`);
    await recorder.listen();
    const client = new LauncherTestClient(launcher.socketPath);
    await client.command('syncVirtualMachine', vmi);
    return { pod, launcher, vmi, recorder, client };
  }

  it('boots from its container disk, gets its address and answers (bridge), and turns off by ACPI', async () => {
    const { pod, launcher, vmi, recorder, client } = await boot('bridge', '10.244.2.20', 'acpi.raw');
    expect(await peer.request('/report', bootSeconds)).toEqual({
      from: '10.244.2.20',
      path: `/report?mac=${encodeURIComponent(pod.mac)}`,
    });
    expect(launcher.console()).toContain(guestLines.bootLoader);
    expect(launcher.console()).toContain(`${guestLines.address}10.244.2.20`);
    await waitFor('the guest to answer', 10_000, () => node.ping('10.244.2.20'));
    expect(launcher.qemuPid()).toBeGreaterThan(0);

    await client.command('pauseVirtualMachine', vmi);
    await recorder.state('Paused/User');
    await client.command('unpauseVirtualMachine', vmi);

    await client.command('shutdownVirtualMachine', vmi);
    await recorder.state('Shutoff/Shutdown');
    await client.command('deleteVirtualMachine', vmi);
    await recorder.state('NoState/NonExistent');
    expect(await launcher.exited).toEqual({ code: 0, signal: null });
    client.close();
    expect(recorder.events.map(({ type }) => type)).toEqual(['ADDED', ...Array(10).fill('MODIFIED')]);
    // An event tells the state of the moment in which it is sent, so one that waits may tell a later one.
    let at = 0;
    for (const { state } of recorder.events) {
      at = lifeOfGuest.indexOf(state, at);
      expect(at, `${state} in ${recorder.events.map((event) => event.state).join(', ')}`).not.toBe(-1);
    }
    expect(existsSync(join(pod.emptyDir('sockets'), 'launcher-sock'))).toBe(true);
    recorder.close();
  }, 90_000);

  it('is reached through masquerade, and is killed when it ignores ACPI', async () => {
    const { launcher, vmi, recorder, client } = await boot('masquerade', '10.244.2.21', 'deaf.raw');
    await waitFor('report', bootSeconds, () =>
      peer.requests.find(({ from, path }) => from === '10.244.2.21' && path.startsWith('/report')),
    );
    expect(launcher.console()).toContain(`${guestLines.address}10.0.2.2`);
    await waitFor('the guest to answer', 10_000, () => node.ping('10.244.2.21'));
    await client.command('shutdownVirtualMachine', vmi);
    await recorder.event(
      'DeletionTimestamp',
      ({ domain }) => domain.Spec.Metadata.KubeVirt.GracePeriod?.DeletionTimestamp != null,
    );
    expect(recorder.events.at(-1)?.state).toBe('Running/Unknown');
    await client.command('killVirtualMachine', vmi);
    await recorder.state('Shutoff/Destroyed');
    await client.command('deleteVirtualMachine', vmi);
    expect(await launcher.exited).toEqual({ code: 0, signal: null });
    client.close();
    recorder.close();
  }, 90_000);

  describe('that is only a machine', () => {
    let lastAddress = 40;

    /** QEMU without devices: it starts at once and does nothing. */
    async function bare(startStrategy?: string) {
      const pod = await node.createPod({ name: 'p', vmiUid: uid, podIP: `10.244.2.${lastAddress++}` });
      const launcher = await startLauncher(pod, { namespace: 'default', name: 'vm1', vmiUid: uid });
      const full = guestVmi({
        namespace: 'default',
        name: 'vm1',
        uid,
        nodeName: 'n',
        activePods: {},
        binding: 'bridge',
      });
      const domain = { ...full.spec.domain, devices: {} };
      const vmi = {
        ...full,
        spec: { ...full.spec, domain, ...(startStrategy === undefined ? {} : { startStrategy }) },
      };
      const recorder = new NotifyRecorder(`/proc/${launcher.pid}/root/run/kubevirt/domain-notify-pipe.sock`);
      await recorder.listen();
      const client = new LauncherTestClient(launcher.socketPath);
      await client.command('syncVirtualMachine', vmi);
      const qemu = launcher.qemuPid();
      if (qemu === undefined) throw new Error('QEMU is not a child of the monitor');
      const finish = async () => {
        await client.command('deleteVirtualMachine', vmi);
        expect(await launcher.exited).toEqual({ code: 0, signal: null });
        client.close();
        recorder.close();
      };
      return { launcher, vmi, recorder, client, qemu, finish };
    }

    it('LAU-002 is crashed when QEMU is killed', async () => {
      const { recorder, qemu, finish } = await bare();
      await recorder.state('Running/Unknown');
      process.kill(qemu, 'SIGKILL');
      await recorder.state('Shutoff/Crashed');
      await finish();
    });

    it('LAU-002 is shut down when QEMU is asked to end by somebody else', async () => {
      const { recorder, qemu, finish } = await bare();
      await recorder.state('Running/Unknown');
      process.kill(qemu, 'SIGTERM');
      await recorder.state('Shutoff/Shutdown');
      await finish();
    });

    it('LAU-002 starts paused when asked, and runs when resumed', async () => {
      const { recorder, vmi, client, finish } = await bare('Paused');
      await recorder.state('Paused/User');
      await client.command('unpauseVirtualMachine', vmi);
      await recorder.state('Running/Unknown');
      await client.command('resetVirtualMachine', vmi);
      await client.command('killVirtualMachine', vmi);
      await recorder.state('Shutoff/Destroyed');
      await finish();
    });

    it('ends with its pod when the launcher is killed', async () => {
      const { launcher, recorder, client, qemu } = await bare();
      await recorder.state('Running/Unknown');
      launcher.crash();
      expect((await launcher.exited).code).toBe(1);
      expect(existsSync(`/proc/${qemu}`)).toBe(false);
      client.close();
      recorder.close();
    });
  });
});
