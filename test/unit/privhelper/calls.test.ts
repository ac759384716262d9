import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { AuditLog } from '../../../privhelper/audit/audit.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { malformed } from '../../../privhelper/failure.js';
import type { Invocation } from '../../../privhelper/invocation.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { type CallContext, Calls } from '../../../privhelper/server/calls.js';
import { Connections, OperatorConnections } from '../../../privhelper/server/connections.js';
import { agent, nativeError, podA, vmiA } from './fakes.js';

const identify = declaredBy(PodService.method.identify);

function setUp() {
  const lines: Record<string, unknown>[] = [];
  const reports: string[] = [];
  const disk = { full: false };
  const audit = new AuditLog({
    sink: {
      append(line) {
        if (disk.full) throw nativeError('ENOSPC');
        lines.push(JSON.parse(line));
      },
    },
    now: () => new Date(0),
    monotonic: () => 0,
    report: (message) => void reports.push(message),
  });
  const calls = new Calls({
    audit,
    instanceId: '0123456789',
    now: () => performance.now(),
    report: (message) => void reports.push(message),
  });
  const context: CallContext = { peer: agent, signal: new AbortController().signal, timeoutMs: undefined };
  const check = () => ({ checked: 'checked', podUid: podA, vmiUid: vmiA, arguments: { a: 1 } });
  const unary = <R>(run: (invocation: Invocation) => Promise<R>, more: Partial<CallContext> = {}) =>
    calls.unary(identify, { ...context, ...more }, check, run);
  return { calls, lines, reports, disk, context, check, unary };
}

async function failureOf(promise: Promise<unknown>) {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(ConnectError);
  const [detail] = (error as ConnectError).findDetails(FailureSchema);
  return { code: (error as ConnectError).code, detail };
}

