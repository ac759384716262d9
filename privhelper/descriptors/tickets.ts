/** One-time claims on descriptors. The table owns the descriptors until they are claimed. */
import type { Peer } from '../../native/binding.js';
import { exhausted, refusal } from '../failure.js';

export interface Ticket {
  readonly value: Uint8Array;
  readonly ttlMs: number;
}

/** For whom and for what a descriptor was made. */
export interface TicketOwner {
  readonly peer: Peer;
  readonly podUid: string | undefined;
  readonly vmiUid: string | undefined;
  /** Id of the call that made the descriptor. */
  readonly callId: string;
}

export interface TicketOptions {
  readonly limit: number;
  readonly ttlMs: number;
  readonly close: (fd: number) => void;
  readonly random: (bytes: number) => Uint8Array;
}

/** Bytes of a ticket. */
export const ticketBytes = 32;

interface Outstanding {
  readonly fd: number;
  readonly owner: TicketOwner;
  readonly timer: NodeJS.Timeout;
}

export class Tickets {
  private readonly outstanding = new Map<string, Outstanding>();

  constructor(private readonly options: TicketOptions) {}

  get size(): number {
    return this.outstanding.size;
  }

  /** Takes over `fd`, also when it throws (too many outstanding). */
  issue(fd: number, owner: TicketOwner): Ticket {
    if (this.outstanding.size >= this.options.limit) {
      this.options.close(fd);
      throw exhausted('issue ticket', `more than ${this.options.limit} descriptors are unclaimed`);
    }
    const value = this.options.random(ticketBytes);
    const key = keyOf(value);
    const timer = setTimeout(() => this.drop(key), this.options.ttlMs);
    timer.unref();
    this.outstanding.set(key, { fd, owner, timer });
    return { value, ttlMs: this.options.ttlMs };
  }

  /**
   * Gives the descriptor to the peer that the ticket was made for. A ticket in other hands has leaked,
   * so its descriptor is closed.
   */
  redeem(value: Uint8Array, peer: Peer): { readonly fd: number; readonly owner: TicketOwner } {
    const key = keyOf(value);
    const entry = this.outstanding.get(key);
    if (entry === undefined) throw refusal('redeem ticket', 'ticket is unknown, used or expired');
    if (entry.owner.peer.pid !== peer.pid || entry.owner.peer.uid !== peer.uid) {
      this.drop(key);
      throw refusal('redeem ticket', 'ticket was made for another process');
    }
    this.outstanding.delete(key);
    clearTimeout(entry.timer);
    return { fd: entry.fd, owner: entry.owner };
  }

  /** Closes what was made for a pod. True when there was something. */
  dropPod(podUid: string): boolean {
    return this.dropWhere((owner) => owner.podUid === podUid);
  }

  /** Closes what was made for a process that has disconnected. */
  dropPeer(peer: Peer): void {
    this.dropWhere((owner) => owner.peer.pid === peer.pid && owner.peer.uid === peer.uid);
  }

  closeAll(): void {
    this.dropWhere(() => true);
  }

  private dropWhere(matches: (owner: TicketOwner) => boolean): boolean {
    const keys = [...this.outstanding].filter(([, { owner }]) => matches(owner)).map(([key]) => key);
    for (const key of keys) this.drop(key);
    return keys.length > 0;
  }

  private drop(key: string): void {
    const entry = this.outstanding.get(key);
    if (entry === undefined) return;
    this.outstanding.delete(key);
    clearTimeout(entry.timer);
    this.options.close(entry.fd);
  }
}

function keyOf(value: Uint8Array): string {
  return Buffer.from(value).toString('base64');
}
