import { Code } from '@connectrpc/connect';
import { describe, expect, it, vi } from 'vitest';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { toFailure } from '../../../privhelper/failure.js';
import { KeyedQueue } from '../../../privhelper/pods/queue.js';
import { PodRegistry } from '../../../privhelper/pods/registry.js';
import { createPolicy, type Policy } from '../../../privhelper/policy/policy.js';
import { FakeLaunchers, fakeNative, invocation, nativeError, podA, podB, refA, vmiB } from './fakes.js';

function setUp(policy: Partial<Policy> = {}) {
  const launchers = new FakeLaunchers();
  const onExit = vi.fn();
  const registry = new PodRegistry({
    native: fakeNative(launchers.methods),
    podsDir: 3,
    policy: createPolicy(policy),
    identify: declaredBy(PodService.method.identify),
    onExit,
  });
  const use = (ref = refA, body: () => Promise<void> = async () => undefined) =>
    registry.withLauncher(invocation(), ref, async (launcher, pinnedNow) => {
      await body();
      return { launcher, pinnedNow };
    });
  return { launchers, registry, onExit, use };
}

async function code(promise: Promise<unknown>): Promise<Code | undefined> {
  return promise.then(
    () => undefined,
    (error: unknown) => toFailure(error).code,
  );
}

