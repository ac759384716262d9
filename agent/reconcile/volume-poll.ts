/** When a VMI with hotplugged volumes that are on their way is looked at again. */
import type { Domain } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import type { Clock } from '../clock.js';
import { semanticEqual } from './semantic-equal.js';

const firstMs = 1000;
const maxMs = 10_000;

export interface VolumePoll {
  /** Between the look before and this one. */
  readonly waitMs: number;
  /** Milliseconds since the epoch. */
  readonly dueAt: number;
}

/** After 1, 2, 4, 8, 10, 10… s while nothing `changed`; a look in between does not move the next one. */
function nextVolumePoll(before: VolumePoll | undefined, changed: boolean, now: number): VolumePoll {
  if (before === undefined || changed) return { waitMs: firstMs, dueAt: now + firstMs };
  if (now < before.dueAt) return before;
  const waitMs = Math.min(2 * before.waitMs, maxMs);
  return { waitMs, dueAt: now + waitMs };
}

interface Waiting {
  readonly vmi: Vmi;
  /** As it was stored: every event of the launcher stores another one. */
  readonly domain: Domain | undefined;
  readonly poll: VolumePoll;
}

export class VolumePolls {
  readonly #waiting = new Map<string, Waiting>();

  constructor(private readonly clock: Clock) {}

  /** Milliseconds until volumes of this VMI are to be looked at again. The same for all who ask in one pass. */
  nextInMs(vmi: Vmi, domain: Domain | undefined): number {
    const { uid } = vmi.metadata;
    const now = this.clock.now();
    const before = this.#waiting.get(uid);
    const changed = before !== undefined && (before.domain !== domain || !sameVolumes(before.vmi, vmi));
    const poll = nextVolumePoll(before?.poll, changed, now);
    this.#waiting.set(uid, { vmi, domain, poll });
    return poll.dueAt - now;
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#waiting.size;
  }

  forget(uid: string): void {
    this.#waiting.delete(uid);
  }
}

/** Attachment pods show in the status: their UID, and the phase that tells how far they are. */
function sameVolumes(a: Vmi, b: Vmi): boolean {
  return (
    semanticEqual(a.spec.volumes, b.spec.volumes) &&
    semanticEqual(a.spec.utilityVolumes, b.spec.utilityVolumes) &&
    semanticEqual(a.status.volumeStatus, b.status.volumeStatus) &&
    semanticEqual(a.status.activePods, b.status.activePods)
  );
}
