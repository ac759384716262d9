import { Writable } from 'node:stream';
import { expect, it } from 'vitest';
import { TimelineFile } from '../../../agent/timeline/file.js';
import type { VmiTimeline } from '../../../agent/timeline/timeline.js';
import { testLogger } from '../kube/test-logger.js';

const timeline: VmiTimeline = {
  vmi: { namespace: 'ns', name: 'vm', uid: 'u1' },
  takeoverAt: 0,
  steps: [],
};
const step = { step: 'seen', who: 'agent', atMs: 1 } as const;

/** A file that takes one write at a time, each when it is let. */
class SlowFile extends Writable {
  readonly written: string[] = [];
  private waiting: (() => void) | undefined;

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.written.push(String(chunk));
    this.waiting = done;
  }

  override _writev(chunks: { chunk: Buffer }[], done: () => void): void {
    for (const { chunk } of chunks) this.written.push(String(chunk));
    this.waiting = done;
  }

  async take(): Promise<void> {
    this.waiting?.();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

it('a file that does not keep up holds a bounded number of steps, and the log says how many are left out', async () => {
  const lines: string[] = [];
  const out = new SlowFile();
  const file = new TimelineFile(out, testLogger(lines));
  for (let i = 0; i < 30_000; i++) file.step(timeline, step);
  const { leftOut } = file;
  expect(leftOut).toBeGreaterThan(0);
  expect(out.writableLength).toBeLessThan(1024 * 1024 + 1024);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain('does not keep up');

  await out.take();
  await out.take();
  expect(lines).toHaveLength(2);
  expect(lines[1]).toContain(`${leftOut} steps were left out`);
  expect(out.written).toHaveLength(30_000 - leftOut);

  file.step(timeline, step);
  expect(JSON.parse(out.written.at(-1) ?? '')).toEqual({ ...timeline.vmi, ...step });
  const closed = file.close();
  await out.take();
  await closed;
  expect(file.leftOut).toBe(0);
});

it('what fails to be written is told once and keeps nobody waiting', async () => {
  const lines: string[] = [];
  const out = new Writable({ write: (_chunk, _encoding, done) => done(new Error('ENOSPC')) });
  const file = new TimelineFile(out, testLogger(lines));
  file.step(timeline, step);
  await new Promise((resolve) => out.once('close', resolve));
  for (let i = 0; i < 30_000; i++) file.step(timeline, step);
  await file.close();
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain('ENOSPC');
});
