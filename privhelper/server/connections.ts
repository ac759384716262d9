/** Who may be connected to which socket, with so many connections. */
import type { Peer } from '../../native/binding.js';
import { type CallFailure, exhausted, refusal } from '../failure.js';
import type { Policy } from '../policy/policy.js';

export interface Admission {
  /** Counts the connection in, or says why not. */
  admit(peer: Peer): CallFailure | undefined;
  /** True when what the process has not claimed is to be dropped. */
  leave(): boolean;
}

/** The agent's socket: its uid, one process of it at a time. */
export class Connections implements Admission {
  private peer: Peer | undefined;
  private count = 0;

  constructor(private readonly policy: Policy) {}

  /** Process of the agent; undefined when none is connected. */
  get pid(): number | undefined {
    return this.peer?.pid;
  }

  get open(): number {
    return this.count;
  }

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

/** The operators' socket: root, or a process whose group is the operators'. */
export class OperatorConnections implements Admission {
  private count = 0;

  constructor(private readonly policy: Policy) {}

  admit(peer: Peer): CallFailure | undefined {
    if (peer.uid !== 0 && peer.gid !== this.policy.adminGid) {
      return refusal('check peer', "neither root nor in the operators' group");
    }
    if (this.count >= this.policy.maxConnections) {
      return exhausted('check peer', `${this.count} operators are connected`);
    }
    this.count += 1;
    return undefined;
  }

  leave(): boolean {
    this.count -= 1;
    return true;
  }
}
