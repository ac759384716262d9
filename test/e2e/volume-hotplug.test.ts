import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { denied, Opener } from '../harness/devices/opener.js';
import { buildDataDisk } from '../harness/guest/disk.js';
import { type Peer, startPeer } from '../harness/guest/peer.js';
import { type Claim, createAttachment, startAttachment } from '../harness/pods/attachment.js';
import { run, waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

/** A guest that starts again until there is a second drive, and then runs what is on that. */
const bootScript = '#!ipxe\nsanboot --no-describe --keep --drive 0x81 || sleep 1\nreboot\n';

interface Volume {
  readonly name: string;
  readonly mode: 'Filesystem' | 'Block';
  readonly attachmentPodUid: string;
}

let system: System | undefined;
let peer: Peer | undefined;
const openers: Opener[] = [];
const loops: string[] = [];

afterEach(async () => {
  for (const opener of openers.splice(0)) await opener.kill();
  await peer?.stop();
  await system?.stop();
  for (const loop of loops.splice(0)) await run('losetup', ['--detach', loop]);
  expect(await system?.node.leftovers()).toEqual([]);
});

/** A running VM, and what virt-controller and a user do to its volumes. */
class VmWithVolumes {
  constructor(
    private readonly system: System,
    readonly vm: Vm,
  ) {}

  change(change: (vmi: Vmi) => void): void {
    const { namespace, name } = this.vm;
    this.system.api.store.change('virtualmachineinstances', namespace, name, (copy) =>
      change(copy as unknown as Vmi),
    );
  }

  /** The volume in the spec, and virt-controller's word where it is. */
  plug(...volumes: Volume[]): void {
    this.change(({ spec, status }) => {
      for (const { name, mode, attachmentPodUid } of volumes) {
        spec.volumes?.push({ name, persistentVolumeClaim: { claimName: name, hotpluggable: true } });
        spec.domain.devices.disks?.push({ name, disk: { bus: 'scsi' } });
        const volume = {
          ...{ name, target: '', phase: 'AttachedToNode' },
          persistentVolumeClaimInfo: { volumeMode: mode },
          hotplugVolume: { attachPodName: `hp-${name}`, attachPodUID: attachmentPodUid },
        };
        status.volumeStatus = [...(status.volumeStatus ?? []), volume];
      }
    });
  }

  unplug(...names: string[]): void {
    this.change(({ spec }) => {
      spec.volumes = spec.volumes?.filter(({ name }) => !names.includes(name)) ?? [];
      const { devices } = spec.domain;
      devices.disks = devices.disks?.filter(({ name }) => !names.includes(name)) ?? [];
    });
  }

  phase(volume: string): string | undefined {
    return this.system.vmi(this.vm)?.status.volumeStatus?.find(({ name }) => name === volume)?.phase;
  }

  async waitForPhase(volumes: readonly string[], phase: string): Promise<void> {
    await this.system.waitForVmi(this.vm, `${volumes.join(', ')} ${phase}`, () =>
      volumes.every((volume) => this.phase(volume) === phase),
    );
  }

  events(reason: string): string[] {
    const all = this.system.api.store.list('events', this.vm.namespace) as {
      reason?: string;
      message?: string;
      involvedObject?: { uid?: string };
    }[];
    return all
      .filter((event) => event.involvedObject?.uid === this.vm.uid && event.reason === reason)
      .map(({ message = '' }) => message);
  }

  /** Names in the pod's hotplug-disks. */
  entries(): string[] {
    return readdirSync(this.vm.pod.emptyDir('hotplug-disks')).sort();
  }

  mounts(): string[] {
    return readFileSync(`/proc/${this.vm.launcher.pid}/mountinfo`, 'utf8')
      .split('\n')
      .filter((line) => line.includes('/hotplug-disks/'));
  }
}

async function attachLoop(file: string): Promise<{ major: number; minor: number }> {
  const loop = (await run('losetup', ['--find', '--show', file])).trim();
  loops.push(loop);
  return { major: 7, minor: Number(loop.replace('/dev/loop', '')) };
}

describe.each([
  ['v1', '/sys/fs/cgroup'],
  ['v2', '/sys/fs/cgroup/unified'],
])('volumes of a running VM, with cgroup %s', (version, cgroupRoot) => {
  it('STO-017 STO-020 STO-021 STO-023 AFT-032 AFT-036 are read by the guest, and taken away without a trace', async () => {
    const running = await System.create();
    system = running;
    const { node } = running;
    const policy = join(node.root, 'policy.yaml');
    writeFileSync(policy, `version: 1\npaths:\n  cgroupRoot: ${cgroupRoot}\n`);
    await running.startHelper('--policy', policy);
    await running.startAgent();
    peer = await startPeer(node, { '/boot.ipxe': bootScript });

    const claims = join(node.root, 'claims');
    mkdirSync(claims);
    chmodSync(claims, 0o755);
    const directories = new Map(['fs', 'empty', 'late'].map((name) => [name, join(claims, name)]));
    for (const directory of directories.values()) mkdirSync(directory, { mode: 0o755 });
    for (const name of ['fs', 'late']) {
      await buildDataDisk(join(claims, name, 'disk.img'), `guest: read ${name}`);
    }
    await buildDataDisk(join(claims, 'block.raw'), 'guest: read block');
    const device = await attachLoop(join(claims, 'block.raw'));
    const stranger = await attachLoop(join(claims, 'block.raw'));
    const claim = (name: string): Claim => ({ name, directory: directories.get(name) ?? '' });

    const vm = await running.createVm({
      name: `vm-${version}`,
      bootUrl: `${peer.url}/boot.ipxe`,
      // What runs from the plugged disk knows nothing of a power button.
      terminationGracePeriodSeconds: 2,
    });
    // A node has one hierarchy with device policies: here the other one must not have its say.
    const others = vm.launcher.container.cgroups.filter((path) => !path.startsWith(`${cgroupRoot}/`));
    for (const path of others.filter((each) => each.startsWith('/sys/fs/cgroup/devices/'))) {
      writeFileSync(join(path, 'devices.allow'), 'a *:* rwm');
    }
    await running.waitForPhase(vm, 'Running');
    const attachment = await createAttachment(node, {
      podIP: '10.244.2.201',
      claims: [claim('fs'), claim('empty'), { name: 'block', device }],
    });
    const late = await createAttachment(node, { podIP: '10.244.2.202', claims: [], late: true });
    const volumes = new VmWithVolumes(running, vm);
    volumes.plug(
      { name: 'late', mode: 'Filesystem', attachmentPodUid: late.uid },
      { name: 'empty', mode: 'Filesystem', attachmentPodUid: attachment.uid },
      { name: 'fs', mode: 'Filesystem', attachmentPodUid: attachment.uid },
      { name: 'block', mode: 'Block', attachmentPodUid: attachment.uid },
    );
    await volumes.waitForPhase(['fs', 'block'], 'Ready');
    expect(volumes.entries()).toEqual(['block', 'fs.img']);
    // QEMU has them open. That the guest reads them takes it a start, and once is enough.
    if (version === 'v1') {
      await waitFor('the guest to read both', 60_000, () =>
        ['fs', 'block'].every((name) => vm.launcher.console().includes(`guest: read ${name}`)),
      ).catch((error: Error) => {
        throw new Error(`${error.message}\n${vm.launcher.console().slice(-2000)}`);
      });
    }
    expect([volumes.phase('late'), volumes.phase('empty')]).toEqual(['AttachedToNode', 'AttachedToNode']);
    // Said once; a pod that is late is nothing to tell.
    expect(volumes.events('HotplugFailed')).toEqual([expect.stringContaining('volume empty')]);
    expect(volumes.events('SyncFailed')).toEqual([]);

    const opener = await Opener.start(vm.launcher.container.cgroups);
    openers.push(opener);
    const nodes = join(node.root, 'nodes');
    mkdirSync(nodes);
    for (const [name, { minor }] of Object.entries({ block: device, stranger })) {
      await run('mknod', ['-m', '666', join(nodes, name), 'b', '7', String(minor)]);
    }
    expect(await opener.open(join(nodes, 'block'))).toBe('');
    expect(await opener.open(join(nodes, 'stranger'))).toBe(denied);

    await startAttachment(late, [claim('late')]);
    await volumes.waitForPhase(['late'], 'Ready');

    // Neither of the processes that plugged them has to be there to unplug them, nor has the attachment pod.
    await running.kill('agent');
    await running.kill('helper');
    await attachment.destroy();
    await running.startHelper('--policy', policy);
    await running.startAgent();
    volumes.unplug('fs', 'block', 'empty');
    await volumes.waitForPhase(['fs', 'block', 'empty'], 'UnMountedFromPod');
    expect(volumes.entries()).toEqual(['late.img']);
    expect(volumes.mounts()).toHaveLength(1);
    expect(await opener.open(join(nodes, 'block'))).toBe(denied);
    expect(volumes.phase('late')).toBe('Ready');
    expect(running.vmi(vm)?.status.phase).toBe('Running');

    running.deleteVmi(vm);
    await running.finishDeletion(vm);
    await late.destroy();
    await waitFor('the state of the VM to go', 20_000, () => running.state().length === 0).catch(
      (error: Error) => {
        throw new Error(`${error.message}: ${running.state().join(' ')}\n${running.tail()}`);
      },
    );
    for (const name of ['fs', 'late']) expect(existsSync(join(claims, name, 'disk.img'))).toBe(true);
  }, 180_000);
});
