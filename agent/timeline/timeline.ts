/**
 * What happened to each VMI of this node and when: the steps from takeover to Running and from shutdown
 * to gone. Memory is bounded: the oldest VMI and the oldest steps beyond the limits are dropped.
 */
import type { VmiRef } from '../api/vmi.js';

export type Actor = 'agent' | 'helper' | 'launcher' | 'api';

export interface TimelineStep {
  readonly step: string;
  readonly who: Actor;
  /** Milliseconds since the VMI was first seen, with a fraction. */
  readonly atMs: number;
}

export interface VmiTimeline {
  readonly vmi: VmiRef;
  /** Milliseconds since the epoch. */
  readonly takeoverAt: number;
  readonly steps: readonly TimelineStep[];
}

interface Entry {
  readonly vmi: VmiRef;
  readonly takeoverAt: number;
  readonly start: number;
  readonly steps: TimelineStep[];
  readonly seen: Set<string>;
}

export interface TimelineClock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Milliseconds of a monotonic clock, with a fraction. */
  monotonic(): number;
}

const maxVmis = 1024;
const maxSteps = 64;

export class TimelineRecorder {
  readonly #entries = new Map<string, Entry>();

  constructor(
    private readonly clock: TimelineClock,
    private readonly onStep: (vmi: VmiRef, step: TimelineStep) => void = () => {},
  ) {}

  /** Notes a step of a VMI. Each step counts once, when it is first reached. */
  mark(vmi: VmiRef, step: string, who: Actor): void {
    if (vmi.uid === '') return;
    const entry = this.#entry(vmi);
    if (entry.seen.has(step) || entry.steps.length >= maxSteps) return;
    entry.seen.add(step);
    const made: TimelineStep = { step, who, atMs: this.clock.monotonic() - entry.start };
    entry.steps.push(made);
    this.onStep(vmi, made);
  }

  get(uid: string): VmiTimeline | undefined {
    return this.#entries.get(uid);
  }

  all(): VmiTimeline[] {
    return [...this.#entries.values()];
  }

  #entry(vmi: VmiRef): Entry {
    const known = this.#entries.get(vmi.uid);
    if (known !== undefined) return known;
    if (this.#entries.size >= maxVmis) {
      const oldest = this.#entries.keys().next();
      if (!oldest.done) this.#entries.delete(oldest.value);
    }
    const entry: Entry = {
      vmi: { namespace: vmi.namespace, name: vmi.name, uid: vmi.uid },
      takeoverAt: this.clock.now(),
      start: this.clock.monotonic(),
      steps: [],
      seen: new Set(),
    };
    this.#entries.set(vmi.uid, entry);
    return entry;
  }
}
