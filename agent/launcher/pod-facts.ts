/** Facts about the launcher's pod for the status. */
import { readFileSync } from 'node:fs';
import type { Vmi } from '../api/vmi.js';
import type { HelperClient } from '../helper/helper-client.js';
import type { LauncherFacts } from '../reconcile/ports.js';
import type { Iso } from '../reconcile/status/iso-size.js';

export class PodFacts implements LauncherFacts {
  readonly #helper: Pick<HelperClient, 'statIso'>;
  readonly #selinux: boolean;

  constructor(helper: Pick<HelperClient, 'statIso'>) {
    this.#helper = helper;
    this.#selinux = hasSelinuxLabel();
  }

  /** "none" where SELinux is not active; otherwise unknown, and the status field stays as it is. */
  async selinuxContext(): Promise<string | undefined> {
    return this.#selinux ? undefined : 'none';
  }

  async isoSize(vmi: Vmi, podUid: string, iso: Iso): Promise<number> {
    const pod = { podUid, vmiUid: vmi.metadata.uid };
    return Number(await this.#helper.statIso({ pod, iso }));
  }
}

/** selinuxfs may be there on a kernel that labels nothing, so the own label decides. */
function hasSelinuxLabel(): boolean {
  try {
    readFileSync('/sys/fs/selinux/enforce');
    return readFileSync('/proc/self/attr/current', 'utf8').replace(/[\0\n]+$/, '') !== '';
  } catch {
    return false; // no selinuxfs, or EINVAL/EOPNOTSUPP for the label: not active
  }
}
