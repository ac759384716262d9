/** One call in progress: whose it is, what it may raise and how long it may take. */
import type { Call, Peer } from '../native/binding.js';
import type { TicketOwner } from './descriptors/tickets.js';
import { expired } from './failure.js';
import type { PodRef } from './policy/check.js';

export interface InvocationFacts {
  readonly id: string;
  readonly peer: Peer;
  /** Declared capabilities. */
  readonly caps: bigint;
  /** Monotonic milliseconds at which the call is given up; Infinity for streams. */
  readonly deadline: number;
  readonly signal: AbortSignal;
  /** Milliseconds, monotonic. */
  readonly now: () => number;
}

/** A remark. */
export const ownerKept = 'owner kept: the server of the file system does not let the helper give it away';

export class Invocation {
  readonly id: string;
  readonly peer: Peer;
  readonly signal: AbortSignal;
  /** What the audit log is to say of the call when it succeeds. */
  remark: string | undefined;

  constructor(private readonly facts: InvocationFacts) {
    this.id = facts.id;
    this.peer = facts.peer;
    this.signal = facts.signal;
  }

  /** Options for the next native operation: the declared capabilities and the time that is left. */
  get call(): Call {
    return this.within(this.facts.caps, Number.POSITIVE_INFINITY);
  }

  /** For whom a descriptor is that this call yields, and the pod that it is of, if of one. */
  ticketOwner({ podUid, vmiUid }: Partial<PodRef>): TicketOwner {
    return { peer: this.peer, callId: this.id, podUid, vmiUid };
  }

  /**
   * Options for a step that needs only `caps`, of which what the method does not declare is not raised, and
   * takes at most `limitMs`. Throws when no time is left.
   */
  within(caps: bigint, limitMs: number): Call {
    const left = Math.floor(this.facts.deadline - this.facts.now());
    if (left <= 0) throw expired('await turn', true);
    return { caps: caps & this.facts.caps, deadlineMs: Math.min(left, limitMs) };
  }
}
