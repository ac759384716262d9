import type { Domain } from '../../api/domain.js';
import { type Condition, condition, findCondition, replaceCondition } from './conditions.js';
import type { StatusEvent } from './pass.js';

const type = 'AccessCredentialsSynchronized';

export interface ConditionsWithEvents {
  readonly conditions: readonly Condition[];
  readonly events: readonly StatusEvent[];
}

/** Whether the launcher could give the guest its keys and passwords. `now`: RFC 3339. */
export function accessCredentials(
  conditions: readonly Condition[],
  domain: Domain | undefined,
  now: string,
): ConditionsWithEvents {
  const metadata = domain?.Spec.Metadata?.KubeVirt?.AccessCredential;
  if (metadata === undefined) return { conditions, events: [] };
  const status = metadata.Succeeded ? 'True' : 'False';
  const message = metadata.Message ?? '';
  const current = findCondition(conditions, type);
  if (current?.status === status && (current.message ?? '') === message) return { conditions, events: [] };
  return {
    conditions: replaceCondition(conditions, condition(type, status, { message, changed: now })),
    events: [metadata.Succeeded ? succeeded(message) : failed(message)],
  };
}

function succeeded(message: string): StatusEvent {
  return {
    type: 'Normal',
    reason: 'AccessCredentialsSyncSuccess',
    message: `Access credentials sync successful${message === '' ? '.' : `: ${message}`}`,
  };
}

function failed(message: string): StatusEvent {
  return {
    type: 'Warning',
    reason: 'AccessCredentialsSyncFailed',
    message: `Access credentials sync failed: ${message}`,
  };
}
