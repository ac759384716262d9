/** How guests ended, until the API server knows. */
import type { Phase } from '../api/vmi.js';

/**
 * A guest that ended is undefined in the same pass that writes the phase. When that write fails, for
 * instance on a conflict, nothing but this tells a guest that was shut down from one that was lost.
 */
export class EndedGuests {
  readonly #phases = new Map<string, Phase>();

  note(uid: string, phase: Phase): void {
    this.#phases.set(uid, phase);
  }

  phase(uid: string): Phase | undefined {
    return this.#phases.get(uid);
  }

  forget(uid: string): void {
    this.#phases.delete(uid);
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#phases.size;
  }
}
