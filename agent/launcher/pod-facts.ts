/** Facts about the launcher's pod for the status. */
import { SelinuxMode } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import type { Vmi } from '../api/vmi.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { LauncherFacts } from '../reconcile/ports.js';
import type { Iso } from '../reconcile/status/iso-size.js';

export class PodFacts implements LauncherFacts {
  readonly #helper: Pick<HelperClient, 'health' | 'selinuxContext' | 'statIso'>;
  /** Whether SELinux is active, once that is known: it does not change before the node is booted again. */
  #active: boolean | undefined;
  /** Labels by pod UID: a container keeps the label that it was made with. */
  readonly #contexts = new Map<string, string>();

  constructor(helper: Pick<HelperClient, 'health' | 'selinuxContext' | 'statIso'>) {
    this.#helper = helper;
  }

  async selinuxContext(vmi: Vmi, podUid: string | undefined): Promise<string | undefined> {
    this.#active ??= (await this.#helper.health()).selinux !== SelinuxMode.DISABLED;
    if (!this.#active) return 'none';
    if (podUid === undefined) return undefined;
    const known = this.#contexts.get(podUid);
    if (known !== undefined) return known;
    const context = await this.#helper.selinuxContext({ podUid, vmiUid: vmi.metadata.uid });
    if (context === '') throw new Error(`the root directory of the launcher in pod ${podUid} has no label`);
    this.#contexts.set(podUid, context);
    return context;
  }

  /** The pod is gone. */
  forget(podUid: string): void {
    this.#contexts.delete(podUid);
  }

  async isoSize(vmi: Vmi, podUid: string, iso: Iso): Promise<number> {
    const pod = { podUid, vmiUid: vmi.metadata.uid };
    return Number(await this.#helper.statIso({ pod, iso }));
  }
}
