/** Who may be connected: the agent's uid, one process of it at a time, so many connections. */
import type { Peer } from '../../native/binding.js';
import { type CallFailure, exhausted, refusal } from '../failure.js';
import type { Policy } from '../policy/policy.js';

export class Connections {
  private peer: Peer | undefined;
  private count = 0;

  constructor(private readonly policy: Policy) {}

  /** Counts the connection in, or says why not. */
  admit(peer: Peer): CallFailure | undefined {
    if (peer.uid !== this.policy.agentUid) return refusal('check peer', 'uid is not the agent');
    if (this.peer !== undefined && this.peer.pid !== peer.pid) {
      return refusal('check peer', 'another agent process is connected');
    }
    if (this.count >= this.policy.maxConnections) {
      return exhausted('check peer', `${this.count} connections are open`);
    }
    this.peer = peer;
    this.count += 1;
    return undefined;
  }

  /** True when it was the process's last connection. */
  leave(): boolean {
    this.count -= 1;
    if (this.count > 0) return false;
    this.peer = undefined;
    return true;
  }
}
