/** Where a step goes when it is made: into the log, and into the metrics. */
import type { Logger } from '../log/log.js';
import type { Histogram, Registry } from '../metrics/registry.js';
import { goneStep, runningStep, stepDuration, type TimelineStep, type VmiTimeline } from './timeline.js';

/** Seconds. */
const bounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

export class TimelineReport {
  readonly #steps: Histogram;
  readonly #starts: Histogram;

  constructor(
    registry: Registry,
    private readonly log: Logger,
  ) {
    this.#steps = registry.histogram(
      'virt_privsep_vmi_step_duration_seconds',
      'Time from the step before, for each step of starting and stopping a VMI, by who did it.',
      bounds,
      ['step', 'who'],
    );
    this.#starts = registry.histogram(
      'virt_privsep_vmi_start_duration_seconds',
      'Time from taking over a VMI to writing the phase Running.',
      bounds,
    );
  }

  /** One line with all steps when a VMI runs and when it is gone; single steps at debug level. */
  step(timeline: VmiTimeline, step: TimelineStep): void {
    const log = this.log.object(timeline.vmi);
    log.debug(`${step.step} after ${step.atMs.toFixed(1)} ms (${step.who})`);
    const duration = stepDuration(timeline, step);
    if (duration !== undefined) this.#steps.observe(duration / 1000, step.step, step.who);
    if (step.step === runningStep) this.#starts.observe(step.atMs / 1000);
    if (step.step === runningStep || step.step === goneStep) log.info(timelineLine(timeline, step));
  }
}

/** `Running written after 812.4 ms: seen 0.0, launcher ready 3.1, … ms since takeover`. */
function timelineLine({ steps }: VmiTimeline, { step, atMs }: TimelineStep): string {
  const all = steps.map((made) => `${made.step} ${made.atMs.toFixed(1)}`).join(', ');
  return `${step} after ${atMs.toFixed(1)} ms: ${all} ms since takeover`;
}
