/** The parts of the status that tell how the pass itself went. Pure. */
import type { Phase, VmiStatus } from '../api/vmi.js';
import { rfc3339 } from './time.js';

type Conditions = NonNullable<VmiStatus['conditions']>;
type PhaseTransitions = NonNullable<VmiStatus['phaseTransitionTimestamps']>;

const failedReason = 'Synchronizing with the Domain failed.';

/**
 * `Synchronized` exists only while passes fail, and keeps the message of the first failure. `now`:
 * milliseconds since the epoch.
 */
export function withSynchronized(
  conditions: Conditions | undefined,
  error: Error | undefined,
  now: number,
): Conditions {
  const all = conditions ?? [];
  const known = all.find(({ type }) => type === 'Synchronized');
  if (error !== undefined && known?.status === 'False' && known.reason === failedReason) return all;
  const others = all.filter(({ type }) => type !== 'Synchronized');
  if (error === undefined) return others;
  const failed = {
    type: 'Synchronized',
    status: 'False',
    reason: failedReason,
    message: error.message,
    lastProbeTime: null,
    lastTransitionTime: rfc3339(now),
  };
  return [...others, failed];
}

/** The time of the first change to each phase. */
export function withPhaseTransition(
  transitions: PhaseTransitions | undefined,
  oldPhase: Phase,
  newPhase: Phase,
  now: number,
): PhaseTransitions {
  const all = transitions ?? [];
  if (newPhase === oldPhase || all.some(({ phase }) => phase === newPhase)) return all;
  return [...all, { phase: newPhase, phaseTransitionTimestamp: rfc3339(now) }];
}
