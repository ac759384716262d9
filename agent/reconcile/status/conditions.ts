/** Condition lists (KubeVirt pkg/controller/conditions.go). Lists are never changed; results are new. */
import type { VmiStatus } from '../../api/vmi.js';

export interface Condition {
  readonly type: string;
  readonly status: string;
  readonly reason?: string;
  readonly message?: string;
  /** RFC 3339; null: never set. */
  readonly lastProbeTime?: string | null;
  readonly lastTransitionTime?: string | null;
}

export interface ConditionFields {
  readonly reason?: string;
  readonly message?: string;
  /** RFC 3339. */
  readonly probed?: string;
  readonly changed?: string;
}

export function conditionsOf(status: VmiStatus): readonly Condition[] {
  return status.conditions ?? [];
}

/** Empty texts are left out and absent times are null, as KubeVirt writes them. */
export function condition(type: string, status: 'True' | 'False', fields: ConditionFields = {}): Condition {
  return {
    type,
    status,
    ...(fields.reason && { reason: fields.reason }),
    ...(fields.message && { message: fields.message }),
    lastProbeTime: fields.probed ?? null,
    lastTransitionTime: fields.changed ?? null,
  };
}

export function findCondition(conditions: readonly Condition[], type: string): Condition | undefined {
  return conditions.find((entry) => entry.type === type);
}

export function withoutCondition(conditions: readonly Condition[], type: string): readonly Condition[] {
  return conditions.filter((entry) => entry.type !== type);
}

/** Appended; one that is there already stays as it is. */
export function ensureCondition(conditions: readonly Condition[], wanted: Condition): readonly Condition[] {
  return findCondition(conditions, wanted.type) === undefined ? [...conditions, wanted] : conditions;
}

/** Removed and appended if any field differs. */
export function replaceCondition(conditions: readonly Condition[], wanted: Condition): readonly Condition[] {
  const current = findCondition(conditions, wanted.type);
  if (current !== undefined && sameCondition(current, wanted)) return conditions;
  return [...withoutCondition(conditions, wanted.type), wanted];
}

/** Replaced where it stands, but only for another status or reason: a new message alone changes nothing. */
export function updateCondition(conditions: readonly Condition[], wanted: Condition): readonly Condition[] {
  const position = conditions.findIndex((entry) => entry.type === wanted.type);
  const current = conditions[position];
  if (current === undefined) return [...conditions, wanted];
  if (current.status === wanted.status && (current.reason ?? '') === (wanted.reason ?? '')) return conditions;
  return conditions.with(position, wanted);
}

function sameCondition(a: Condition, b: Condition): boolean {
  return (
    a.status === b.status &&
    (a.reason ?? '') === (b.reason ?? '') &&
    (a.message ?? '') === (b.message ?? '') &&
    (a.lastProbeTime ?? null) === (b.lastProbeTime ?? null) &&
    (a.lastTransitionTime ?? null) === (b.lastTransitionTime ?? null)
  );
}
