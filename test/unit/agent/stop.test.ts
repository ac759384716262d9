import { expect, it } from 'vitest';
import { stopInTime } from '../../../agent/stop.js';
import { FakeTimers, settle } from '../kube/fake-timers.js';
import { testLogger } from '../kube/test-logger.js';

const never = () => new Promise<never>(() => undefined);

function stopping(passes: () => Promise<unknown>, rest: () => Promise<unknown>) {
  const timers = new FakeTimers();
  const lines: string[] = [];
  const seen: string[] = [];
  const note = (what: string, end: () => Promise<unknown>) => () => {
    seen.push(what);
    return end();
  };
  const others = note('rest', rest);
  void stopInTime({ timers, log: testLogger(lines) }, note('passes', passes), () => [others()]).then(() =>
    seen.push('end'),
  );
  return { timers, lines, seen };
}

it('waits for the passes, then for the rest', async () => {
  let pass = () => {};
  const { timers, lines, seen } = stopping(
    () =>
      new Promise<void>((resolve) => {
        pass = resolve;
      }),
    async () => undefined,
  );
  timers.advance(9_999);
  await settle();
  expect(seen).toEqual(['passes']);
  pass();
  await settle();
  expect(seen).toEqual(['passes', 'rest', 'end']);
  expect(lines).toEqual([]);
  expect(timers.pendingCount).toBe(0);
});

it('passes that do not end have 10 s, and what they use has 5 s more', async () => {
  const { timers, lines, seen } = stopping(never, never);
  timers.advance(10_000);
  await settle();
  expect(seen).toEqual(['passes', 'rest']);
  timers.advance(5_000);
  await settle();
  expect(seen).toEqual(['passes', 'rest', 'end']);
  expect(lines).toHaveLength(2);
});
