import { constants } from 'node:os';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { AuditLog } from '../../../privhelper/audit/audit.js';
import { answer } from '../../../privhelper/descriptors/channel.js';
import { type TicketOwner, Tickets } from '../../../privhelper/descriptors/tickets.js';
import { agent, podA, podB, vmiA } from './fakes.js';

const owner: TicketOwner = { peer: agent, podUid: podA, vmiUid: vmiA, callId: 'c-1' };

function setUp(limit = 256) {
  const closed: number[] = [];
  let counter = 0;
  const random = (bytes: number) => new Uint8Array(bytes).fill(++counter);
  const tickets = new Tickets({ limit, ttlMs: 5000, close: (fd) => closed.push(fd), random });
  return { tickets, closed };
}

describe('tickets', () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it('gives the descriptor once', () => {
    const { tickets, closed } = setUp();
    const { value, ttlMs } = tickets.issue(7, owner);
    expect(value).toHaveLength(32);
    expect(ttlMs).toBe(5000);
    expect(tickets.redeem(value, agent)).toEqual({ fd: 7, owner });
    expect(() => tickets.redeem(value, agent)).toThrow(/unknown, used or expired/);
    vi.advanceTimersByTime(10_000);
    expect(closed).toEqual([]);
  });

  it('closes the descriptor when the time is over', () => {
    const { tickets, closed } = setUp();
    const { value } = tickets.issue(7, owner);
    vi.advanceTimersByTime(4999);
    expect(closed).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(closed).toEqual([7]);
    expect(() => tickets.redeem(value, agent)).toThrow(/expired/);
  });

  it.each([
    { ...agent, pid: agent.pid + 1 },
    { ...agent, uid: 0 },
  ])('closes the descriptor when another process has the ticket (%o)', (peer) => {
    const { tickets, closed } = setUp();
    const { value } = tickets.issue(7, owner);
    expect(() => tickets.redeem(value, peer)).toThrow(/another process/);
    expect(closed).toEqual([7]);
    expect(() => tickets.redeem(value, agent)).toThrow(/unknown/);
  });

  it('keeps a bounded number and closes the descriptor beyond it', () => {
    const { tickets, closed } = setUp(2);
    tickets.issue(1, owner);
    tickets.issue(2, owner);
    expect(() => tickets.issue(3, owner)).toThrow(expect.objectContaining({ code: Code.ResourceExhausted }));
    expect(closed).toEqual([3]);
    expect(tickets.size).toBe(2);
  });

  it('drops what belongs to a pod or to a process', () => {
    const { tickets, closed } = setUp();
    tickets.issue(1, owner);
    tickets.issue(2, { ...owner, podUid: podB });
    tickets.issue(3, { ...owner, peer: { ...agent, pid: 5 } });
    expect(tickets.dropPod(podA)).toBe(true);
    expect(closed).toEqual([1, 3]);
    expect(tickets.dropPod(podA)).toBe(false);
    tickets.dropPeer(agent);
    expect(closed).toEqual([1, 3, 2]);
    expect(tickets.size).toBe(0);
  });
});

describe('descriptor channel', () => {
  function channel() {
    const { tickets, closed } = setUp();
    const lines: string[] = [];
    const audit = new AuditLog({
      sink: { append: (line) => void lines.push(line) },
      now: () => new Date(0),
      monotonic: () => 0,
      report: () => undefined,
    });
    const native = { close: (fd: number) => void closed.push(fd) };
    const reports: unknown[][] = [];
    const replies: [number, number | null][] = [];
    const claim = (request: Parameters<typeof answer>[0], peer = agent) =>
      answer(request, peer, (status, fd) => replies.push([status, fd]), {
        native,
        tickets,
        audit,
        report: (...report) => reports.push(report),
      });
    return { tickets, closed, lines, replies, claim, audit, reports };
  }

  it('answers a ticket with its descriptor and audits the claim', () => {
    const { tickets, replies, claim, lines } = channel();
    const { value } = tickets.issue(7, owner);
    claim(value);
    expect(replies).toEqual([[0, 7]]);
    const claimed = { method: 'claim descriptor', call: 'c-1', pod: podA };
    expect(lines.map((line) => JSON.parse(line))).toMatchObject([
      { event: 'begin', ...claimed },
      { event: 'end', decision: 'allowed', ...claimed },
    ]);
  });

  it('refuses and audits wrong peers, wrong sizes and unknown tickets', () => {
    const { tickets, replies, claim, lines } = channel();
    const { value } = tickets.issue(7, owner);
    claim('EACCES', { ...agent, uid: 107 });
    claim(value.slice(1));
    claim(new Uint8Array(33));
    claim(new Uint8Array(32).fill(255));
    claim('EAGAIN');
    claim('EMSGSIZE');
    claim('ETIMEDOUT');
    const { EACCES, EAGAIN, EINVAL, EMSGSIZE, ETIMEDOUT } = constants.errno;
    const statuses = [EACCES, EINVAL, EINVAL, EACCES, EAGAIN, EMSGSIZE, ETIMEDOUT];
    expect(replies).toEqual(statuses.map((status) => [status, null]));
    expect(lines.map((line) => JSON.parse(line))).toMatchObject(
      [
        'uid is not the agent',
        'message is not a ticket',
        'message is not a ticket',
        'ticket is unknown, used or expired',
        '64 claims are open',
        'message is longer than a ticket',
        'no ticket came within 2000 ms',
      ].map((message) => ({ event: 'refusal', decision: 'refused', method: 'claim descriptor', message })),
    );
    expect(lines.join('')).not.toContain(Buffer.from(value).toString('base64'));
    expect(tickets.size).toBe(1);
  });

  it('keeps the descriptor from going out unaudited', () => {
    const { tickets, replies, claim, closed, audit, reports } = channel();
    const { value } = tickets.issue(7, owner);
    const full = new Error('disk full');
    audit.begin = () => {
      throw full;
    };
    claim(value);
    expect(reports).toEqual([[expect.stringContaining('claim descriptor refused'), full]]);
    for (const named of [`process ${agent.pid} of uid ${agent.uid}`, podA]) {
      expect(reports[0]?.[0]).toContain(named);
    }
    expect(replies).toEqual([[constants.errno.EIO, null]]);
    expect(closed).toEqual([7]);
  });
});