describe('pod registry', () => {
  it('pins once and checks before every further operation', async () => {
    const { launchers, registry, use } = setUp();
    expect((await use()).pinnedNow).toBe(true);
    expect((await use()).pinnedNow).toBe(false);
    expect(launchers.pins).toEqual([podA]);
    expect(launchers.checked).toEqual([podA]);
    expect(registry.pinned).toBe(1);
  });

  it('STO-003 does nothing on a launcher that is not in the pod cgroup any more', async () => {
    const { launchers, use } = setUp();
    await use();
    launchers.check = () => Promise.reject(nativeError('EPERM', { refused: true }));
    const body = vi.fn(async () => undefined);
    expect(await code(use(refA, body))).toBe(Code.PermissionDenied);
    expect(body).not.toHaveBeenCalled();
  });

  it('refuses another VMI for a pod while its launcher lives, also after a release', async () => {
    const { launchers, registry, use } = setUp();
    const { launcher } = await use();
    const other = { podUid: podA, vmiUid: vmiB };
    expect(await code(use(other))).toBe(Code.PermissionDenied);
    expect(await code(registry.withPod(other, async () => undefined))).toBe(Code.PermissionDenied);
    expect(registry.release(podA)).toBe(true);
    expect(registry.pinned).toBe(0);
    expect(launchers.closed).toEqual([launcher.mntns, launcher.netns]);
    expect(await code(use(other))).toBe(Code.PermissionDenied);
    launchers.exit(launcher.pidfd);
    expect(launchers.closed).toContain(launcher.pidfd);
    expect(await code(use(other))).toBeUndefined();
  });

  it('keeps attachment pods with the launcher pod that named them first, while its launcher lives', async () => {
    const { launchers, registry, use } = setUp({ maxAttachmentPods: 2 });
    const { launcher } = await use();
    await use({ podUid: podB, vmiUid: vmiB });
    const attach = (podUid: string, attachmentPodUid: string) =>
      code(registry.withAttachment({ podUid, attachmentPodUid }, async () => undefined));
    expect(await attach(podA, 'one')).toBeUndefined();
    expect(await attach(podA, 'one')).toBeUndefined();
    expect(await attach(podB, 'one')).toBe(Code.PermissionDenied);
    expect(await attach(podA, podB)).toBe(Code.PermissionDenied);
    expect(await attach(podA, 'two')).toBeUndefined();
    expect(await attach(podA, 'three')).toBe(Code.ResourceExhausted);
    registry.forget('two');
    expect(await attach(podA, 'three')).toBeUndefined();
    registry.release(podA);
    expect(await attach(podB, 'one')).toBe(Code.PermissionDenied);
    launchers.exit(launcher.pidfd);
    expect(await attach(podB, 'one')).toBeUndefined();
  });

  it('lets one pod be released and identified again for the same VMI', async () => {
    const { launchers, registry, use } = setUp();
    const first = await use();
    registry.release(podA);
    expect((await use()).pinnedNow).toBe(true);
    expect(launchers.closed.sort()).toEqual([
      first.launcher.pidfd,
      first.launcher.mntns,
      first.launcher.netns,
    ]);
    expect(registry.release(podB)).toBe(false);
  });

  it('drops the pin, closes its descriptors and tells when the launcher exits', async () => {
    const { launchers, registry, onExit, use } = setUp();
    const { launcher } = await use();
    expect(registry.hasExited(podA)).toBe(false);
    launchers.exit(launcher.pidfd);
    expect(onExit).toHaveBeenCalledExactlyOnceWith(podA);
    expect(launchers.closed.sort()).toEqual([launcher.pidfd, launcher.mntns, launcher.netns]);
    expect(registry.hasExited(podA)).toBe(true);
    expect(registry.pinned).toBe(0);
    registry.forget(podA);
    expect(registry.hasExited(podA)).toBe(false);
  });

  it('STO-002 keeps descriptors open while an operation uses them, so that no number is used twice', async () => {
    const { launchers, use } = setUp();
    let exitDuring: () => void = () => undefined;
    const running = use(refA, async () => {
      exitDuring();
      expect(launchers.closed).toEqual([]);
    });
    exitDuring = () => launchers.exit(100);
    await running;
    expect(launchers.closed.sort()).toEqual([100, 101, 102]);
  });

  it('STO-002 pins anew when the launcher has exited before its exit notice came', async () => {
    const { launchers, use } = setUp();
    const first = await use();
    launchers.check = () => Promise.reject(nativeError('ESRCH'));
    const second = await use();
    expect(second.pinnedNow).toBe(true);
    expect(second.launcher.pidfd).not.toBe(first.launcher.pidfd);
    expect(launchers.closed).toContain(first.launcher.pidfd);
  });

  it('REC-051 refuses a launcher of any user but root and the configured one', async () => {
    const { launchers, registry, use } = setUp();
    launchers.uid = 1000;
    expect(await code(use())).toBe(Code.PermissionDenied);
    expect(launchers.closed.sort()).toEqual([100, 101, 102]);
    expect(registry.pinned).toBe(0);
    launchers.uid = 0;
    expect(await code(use())).toBeUndefined();
  });

  it('runs without a launcher only when nobody listens', async () => {
    const { launchers, registry } = setUp();
    const run = () => registry.withLauncherIfAny(invocation(), refA, async (launcher) => launcher);
    for (const errno of ['ENOENT', 'ECONNREFUSED', 'ESRCH']) {
      launchers.pin = () => Promise.reject(nativeError(errno));
      expect(await run()).toBeNull();
    }
    launchers.pin = () => Promise.reject(nativeError('ELOOP', { refused: true }));
    expect(await code(run())).toBe(Code.PermissionDenied);
    launchers.pin = undefined;
    expect((await run())?.pidfd).toBe(100);
  });

  describe('an operation that begins with a call', () => {
    const gone = nativeError('ESRCH', { refused: true, unchanged: true });

    function setUpCall(operation = async (_pidfd: number | undefined) => undefined) {
      const made = setUp();
      const body = vi.fn(operation);
      const call = (ref = refA) =>
        made.registry.callOnLauncher(invocation(), ref, (_, next) => body(next().launcher?.pidfd));
      return { ...made, body, call };
    }

    it('STO-003 has the launcher checked by each of its calls, and in no call before', async () => {
      const { launchers, registry, use } = setUp();
      const { launcher } = await use();
      const calls = await registry.callOnLauncher(invocation({ caps: 3n }), refA, async (_, call) => [
        call(),
        call(),
      ]);
      const expected = { caps: 3n, deadlineMs: 1000, launcher: { pidfd: launcher.pidfd, podUid: podA } };
      expect(calls).toEqual([expected, expected]);
      expect(launchers.checked).toEqual([]);
    });

    it('STO-002 is done on the launcher that came after the one that its call found gone', async () => {
      const { launchers, use, call, body } = setUpCall(async (pidfd) => {
        if (pidfd === 100) throw gone;
      });
      await use();
      launchers.check = () => Promise.reject(gone);
      await call();
      expect(body.mock.calls).toEqual([[100], [110]]);
      expect(launchers.closed).toEqual(expect.arrayContaining([100, 101, 102]));
    });

    it('STO-002 is not done again while the launcher lives, nor after a change', async () => {
      for (const unchanged of [true, false]) {
        const { launchers, use, call, body } = setUpCall(() =>
          Promise.reject(nativeError('ESRCH', { refused: true, unchanged })),
        );
        await use();
        if (!unchanged) launchers.check = () => Promise.reject(gone);
        await expect(call()).rejects.toThrow();
        expect(body).toHaveBeenCalledTimes(1);
      }
    });

    it('refuses another VMI before it', async () => {
      const { use, call, body } = setUpCall();
      await use();
      expect(await code(call({ podUid: podA, vmiUid: vmiB }))).toBe(Code.PermissionDenied);
      expect(body).not.toHaveBeenCalled();
    });
  });

  it('does one operation at a time for a pod and bounds those that wait', async () => {
    const { use } = setUp({ maxWaitingPerPod: 2 });
    let finish: () => void = () => undefined;
    const first = use(refA, () => new Promise((resolve) => (finish = resolve)));
    const order: number[] = [];
    const waiting = [1, 2].map((n) => use(refA, async () => void order.push(n)));
    expect(await code(use())).toBe(Code.ResourceExhausted);
    expect(await code(use({ podUid: podB, vmiUid: vmiB }))).toBeUndefined();
    expect(order).toEqual([]);
    finish();
    await Promise.all([first, ...waiting]);
    expect(order).toEqual([1, 2]);
  });

  it('bounds the number of pods; exited launchers make room', async () => {
    const { launchers, use } = setUp({ maxPods: 1 });
    const { launcher } = await use();
    expect(await code(use({ podUid: podB, vmiUid: vmiB }))).toBe(Code.ResourceExhausted);
    launchers.exit(launcher.pidfd);
    expect(await code(use({ podUid: podB, vmiUid: vmiB }))).toBeUndefined();
  });

  it('does not start an operation whose deadline has passed while it waited', async () => {
    const { registry } = setUp();
    const late = invocation({ deadline: 10, now: () => 11 });
    const body = vi.fn(async () => undefined);
    expect(await code(registry.withLauncher(late, refA, body))).toBe(Code.DeadlineExceeded);
    expect(body).not.toHaveBeenCalled();
  });
});

describe('keyed queue', () => {
  it('goes on after a failed task', async () => {
    const queue = new KeyedQueue(4);
    const failed = queue.run('a', () => Promise.reject(new Error('no')));
    const next = queue.run('a', async () => 'yes');
    await expect(failed).rejects.toThrow('no');
    expect(await next).toBe('yes');
  });
});
