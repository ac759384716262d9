/** Lets passt keep the guest's connections through a migration (KubeVirt pkg/network/passt/repair.go). */
import { MigrationSide } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { Vmi } from '../api/vmi.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { Logger } from '../log/log.js';

export interface PasstRepairOptions {
  readonly helper: Pick<HelperClient, 'repairPasst'>;
  /** Whether the feature gate PasstBinding is on. */
  readonly enabled: () => boolean;
  readonly log: Logger;
}

/**
 * Runs beside the migration and never fails it: without it the guest's TCP connections are lost, as they are without
 * passt. The helper ends each repair after 60 s.
 */
export class PasstRepair {
  /** UIDs of VMIs whose repair is under way. */
  readonly #active = new Set<string>();

  constructor(private readonly options: PasstRepairOptions) {}

  /** Just before the guest is sent. `podUid`: the VMI's pod on this node. */
  startSource(vmi: Vmi, podUid: string): void {
    this.#start(vmi, podUid, MigrationSide.SOURCE);
  }

  /** Just before the target is made ready. */
  startTarget(vmi: Vmi, podUid: string): void {
    this.#start(vmi, podUid, MigrationSide.TARGET);
  }

  #start(vmi: Vmi, podUid: string, side: MigrationSide): void {
    const { uid, namespace, name } = vmi.metadata;
    const usesPasst = vmi.spec.domain.devices.interfaces?.some((iface) => iface.passtBinding !== undefined);
    if (!this.options.enabled() || !usesPasst || this.#active.has(uid)) return;
    this.#active.add(uid);
    void this.#run(vmi, podUid, side)
      .catch((error) =>
        this.options.log
          .object({ namespace, name, uid })
          .warning(
            `passt of pod ${podUid} was not repaired: TCP connections of the guest may be lost`,
            error,
          ),
      )
      .finally(() => this.#active.delete(uid));
  }

  async #run({ metadata }: Vmi, podUid: string, side: MigrationSide): Promise<void> {
    const { uid, namespace, name } = metadata;
    const switched = await this.options.helper.repairPasst({ podUid, vmiUid: uid }, side);
    this.options.log
      .object({ namespace, name, uid })
      .info(`passt of pod ${podUid} was repaired: ${switched} times a socket was switched`);
  }
}
