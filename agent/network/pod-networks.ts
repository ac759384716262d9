/** Set-up of a launcher pod's networks (KubeVirt pkg/network/setup/netconf.go, netpod/netpod.go). */
import type {
  Attachment,
  Detachment,
  ObserveResponse,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { activePodsOnNode, type PodFinder, type PodRef } from '../api/pod-ref.js';
import type { Vmi, VmiRef } from '../api/vmi.js';
import { asError } from '../as-error.js';
import type { Logger } from '../log/log.js';
import type { PodNetworks } from '../reconcile/ports.js';
import { attachmentOf, detachmentOf } from './attachment.js';
import { type BindingPlugins, bindingOf } from './bindings.js';
import { discover } from './discovery.js';
import { critical, isRetryable } from './errors.js';
import type { NetworkHelper } from './helper.js';
import { isSecondary, nameScheme, podInterfaces, renamedLink } from './names.js';
import type { NetworkPhase, NetworkRecord, NetworkStateStore } from './state.js';
import {
  interfaceStatuses,
  isAbsent,
  type VmiInterface,
  type VmiNetwork,
  vmiInterfaces,
  vmiNetworks,
} from './vmi-network.js';

export interface PodNetworksOptions {
  readonly helper: NetworkHelper;
  readonly pods: PodFinder;
  readonly state: NetworkStateStore;
  /** Name of this node. */
  readonly node: string;
  /** Own address of the agent's pod (environment MY_POD_IP). */
  readonly agentPodIp: string | undefined;
  /** Cluster configuration as it is now. */
  readonly config: () => NetworkConfig;
  readonly log: Logger;
}

export interface NetworkConfig {
  readonly plugins: BindingPlugins;
  /** Feature gate PortRangesSpec. */
  readonly portRanges: boolean;
}

/** One network of a set-up. */
interface Member {
  readonly network: VmiNetwork;
  readonly iface: VmiInterface;
  /** Position among all interfaces of the set-up. */
  readonly index: number;
  readonly record: NetworkRecord;
}

/** The pod as it is before the set-up. */
interface PodView {
  readonly pod: PodRef;
  readonly observed: ObserveResponse;
  /** Network name -> pod interface name. */
  readonly names: ReadonlyMap<string, string>;
}

const nothingKnown: NetworkRecord = { phase: 'pending', podIps: [] };

export class HelperPodNetworks implements PodNetworks {
  readonly #options: PodNetworksOptions;

  constructor(options: PodNetworksOptions) {
    this.#options = options;
  }

  /**
   * Plumbs the networks that are pending and removes those that are absent. What it throws is final if
   * a CriticalNetworkError is among its causes; otherwise the pod is as it was and a retry is right.
   */
  async setup(vmi: Vmi, networks: readonly string[]): Promise<void> {
    if (networks.length === 0) return;
    try {
      await this.#setup(vmi, networks);
    } catch (error) {
      const message = asError(error).message;
      throw new Error(`setup failed, err: ${message}`, { cause: error });
    }
  }

  async teardown(vmi: VmiRef): Promise<void> {
    try {
      await this.#options.state.removeVmi(vmi.uid);
    } catch (error) {
      this.#options.log.object(vmi).warning('failed to remove the network records; they are left', error);
    }
  }

  async #setup(vmi: Vmi, names: readonly string[]): Promise<void> {
    const members = await this.#members(vmi, names);
    const halfDone = members.filter(({ iface, record }) => record.phase === 'started' && !isAbsent(iface));
    if (halfDone.length > 0) {
      const list = halfDone.map(({ network }) => network.name).join(' ');
      throw critical(`preparation for networks [${list}] cannot be restarted`);
    }
    const unplugged = members.filter(({ iface, record }) => isAbsent(iface) && record.phase !== 'pending');
    const pending = members.filter(({ iface, record }) => !isAbsent(iface) && record.phase === 'pending');
    if (unplugged.length === 0 && pending.length === 0) return;

    const view = await this.#view(vmi);
    const toPlumb: Member[] = [];
    for (const member of pending) toPlumb.push(await this.#discover(vmi, member, view));
    await this.#plug(vmi, toPlumb, view);
    try {
      for (const member of toPlumb) await this.#setPhase(vmi, member, 'finished');
    } catch (error) {
      throw critical(error);
    }
    await this.#unplug(unplugged, view);
    for (const { network } of unplugged) await this.#options.state.remove(vmi.metadata.uid, network.name);
  }

  /** The networks named, in that order. SR-IOV needs nothing here but counts in the index. */
  async #members(vmi: Vmi, names: readonly string[]): Promise<Member[]> {
    const matched = names.map((name, index) => {
      const network = vmiNetworks(vmi).find((candidate) => candidate.name === name);
      const iface = vmiInterfaces(vmi).find((candidate) => candidate.name === name);
      if (network === undefined || iface === undefined) {
        throw new Error(`no iface matching with network ${name}`);
      }
      return { network, iface, index };
    });
    const plumbed = matched.filter(({ iface }) => bindingOf(iface) !== 'sriov');
    if (plumbed.length === 0) return [];
    const podUid = await this.#podUid(vmi);
    const members: Member[] = [];
    for (const member of plumbed) {
      const record = await this.#options.state.read(vmi.metadata.uid, member.network.name);
      // A record of another pod of the same VMI says nothing about this one.
      const current = record?.podUid === undefined || record.podUid === podUid;
      members.push({ ...member, record: current ? (record ?? nothingKnown) : nothingKnown });
    }
    return members;
  }

  /** Without a call to the helper while only one pod is active here, which is nearly always. */
  async #podUid(vmi: Vmi): Promise<string> {
    const [first, ...others] = activePodsOnNode(vmi, this.#options.node);
    return first !== undefined && others.length === 0 ? first : (await this.#options.pods.find(vmi)).podUid;
  }

  async #view(vmi: Vmi): Promise<PodView> {
    const pod = await this.#options.pods.find(vmi);
    const observed = await this.#options.helper.observeNetwork(pod);
    const scheme = nameScheme(observed.links.map((link) => link.name));
    return { pod, observed, names: podInterfaces(vmiNetworks(vmi), scheme, interfaceStatuses(vmi)) };
  }

  /**
   * Records the addresses of a pending interface, and of a bridge also what its guest is to be told: plumbing takes
   * away what they are read from, so what is recorded of this pod is never read again.
   */
  async #discover(vmi: Vmi, member: Member, view: PodView): Promise<Member> {
    const { network, iface, record } = member;
    const known = record.dhcp !== undefined || record.podIps.length > 0;
    if (known && record.podUid === view.pod.podUid) return member;
    const podInterface = podInterfaceOf(member, view);
    const renamed = renamedLink(podInterface);
    const links = new Set(view.observed.links.map(({ name }) => name));
    // What was unplugged keeps its second name, and may be plugged again before Multus has taken it away.
    const unplugged = isSecondary(network) && bindingOf(iface) === 'bridge' && !links.has(podInterface);
    const link = unplugged && links.has(renamed) ? renamed : podInterface;
    const status = interfaceStatuses(vmi).find((entry) => entry.name === iface.name);
    const found = discover(iface, link, view.observed, status, this.#options.agentPodIp);
    const next: NetworkRecord = {
      ...record,
      podUid: view.pod.podUid,
      ...(found.podIps.length > 0 && { iface, podIps: found.podIps }),
      ...(found.dhcp !== undefined && { dhcp: found.dhcp }),
    };
    if (found.podIps.length > 0 || found.dhcp !== undefined) {
      await this.#options.state.write(vmi.metadata.uid, network.name, next);
    }
    return { ...member, record: next };
  }

  async #plug(vmi: Vmi, pending: readonly Member[], view: PodView): Promise<void> {
    try {
      const attachments = pending.flatMap((member) => this.#attachment(vmi, member, view));
      const passt = pending.some(({ iface }) => bindingOf(iface) === 'passt');
      if (attachments.length === 0 && !passt) return;
      await this.#options.helper.applyNetwork({ pod: view.pod, attachments, detachments: [], passt });
    } catch (error) {
      if (isRetryable(error)) throw error;
      for (const member of pending) await this.#setPhase(vmi, member, 'started');
      throw critical(error);
    }
  }

  /** A call of its own: what cannot be removed says nothing about what was plugged, and is tried again. */
  async #unplug(unplugged: readonly Member[], view: PodView): Promise<void> {
    try {
      const detachments = unplugged.flatMap((member) => this.#detachment(member, view));
      if (detachments.length === 0) return;
      await this.#options.helper.applyNetwork({ pod: view.pod, attachments: [], detachments, passt: false });
    } catch (error) {
      throw isRetryable(error) ? error : critical(error);
    }
  }

  #attachment(vmi: Vmi, member: Member, view: PodView): Attachment[] {
    const attachment = attachmentOf({
      vmi,
      network: member.network,
      iface: member.iface,
      index: member.index,
      podInterface: podInterfaceOf(member, view),
      dhcp: member.record.dhcp,
      observed: view.observed,
      ...this.#options.config(),
    });
    return attachment === undefined ? [] : [attachment];
  }

  #detachment(member: Member, view: PodView): Detachment[] {
    const { plugins } = this.#options.config();
    const result = detachmentOf(member.network, member.iface, podInterfaceOf(member, view), plugins);
    return result === undefined ? [] : [result];
  }

  async #setPhase(vmi: Vmi, { network, record }: Member, phase: NetworkPhase): Promise<void> {
    const { dhcp: _, ...kept } = record;
    await this.#options.state.write(vmi.metadata.uid, network.name, { ...kept, phase });
  }
}

function podInterfaceOf(member: Member, view: PodView): string {
  return view.names.get(member.network.name) ?? '';
}
