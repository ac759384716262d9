/** The descriptor channel: one request, a ticket, and one answer, a status byte with the descriptor. */
import { constants } from 'node:os';
import type { Native, Peer, RefusedRequest } from '../../native/binding.js';
import type { AuditLog } from '../audit/audit.js';
import { type CallFailure, exhausted, refusal, toFailure } from '../failure.js';
import type { Policy } from '../policy/policy.js';
import { type Tickets, ticketBytes } from './tickets.js';

type Report = (message: string, error?: unknown) => void;

const method = 'claim descriptor';
const { EACCES, EINVAL, EIO } = constants.errno;

/** Time for the ticket to arrive on a new connection. */
const requestTimeoutMs = 2000;
const maxConnections = 64;

/** What is written down of those whom the channel itself does not serve. */
const refusals: Readonly<Record<RefusedRequest, CallFailure>> = {
  EACCES: refusal('check peer', 'uid is not the agent'),
  EAGAIN: exhausted('check peer', `${maxConnections} claims are open`),
  EMSGSIZE: refusal('check ticket', 'message is longer than a ticket'),
  ETIMEDOUT: refusal('read ticket', `no ticket came within ${requestTimeoutMs} ms`),
};

/** Serves on a listening descriptor until stopped. */
export function serveTickets(
  native: Native,
  listener: number,
  tickets: Tickets,
  { agentUid: uid }: Policy,
  audit: AuditLog,
  report: Report,
): { stop(): void } {
  return native.serveDescriptors(
    listener,
    // One byte more than a ticket, so that a longer message is seen to be one.
    { maxBytes: ticketBytes + 1, timeoutMs: requestTimeoutMs, maxConnections, uid },
    (request, peer, reply) => answer(request, peer, reply, { native, tickets, audit, report }),
  );
}

export interface Claiming {
  readonly native: Pick<Native, 'close'>;
  readonly tickets: Tickets;
  readonly audit: AuditLog;
  /** Told of errors that are faults of the helper itself. */
  readonly report: Report;
}

/** Answers one claim: status 0 and the descriptor, else an errno. */
export function answer(
  request: Uint8Array | RefusedRequest,
  peer: Peer,
  reply: (status: number, fd: number | null) => void,
  { native, tickets, audit, report }: Claiming,
): void {
  if (typeof request === 'string') {
    audit.refused({ method, peer }, refusals[request]);
    reply(constants.errno[request], null);
    return;
  }
  if (request.length !== ticketBytes) {
    audit.refused({ method, peer }, refusal('check ticket', 'message is not a ticket'));
    reply(EINVAL, null);
    return;
  }
  let claimed: ReturnType<Tickets['redeem']>;
  try {
    claimed = tickets.redeem(request, peer);
  } catch (error) {
    audit.refused({ method, peer }, toFailure(error));
    reply(EACCES, null);
    return;
  }
  const { fd, owner } = claimed;
  const claim = { id: owner.callId, method, peer, podUid: owner.podUid, vmiUid: owner.vmiUid };
  try {
    audit.begin(claim);
  } catch (error) {
    report(
      `${method} refused to process ${peer.pid} of uid ${peer.uid} for pod ${owner.podUid}: it cannot be audited`,
      error,
    );
    native.close(fd);
    reply(EIO, null);
    return;
  }
  reply(0, fd);
  audit.end(claim, undefined, 0);
}
