/** Every step as a line of JSON, in a file. */
import type { Writable } from 'node:stream';
import type { Logger } from '../log/log.js';
import type { TimelineStep, VmiTimeline } from './timeline.js';

/** What may wait to be written, in bytes: a file that takes no more must not fill the memory. */
const maxWaiting = 1024 * 1024;

export class TimelineFile {
  #leftOut = 0;

  constructor(
    private readonly out: Writable,
    private readonly log: Logger,
  ) {
    out.on('error', (error) => log.warning('the timeline file is not written', error));
    out.on('drain', () => {
      if (this.#leftOut > 0) log.warning(`${this.#leftOut} steps were left out of the timeline file`);
      this.#leftOut = 0;
    });
  }

  /** Steps that were left out since the file last took all that waited. */
  get leftOut(): number {
    return this.#leftOut;
  }

  step({ vmi }: VmiTimeline, step: TimelineStep): void {
    // It failed, and the log has it.
    if (this.out.destroyed) return;
    if (this.out.writableLength < maxWaiting) {
      this.out.write(`${JSON.stringify({ ...vmi, ...step })}\n`);
      return;
    }
    if (this.#leftOut === 0) this.log.warning('the timeline file does not keep up: steps are left out');
    this.#leftOut++;
  }

  /** Resolves when what waits is written, or cannot be. */
  async close(): Promise<void> {
    if (this.out.closed) return;
    await new Promise<void>((resolve) => {
      this.out.once('close', resolve);
      this.out.end();
    });
  }
}
