import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { disconnectPod, plugLink, runInNetns } from '../harness/pods/network.js';
import { readdirIfThere } from '../harness/pods/proc.js';
import { waitFor } from '../harness/pods/run.js';
import { PodNetwork } from '../harness/system/pod-network.js';
import { System, type Vm } from '../harness/system/system.js';

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

const running: PluggedVm[] = [];

afterEach(async () => {
  for (const plugged of running.splice(0)) await plugged.end();
});

/** Links of the network `blue`. */
const podLink = 'pod16477688c0e';
const nic = '16477688c0e-nic';
const bridge = 'k6t-16477688c0e';
const tap = 'tap16477688c0e';
const primaryLinks = ['eth0', 'k6t-eth0', 'lo', 'tap0'];

type Events = { reason?: string; message?: string; involvedObject?: { uid?: string } }[];

/** A running VM, with what virt-controller, Multus and a user do to its second network. */
class PluggedVm {
  readonly #hostLinks: string[] = [];
  readonly #network: PodNetwork;

  private constructor(readonly vm: Vm) {
    this.#network = new PodNetwork(vm.pod);
  }

  static async start(name: string, holdNics = false): Promise<PluggedVm> {
    const vm = await system.createVm({ name, machine: 'fake', containerDisk: true, faults: { holdNics } });
    const plugged = new PluggedVm(vm);
    running.push(plugged);
    await system.waitForPhase(vm, 'Running');
    return plugged;
  }

  /** Links without what the kernel changes by itself, such as timers of bridges. */
  async links() {
    const links = await this.#network.links();
    return new Map(
      [...links].map(([name, { ifindex, mtu, address, master, flags }]) => [
        name,
        { ifindex, mtu, address, master, up: flags.includes('UP') },
      ]),
    );
  }

  change(change: (vmi: Vmi) => void): void {
    const { namespace, name } = this.vm;
    system.api.store.change('virtualmachineinstances', namespace, name, (copy) =>
      change(copy as unknown as Vmi),
    );
  }

  /** Multus has CNI make the pod's link. */
  async makeLink(mac: string, address?: string): Promise<void> {
    const hostLink = `veth${randomBytes(4).toString('hex')}`;
    this.#hostLinks.push(hostLink);
    await plugLink(system.node.netnsPid, this.vm.pod.pausePid, hostLink, {
      ...{ name: podLink, mac, mtu: 1400 },
      ...(address === undefined ? {} : { address }),
    });
  }

  /** The network in the spec, and virt-controller's word that Multus has plugged it. */
  plug(): void {
    this.change(({ spec, status }) => {
      spec.networks?.push({ name: 'blue', multus: { networkName: 'nad' } });
      spec.domain.devices.interfaces?.push({ name: 'blue', bridge: {} });
      const blue = { name: 'blue', infoSource: 'multus-status', podInterfaceName: podLink };
      status.interfaces = [...(status.interfaces ?? []), blue];
    });
  }

  unplug(): void {
    this.change(({ spec }) => {
      for (const iface of spec.domain.devices.interfaces ?? []) {
        if (iface.name === 'blue') iface.state = 'absent';
      }
    });
  }

  /** What virt-controller does once the guest has lost the NIC. */
  removeFromSpec(): void {
    this.change(({ spec }) => {
      spec.networks = spec.networks?.filter(({ name }) => name !== 'blue') ?? [];
      const { devices } = spec.domain;
      devices.interfaces = devices.interfaces?.filter(({ name }) => name !== 'blue') ?? [];
    });
  }

  status(): NonNullable<Vmi['status']['interfaces']>[number] | undefined {
    return system.vmi(this.vm)?.status.interfaces?.find(({ name }) => name === 'blue');
  }

  async waitForStatus(what: string, isSo: (infoSource: string | undefined) => boolean): Promise<void> {
    await system.waitForVmi(this.vm, what, () => isSo(this.status()?.infoSource), 15_000);
  }

  async waitUntilPlugged(): Promise<void> {
    await this.waitForStatus('blue in the domain', (source) => source === 'domain, multus-status');
  }

  async waitUntilGone(): Promise<void> {
    await waitFor('tap and bridge to go', 15_000, async () => {
      const links = await this.links();
      return !links.has(tap) && !links.has(bridge) && !links.has(podLink);
    }).catch((error: Error) => {
      throw new Error(`${error.message}\n${system.tail()}`);
    });
    await waitFor('the caches to go', 15_000, () => this.caches().length === 0);
  }

