import type { Domain } from '../api/domain.js';
import type { Vmi, VmiRef } from '../api/vmi.js';
import type { NetStat } from '../reconcile/ports.js';
import { interfaceStatusesOf } from './netstat.js';
import type { NetworkStateStore } from './state.js';
import { interfaceStatuses, isAbsent, vmiInterfaces } from './vmi-network.js';

/** status.interfaces from domain, guest agent and what was recorded of the pod's links. */
export class PodNetStat implements NetStat {
  readonly #state: NetworkStateStore;

  constructor(state: NetworkStateStore) {
    this.#state = state;
  }

  async updateStatus(vmi: Vmi, domain: Domain | undefined): Promise<void> {
    if (domain === undefined) return;
    const podIps = new Map<string, readonly string[]>();
    for (const { name } of vmiInterfaces(vmi)) {
      const record = await this.#state.read(vmi.metadata.uid, name);
      if (record !== undefined) podIps.set(name, record.podIps);
    }
    const statuses = interfaceStatusesOf(vmi, domain, podIps);
    if (statuses.length > 0 || interfaceStatuses(vmi).length > 0) vmi.status.interfaces = statuses;
    for (const iface of vmiInterfaces(vmi)) {
      if (isAbsent(iface)) this.#state.forget(vmi.metadata.uid, iface.name);
    }
  }

  teardown(vmi: VmiRef): void {
    this.#state.forgetVmi(vmi.uid);
  }
}
