import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { denied, Opener } from '../harness/devices/opener.js';
import { buildDataDisk, buildWatchingDisk, driveLines } from '../harness/guest/disk.js';
import { type Claim, createAttachment, startAttachment } from '../harness/pods/attachment.js';
import { run, waitFor } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

/** Where the hierarchies are that decide about devices. */
const hierarchies = [
  { version: 'v1', root: '/sys/fs/cgroup', controller: '/sys/fs/cgroup/devices' },
  { version: 'v2', root: '/sys/fs/cgroup/unified', controller: '/sys/fs/cgroup/unified' },
].filter(({ version, controller }) => {
  const mounted = existsSync(controller);
  if (!mounted) process.stdout.write(`not tried: cgroup ${version}, which is not mounted here\n`);
  return mounted;
});

interface Volume {
  readonly name: string;
  readonly mode: 'Filesystem' | 'Block';
  readonly attachmentPodUid: string;
}

let system: System | undefined;
const openers: Opener[] = [];
const loops: string[] = [];

afterEach(async () => {
  for (const opener of openers.splice(0)) await opener.kill();
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

  /** virt-controller's last word about volumes that are in the pod no more. */
  forget(...names: string[]): void {
    this.change(({ status }) => {
      status.volumeStatus = status.volumeStatus?.filter(({ name }) => !names.includes(name)) ?? [];
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

  /** Until the guest has said so of each volume for the `count`th time. */
  async guestSays(line: (name: string) => string, volumes: readonly string[], count: number): Promise<void> {
    const { launcher } = this.vm;
    await waitFor(`the guest to say: ${volumes.map(line).join(', ')}`, 60_000, () =>
      volumes.every((volume) => launcher.console().split(line(volume)).length > count),
    ).catch((error: Error) => {
      throw new Error(`${error.message}\n${launcher.console().slice(-2000)}`);
    });
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

it('STO-017 STO-018 STO-020 STO-021 STO-023 AFT-032 AFT-036 volumes of a running VM are read by the guest, with either cgroup version, and taken away without a trace', async () => {
  const running = await System.create();
  system = running;
  const { node } = running;
  const policy = join(node.root, 'policy.yaml');
  const startHelper = (cgroupRoot: string) => {
    writeFileSync(policy, `version: 1\npaths:\n  cgroupRoot: ${cgroupRoot}\n`);
    return running.startHelper('--policy', policy);
  };
  const restart = async (cgroupRoot: string) => {
    await running.kill('agent');
    await running.kill('helper');
    await startHelper(cgroupRoot);
    await running.startAgent();
  };
  await startHelper(hierarchies[0]?.root ?? '');
  await running.startAgent();

  const claims = join(node.root, 'claims');
  mkdirSync(claims);
  chmodSync(claims, 0o755);
  const directories = new Map(['fs', 'empty', 'late'].map((name) => [name, join(claims, name)]));
  for (const directory of directories.values()) mkdirSync(directory, { mode: 0o755 });
  for (const name of ['fs', 'late']) buildDataDisk(join(claims, name, 'disk.img'), name);
  buildDataDisk(join(claims, 'block.raw'), 'block');
  const device = await attachLoop(join(claims, 'block.raw'));
  const stranger = await attachLoop(join(claims, 'block.raw'));
  const claim = (name: string): Claim => ({ name, directory: directories.get(name) ?? '' });
  const nodes = join(node.root, 'nodes');
  mkdirSync(nodes);
  for (const [name, { minor }] of Object.entries({ block: device, stranger })) {
    await run('mknod', ['-m', '666', join(nodes, name), 'b', '7', String(minor)]);
  }

  const image = join(node.root, 'watching.img');
  await buildWatchingDisk(image);
  const vm = await running.createVm({
    name: 'vm',
    podOptions: { containerDisks: [{ index: 0, image, name: 'disk.img' }] },
    terminationGracePeriodSeconds: 2,
  });
  await running.waitForPhase(vm, 'Running');
  const volumes = new VmWithVolumes(running, vm);
  const opener = await Opener.start(vm.launcher.container.cgroups);
  openers.push(opener);
  const late = await createAttachment(node, { podIP: '10.244.2.202', claims: [], late: true });
  volumes.plug({ name: 'late', mode: 'Filesystem', attachmentPodUid: late.uid });

  for (const [round, { root }] of hierarchies.entries()) {
    // A node has one hierarchy with device policies: here the other one must not have its say.
    const others = vm.launcher.container.cgroups.filter((path) => !path.startsWith(`${root}/`));
    for (const path of others.filter((each) => each.startsWith('/sys/fs/cgroup/devices/'))) {
      writeFileSync(join(path, 'devices.allow'), 'a *:* rwm');
    }
    const attachment = await createAttachment(node, {
      podIP: `10.244.2.${210 + round}`,
      claims: [claim('fs'), claim('empty'), { name: 'block', device }],
    });
    const from = { attachmentPodUid: attachment.uid };
    volumes.plug(
      { name: 'empty', mode: 'Filesystem', ...from },
      { name: 'fs', mode: 'Filesystem', ...from },
      { name: 'block', mode: 'Block', ...from },
    );
    await volumes.waitForPhase(['fs', 'block'], 'Ready');
    await volumes.guestSays(driveLines.reads, ['fs', 'block'], round + 1);
    expect(volumes.entries()).toEqual(['block', 'fs.img', ...(round === 0 ? [] : ['late.img'])]);
    expect(volumes.phase('empty')).toBe('AttachedToNode');
    // Said once; a pod that is late is nothing to tell.
    expect(new Set(volumes.events('HotplugFailed')).size).toBe(round + 1);
    expect(volumes.events('HotplugFailed').at(-1)).toContain('volume empty');
    expect(volumes.events('SyncFailed')).toEqual([]);
    expect(await opener.open(join(nodes, 'block'))).toBe('');
    expect(await opener.open(join(nodes, 'stranger'))).toBe(denied);

    if (round === 0) {
      expect(volumes.phase('late')).toBe('AttachedToNode');
      await startAttachment(late, [claim('late')]);
      await volumes.waitForPhase(['late'], 'Ready');
    }

    // Neither of the processes that plugged them has to be there to unplug them, nor has the attachment pod.
    await attachment.destroy();
    await restart(root);
    volumes.unplug('fs', 'block', 'empty');
    await volumes.waitForPhase(['fs', 'block', 'empty'], 'UnMountedFromPod');
    await volumes.guestSays(driveLines.loses, ['fs', 'block'], round + 1);
    expect(volumes.entries()).toEqual(['late.img']);
    expect(volumes.mounts()).toHaveLength(1);
    expect(await opener.open(join(nodes, 'block'))).toBe(denied);
    expect(volumes.phase('late')).toBe('Ready');
    expect(running.vmi(vm)?.status.phase).toBe('Running');
    volumes.forget('fs', 'block', 'empty');
    const next = hierarchies[round + 1];
    if (next !== undefined) await restart(next.root);
  }

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
