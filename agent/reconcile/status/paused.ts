/** Condition Paused. */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import { isDecentralizedMigration, isMigrationSource } from '../predicates.js';
import { type Condition, condition, ensureCondition, withoutCondition } from './conditions.js';

const type = 'Paused';

/** One that is there keeps its reason. `now`: RFC 3339. */
export function paused(
  conditions: readonly Condition[],
  vmi: Vmi,
  domain: Domain | undefined,
  host: string,
  now: string,
): readonly Condition[] {
  if (domain?.Status.Status !== 'Paused') return withoutCondition(conditions, type);
  const cause = pauseCause(vmi, domain.Status.Reason, host);
  if (cause === undefined) return conditions;
  return ensureCondition(conditions, condition(type, 'True', { ...cause, probed: now, changed: now }));
}

function pauseCause(vmi: Vmi, reason: string, host: string) {
  switch (reason) {
    case 'User':
      return { reason: 'PausedByUser', message: 'VMI was paused by user' };
    case 'IOError':
      return { reason: 'PausedIOError', message: 'VMI was paused, low-level IO error detected' };
    case 'Migration':
      return isPausedByMigration(vmi, host)
        ? { reason: 'PausedByMigrationMonitor', message: 'VMI was paused by the migration monitor' }
        : undefined;
    default:
      return undefined;
  }
}

function isPausedByMigration(vmi: Vmi, host: string): boolean {
  const state = vmi.status.migrationState;
  return state?.mode === 'Paused' && state.completed !== true && isSourceOfMigration(vmi, host);
}

function isSourceOfMigration(vmi: Vmi, host: string): boolean {
  const state = vmi.status.migrationState;
  return (
    state?.sourceNode === host &&
    (!isDecentralizedMigration(vmi) || isMigrationSource(vmi)) &&
    !!state.targetNodeAddress
  );
}
