/** What one pass over a key works on. */
import type { Domain } from '../api/domain.js';
import type { Vmi, VmiRef } from '../api/vmi.js';

/** The caches as they were when the pass began. Nothing here is ever changed; steps work on copies. */
export interface Pass {
  readonly key: string;
  /** Names the VMI also when it is gone; its UID is then the last one known, or empty. */
  readonly ref: VmiRef;
  /** Undefined: gone from the API. */
  readonly vmi: Vmi | undefined;
  /** Undefined also for a domain with a deletion timestamp. */
  readonly domain: Domain | undefined;
}

/** A pass over a VMI that exists. */
export type VmiPass = Pass & { readonly vmi: Vmi };

export function hasVmi(pass: Pass): pass is VmiPass {
  return pass.vmi !== undefined;
}
