/**
 * What happened to each VMI of this node and when: the steps from takeover to Running and from shutdown
 * to gone. Memory is bounded: beyond the limits the VMIs that are gone are dropped first, then the oldest.
 */
import { type VmiRef, vmiKey } from '../api/vmi.js';
import type { Actor } from '../reconcile/ports.js';

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

/** The last step of a start. */
export const runningStep = 'Running written';
/** The last step of all. */
export const goneStep = 'cleaned';
const stopSteps: ReadonlySet<string> = new Set(['shutdown signalled', 'killed', 'deleted', goneStep]);

const maxVmis = 1024;
const maxSteps = 64;

export class TimelineRecorder {
  readonly #entries = new Map<string, Entry>();

  constructor(
    private readonly clock: TimelineClock,
    private readonly onStep: (timeline: VmiTimeline, step: TimelineStep) => void = () => {},
  ) {}

  /** Notes a step of a VMI. Each step counts once, when it is first reached. */
  mark(vmi: VmiRef, step: string, who: Actor): void {
    if (vmi.uid === '') return;
    const entry = this.#entry(vmi);
    if (entry.seen.has(step) || entry.steps.length >= maxSteps) return;
    entry.seen.add(step);
    const made: TimelineStep = { step, who, atMs: this.clock.monotonic() - entry.start };
    entry.steps.push(made);
    this.onStep(timelineOf(entry), made);
  }

  get(uid: string): VmiTimeline | undefined {
    const entry = this.#entries.get(uid);
    return entry === undefined ? undefined : timelineOf(entry);
  }

  /** The newest VMI of this namespace and name. */
  latest(key: string): VmiTimeline | undefined {
    return this.all().findLast(({ vmi }) => vmiKey(vmi) === key);
  }

  all(): VmiTimeline[] {
    return [...this.#entries.values()].map(timelineOf);
  }

  #entry(vmi: VmiRef): Entry {
    const known = this.#entries.get(vmi.uid);
    if (known !== undefined) return known;
    if (this.#entries.size >= maxVmis) this.#dropOne();
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

  #dropOne(): void {
    const uids = [...this.#entries.keys()];
    const gone = uids.find((uid) => this.#entries.get(uid)?.seen.has(goneStep));
    const dropped = gone ?? uids[0];
    if (dropped !== undefined) this.#entries.delete(dropped);
  }
}

function timelineOf({ vmi, takeoverAt, steps }: Entry): VmiTimeline {
  return { vmi, takeoverAt, steps };
}

/**
 * Milliseconds from the step before; undefined for the first step, and for the first step of a stop, which
 * follows upon the whole life of the VM.
 */
export function stepDuration({ steps }: VmiTimeline, step: TimelineStep): number | undefined {
  const before = steps[steps.indexOf(step) - 1];
  if (before === undefined) return undefined;
  return stopSteps.has(step.step) && !stopSteps.has(before.step) ? undefined : step.atMs - before.atMs;
}