describe('calls', () => {
  afterEach(() => {
    vi.useRealTimers();
  });

  it('runs a checked call between two audit lines, under its declaration', async () => {
    const { unary, lines } = setUp();
    const caps = await unary(async (invocation) => {
      expect(lines).toMatchObject([{ event: 'begin', call: '01234567-1', pod: podA, arguments: { a: 1 } }]);
      expect(invocation.call.deadlineMs).toBeLessThanOrEqual(5000);
      return invocation.call.caps;
    });
    expect(caps).toBe(identify.caps);
    expect(lines[1]).toMatchObject({ event: 'end', call: '01234567-1', decision: 'allowed' });
  });

  it('answers a refused request with its field and audits it once', async () => {
    const { calls, context, lines } = setUp();
    const run = vi.fn();
    const refused = calls.unary(
      identify,
      context,
      () => {
        throw malformed('pod.pod_uid', 'not a canonical UUID');
      },
      run,
    );
    expect(await failureOf(refused)).toMatchObject({
      code: Code.InvalidArgument,
      detail: { field: 'pod.pod_uid', refused: true, unchanged: true },
    });
    expect(run).not.toHaveBeenCalled();
    expect(lines).toMatchObject([{ event: 'refusal', method: 'PodService.Identify', field: 'pod.pod_uid' }]);
  });

  it.each([
    ['EPERM', true, Code.PermissionDenied, 'refused'],
    ['EPERM', false, Code.PermissionDenied, 'failed'],
    ['EACCES', false, Code.PermissionDenied, 'failed'],
    ['ENOENT', false, Code.NotFound, 'failed'],
    ['EBUSY', false, Code.Aborted, 'failed'],
    ['EAGAIN', false, Code.Aborted, 'failed'],
    ['ETIMEDOUT', false, Code.DeadlineExceeded, 'failed'],
    ['ECONNREFUSED', false, Code.FailedPrecondition, 'failed'],
    ['ENOSPC', false, Code.ResourceExhausted, 'failed'],
    ['EIO', false, Code.Internal, 'failed'],
  ] as const)('answers %s (refused %s) with the right code', async (errno, refused, code, decision) => {
    const { unary, lines } = setUp();
    const error = nativeError(errno, { refused, errno: 5, operation: 'openat2 x', unchanged: false });
    const failure = await failureOf(unary(() => Promise.reject(error)));
    expect(failure).toMatchObject({
      code,
      detail: { operation: 'openat2 x', errno: 5, errnoName: errno, refused, unchanged: false },
    });
    expect(lines[1]).toMatchObject({ event: 'end', decision, errno });
  });

  it('does not tell the agent about faults of its own', async () => {
    const { unary, reports } = setUp();
    const failure = await failureOf(unary(() => Promise.reject(new TypeError('secret of the helper'))));
    expect(failure.code).toBe(Code.Internal);
    expect(JSON.stringify(failure.detail)).not.toContain('secret');
    expect(reports).toEqual(['PodService.Identify failed']);
  });

  it('refuses a call that cannot be audited', async () => {
    const { unary, disk } = setUp();
    const run = vi.fn();
    disk.full = true;
    expect(await failureOf(unary(run))).toMatchObject({
      code: Code.Unavailable,
      detail: { errnoName: 'ENOSPC', unchanged: true },
    });
    expect(run).not.toHaveBeenCalled();
  });

  it('answers in time when an operation hangs, and knows that it is still under way', async () => {
    vi.useFakeTimers();
    const { calls, unary, lines } = setUp();
    let finish: () => void = () => undefined;
    const hung = failureOf(unary(() => new Promise<void>((resolve) => (finish = resolve))));
    await vi.advanceTimersByTimeAsync(5500);
    expect(await hung).toMatchObject({ code: Code.DeadlineExceeded, detail: { unchanged: false } });
    expect(lines[1]).toMatchObject({ decision: 'failed', operation: 'await operation' });
    const idle = vi.fn();
    void calls.idle().then(idle);
    await vi.advanceTimersByTimeAsync(0);
    expect(idle).not.toHaveBeenCalled();
    finish();
    await vi.advanceTimersByTimeAsync(0);
    expect(idle).toHaveBeenCalled();
  });

  it('gives an operation no more time than the client does', async () => {
    const { unary } = setUp();
    const left = await unary(async (invocation) => invocation.call.deadlineMs, { timeoutMs: 50 });
    expect(left).toBeLessThanOrEqual(50);
  });

  it('audits begin and end of a stream', async () => {
    const { calls, context, check, lines } = setUp();
    async function* three() {
      yield* [1, 2, 3];
    }
    const read: number[] = [];
    for await (const n of calls.stream(identify, context, check, three)) {
      read.push(n);
      if (n === 2) break;
    }
    expect(read).toEqual([1, 2]);
    expect(lines).toMatchObject([{ event: 'begin' }, { event: 'end', decision: 'allowed' }]);
  });
});

describe('connections of operators', () => {
  it("admits root and the operators' group, so many connections, from any processes", () => {
    const connections = new OperatorConnections(createPolicy({ maxConnections: 2 }));
    expect(connections.admit(agent)).toMatchObject({ code: Code.PermissionDenied, refused: true });
    expect(connections.admit({ ...agent, gid: 65530 })).toBeUndefined();
    expect(connections.admit({ pid: 1, uid: 0, gid: 0 })).toBeUndefined();
    expect(connections.admit({ pid: 2, uid: 0, gid: 0 })?.code).toBe(Code.ResourceExhausted);
    expect(connections.leave()).toBe(true);
    expect(connections.admit({ pid: 2, uid: 0, gid: 0 })).toBeUndefined();
  });
});

describe('connections', () => {
  it('admits the agent uid only, one process at a time, so many connections', () => {
    const connections = new Connections(createPolicy({ maxConnections: 2 }));
    const other = { ...agent, pid: agent.pid + 1 };
    expect(connections.admit({ ...agent, uid: 0 })?.code).toBe(Code.PermissionDenied);
    expect(connections.admit(agent)).toBeUndefined();
    expect(connections.pid).toBe(agent.pid);
    expect(connections.admit(other)?.message).toContain('another agent process');
    expect(connections.admit(agent)).toBeUndefined();
    expect(connections.admit(agent)?.code).toBe(Code.ResourceExhausted);
    expect(connections.leave()).toBe(false);
    expect(connections.admit(other)).toBeDefined();
    expect(connections.leave()).toBe(true);
    expect(connections.admit(other)).toBeUndefined();
  });
});