  /** Files about the network: the launcher's and the node's. */
  caches(): string[] {
    const files = [
      join(this.vm.pod.emptyDir('private'), `vif-cache-${podLink}.json`),
      join(system.privateDir, 'network-info-cache', this.vm.uid, 'blue'),
    ];
    return files.filter((path) => existsSync(path));
  }

  syncs(): number {
    return this.vm.launcher.commands().filter((command) => command === 'syncVirtualMachine').length;
  }

  /** Has the agent look at the VMI. */
  touch(): void {
    this.change(({ metadata }) => {
      metadata.annotations = { ...metadata.annotations, 'test/touched': randomBytes(4).toString('hex') };
    });
  }

  events(reason: string): string[] {
    const all = system.api.store.list('events', this.vm.namespace) as Events;
    return all
      .filter((event) => event.involvedObject?.uid === this.vm.uid && event.reason === reason)
      .map(({ message = '' }) => message);
  }

  async end(): Promise<void> {
    system.deleteVmi(this.vm);
    await system.finishDeletion(this.vm);
    for (const link of this.#hostLinks) await disconnectPod(system.node.netnsPid, link);
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
    expect(await system.node.leftovers()).toEqual([]);
  }
}

describe('a NIC of a running VM', () => {
  it('NET-019 NET-020 is plumbed before the launcher hears of it, and taken away once the guest let go of it', async () => {
    const plugged = await PluggedVm.start('hotplug', true);
    const { vm } = plugged;
    const primary = await plugged.links();
    await plugged.makeLink('02:00:00:aa:bb:cc', '192.168.77.2/24');
    plugged.plug();
    await plugged.waitUntilPlugged();

    // The launcher would have refused a NIC without its tap.
    expect(plugged.events('SyncFailed')).toEqual([]);
    expect(plugged.events('NicHotplug')).toEqual([]);
    const links = await plugged.links();
    expect([...links.keys()].sort()).toEqual([...primaryLinks, nic, bridge, podLink, tap].sort());
    expect(links.get(nic)).toMatchObject({ master: bridge, mtu: 1400 });
    expect(links.get(tap)).toMatchObject({ master: bridge, mtu: 1400 });
    for (const name of primaryLinks) expect(links.get(name)).toEqual(primary.get(name));
    expect(plugged.status()).toMatchObject({ mac: '02:00:00:aa:bb:cc', ipAddress: '192.168.77.2' });
    expect(plugged.caches()).toHaveLength(2);
    const record = JSON.parse(readFileSync(plugged.caches()[0] ?? '', 'utf8'));
    expect(record).toMatchObject({ IPAMDisabled: false, IP: { IP: '192.168.77.2' } });

    plugged.unplug();
    await waitFor('the launcher to be told', 15_000, () =>
      vm.launcher.log().includes('the guest keeps NIC blue'),
    );
    expect(plugged.status()?.infoSource).toBe('domain, multus-status');
    expect(await plugged.links()).toEqual(links);
    expect(plugged.caches()).toHaveLength(2);

    vm.launcher.releaseNics();
    plugged.touch();
    await plugged.waitUntilGone();
    const after = await plugged.links();
    expect([...after.keys()].sort()).toEqual([...primaryLinks, nic].sort());
    expect(after.get(nic)).toEqual({ ...links.get(nic), master: undefined });
    for (const name of primaryLinks) expect(after.get(name)).toEqual(primary.get(name));
    expect(readdirIfThere(join(system.privateDir, 'network-info-cache', vm.uid))).toEqual(['default']);

    expect(plugged.status()).toMatchObject({ name: 'blue', infoSource: 'multus-status' });
    plugged.removeFromSpec();
    await plugged.waitForStatus('no blue', (source) => source === undefined);
    expect(system.vmi(vm)?.status.phase).toBe('Running');
  });

  it('NET-021 is plugged again on the link that stayed, and on a new one beside that', async () => {
    const plugged = await PluggedVm.start('replug');
    const unplug = async () => {
      plugged.unplug();
      await plugged.waitUntilGone();
      plugged.removeFromSpec();
      await plugged.waitForStatus('no blue', (source) => source === undefined);
    };
    await plugged.makeLink('02:00:00:aa:bb:cc');
    plugged.plug();
    await plugged.waitUntilPlugged();
    const first = (await plugged.links()).get(nic)?.ifindex;
    // Neither of the processes that plugged it has to be there to unplug it.
    await system.restart('helper');
    await system.restart('agent');
    await unplug();

    // Unplugged and plugged so quickly that Multus saw no difference.
    plugged.plug();
    await plugged.waitUntilPlugged();
    expect((await plugged.links()).get(nic)).toMatchObject({ ifindex: first, master: bridge });
    await unplug();

    // CNI looks for the link by its first name, and so leaves the one that was renamed.
    await plugged.makeLink('02:00:00:aa:bb:dd');
    const second = (await plugged.links()).get(podLink)?.ifindex;
    const left = (await plugged.links()).get(nic)?.address;
    plugged.plug();
    await plugged.waitUntilPlugged();
    const links = await plugged.links();
    expect(links.get(nic)).toMatchObject({ ifindex: second, master: bridge });
    expect(links.get(`k6o${first}`)).toMatchObject({ ifindex: first, address: left });
    expect(plugged.status()?.mac).toBe('02:00:00:aa:bb:dd');
    expect(plugged.events('NicHotplug')).toEqual([]);
    expect(plugged.events('SyncFailed')).toEqual([]);
  });

  it('NET-006 that cannot be plumbed is reported; the VM runs, is synchronised and recovers without it', async () => {
    const plugged = await PluggedVm.start('foreign');
    const { vm } = plugged;
    await plugged.makeLink('02:00:00:aa:bb:cc');
    // Something of that name which nobody may take over.
    await runInNetns(vm.pod.pausePid, 'ip', ['link', 'add', bridge, 'type', 'veth', 'peer', 'name', 'other']);
    const before = await plugged.links();
    const syncs = plugged.syncs();
    plugged.plug();
    await waitFor('the events', 15_000, () => plugged.events('SyncFailed').length > 0);
    expect(plugged.events('NicHotplug')).toContainEqual(
      expect.stringMatching(
        /^setup failed, err: Critical network error: .*type collision on link k6t-16477688c0e/,
      ),
    );
    await waitFor('the next try', 15_000, () =>
      plugged.events('NicHotplug').some((text) => text.includes('networks [blue] cannot be restarted')),
    );
    await waitFor('two syncs', 15_000, () => plugged.syncs() > syncs + 1);
    expect(system.vmi(vm)?.status.phase).toBe('Running');
    expect(await plugged.links()).toEqual(before);

    plugged.unplug();
    await system.waitForVmi(
      vm,
      'synchronized',
      ({ status }) => !status.conditions?.some(({ type }) => type === 'Synchronized'),
    );
    expect(plugged.caches()).toEqual([]);
    // Removed is only what is ours.
    expect((await plugged.links()).get(bridge)).toEqual(before.get(bridge));
  });
});

describe('the start of a VM', () => {
  it('NET-006 fails when its network can never be set up', async () => {
    const vm = await system.createVm({
      name: 'taken',
      machine: 'fake',
      containerDisk: true,
      beforeVmi: async ({ pausePid }) => {
        await runInNetns(pausePid, 'ip', ['link', 'add', 'tap0', 'type', 'bridge']);
      },
    });
    await system.waitForPhase(vm, 'Failed');
    const message = expect.stringMatching(
      /^failed to configure vmi network: setup failed, err: Critical network error: .*type collision on link tap0/,
    );
    expect(system.vmi(vm)?.status.conditions).toContainEqual(
      expect.objectContaining({
        ...{ type: 'Synchronized', status: 'False', message },
        reason: 'Synchronizing with the Domain failed.',
      }),
    );
    const events = () =>
      (system.api.store.list('events', vm.namespace) as Events).filter(
        ({ involvedObject }) => involvedObject?.uid === vm.uid,
      );
    await waitFor('the event', 10_000, () => events().some(({ reason }) => reason === 'SyncFailed'));
    expect(events().find(({ reason }) => reason === 'SyncFailed')).toMatchObject({
      type: 'Warning',
      message,
    });
    expect(vm.launcher.commands()).not.toContain('syncVirtualMachine');

    vm.launcher.terminate();
    system.deleteVmi(vm);
    await system.finishDeletion(vm);
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
    expect(await system.node.leftovers()).toEqual([]);
  });
});
