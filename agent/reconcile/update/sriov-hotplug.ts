/** When SR-IOV devices may be plugged into a running VM (KubeVirt pkg/util/ratelimiter executor). */
import type { Vmi } from '../../api/vmi.js';
import type { Clock } from '../../clock.js';
import { containsInfoSource } from '../../network/infosource.js';
import { interfaceStatuses, vmiInterfaces } from '../../network/vmi-network.js';

const firstStepMs = 3000;
const factor = 1.8;
const maxStepMs = 10 * 60 * 1000;
const giveUpMs = 5 * 60 * 60 * 1000;

/** Some SR-IOV interface of the spec is in the pod but not in the domain. */
export function sriovHotplugPending(vmi: Vmi): boolean {
  const names = new Set(
    vmiInterfaces(vmi)
      .filter(({ sriov }) => sriov != null)
      .map(({ name }) => name),
  );
  return interfaceStatuses(vmi).some(
    ({ name, infoSource }) =>
      name !== undefined &&
      names.has(name) &&
      containsInfoSource(infoSource, 'multus-status') &&
      !containsInfoSource(infoSource, 'domain'),
  );
}

export interface SriovTurn {
  readonly run: boolean;
  /** When to ask again; undefined once given up. */
  readonly nextInMs: number | undefined;
}

interface Attempts {
  readonly since: number;
  /** Not before, exclusive; milliseconds since the epoch. */
  next: number;
  step: number;
}

export class SriovHotplug {
  readonly #attempts = new Map<string, Attempts>();

  constructor(private readonly clock: Clock) {}

  /** The first turn is at once, then after 3 s, 5.4 s, 9.7 s … up to 10 min, for 5 h. */
  turn(uid: string): SriovTurn {
    const now = this.clock.now();
    const attempts = this.#attempts.get(uid) ?? { since: now, next: now - 1, step: firstStepMs };
    this.#attempts.set(uid, attempts);
    if (now - attempts.since > giveUpMs) return { run: false, nextInMs: undefined };
    const run = now > attempts.next;
    if (run) {
      attempts.next = now + attempts.step;
      attempts.step = Math.min(attempts.step * factor, maxStepMs);
    }
    return { run, nextInMs: attempts.next - now + 1 };
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#attempts.size;
  }

  forget(uid: string): void {
    this.#attempts.delete(uid);
  }
}
