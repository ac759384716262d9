/** Questions about a VMI and its domain that several rules ask. All pure. */
import type { Domain } from '../api/domain.js';
import { createMigrationTargetAnnotation, migrationTargetNodeLabel, nodeNameLabel } from '../api/names.js';
import type { Phase, Vmi, VmiRef } from '../api/vmi.js';
import { instant } from './time.js';

export function refOf(vmi: Vmi): VmiRef {
  return { namespace: vmi.metadata.namespace, name: vmi.metadata.name, uid: vmi.metadata.uid };
}

export function phaseOf(vmi: Vmi): Phase {
  return vmi.status.phase ?? '';
}

export function isFinal(vmi: Vmi): boolean {
  const phase = phaseOf(vmi);
  return phase === 'Succeeded' || phase === 'Failed';
}

export function isRunning(vmi: Vmi): boolean {
  return phaseOf(vmi) === 'Running';
}

export function isDeleting(vmi: Vmi): boolean {
  return isSet(vmi.metadata.deletionTimestamp);
}

/** Receiver of a decentralised migration; not an ordinary target. */
export function isMigrationTarget(vmi: Vmi): boolean {
  return vmi.metadata.annotations?.[createMigrationTargetAnnotation] === 'true';
}

/** Source of a decentralised migration after full synchronisation. */
export function isMigrationSource(vmi: Vmi): boolean {
  const target = vmi.status.migrationState?.targetState;
  return isSet(target?.syncAddress) && isSet(target?.nodeAddress);
}

function isMigrationCompleted(vmi: Vmi): boolean {
  return vmi.status.migrationState?.completed === true;
}

export function isDecentralizedMigration(vmi: Vmi): boolean {
  const state = vmi.status.migrationState;
  if (!isSet(state?.sourceState) || !isSet(state?.targetState)) return false;
  return isSet(state.sourceState.syncAddress) !== isSet(state.targetState.syncAddress);
}

/** Started and not ended by `now` (milliseconds since the epoch). */
export function isMigrating(vmi: Vmi, now: number): boolean {
  const started = instant(vmi.status.migrationState?.startTimestamp);
  const ended = instant(vmi.status.migrationState?.endTimestamp);
  return started !== undefined && started <= now && !(ended !== undefined && ended <= now);
}

/** A migration that the migration controllers own. Ends are compared with null, not with the clock. */
export function isMigrationInProgress(vmi: Vmi | undefined, domain: Domain | undefined): boolean {
  const state = vmi?.status.migrationState;
  if (isSet(state?.startTimestamp) && !isSet(state.endTimestamp)) return true;
  const metadata = domain?.Spec.Metadata.KubeVirt.Migration;
  if (isSet(metadata?.StartTimestamp) && !isSet(metadata.EndTimestamp)) return true;
  if (domain?.Status.Status === 'Paused' && migrationPauses.has(domain.Status.Reason)) return true;
  return vmi !== undefined && isMigrationTarget(vmi) && !isMigrationCompleted(vmi);
}

const migrationPauses: ReadonlySet<string> = new Set(['Migration', 'StartingUp', 'Postcopy']);

/** This node takes part, as source or target, in a migration that has neither failed nor completed. */
export function isMigratingWith(vmi: Vmi, host: string): boolean {
  if (vmi.metadata.labels?.[migrationTargetNodeLabel] === host) return true;
  const state = vmi.status.migrationState;
  if (!isSet(state) || state.completed === true || state.failed === true) return false;
  return [state.sourceNode, state.targetNode, state.sourceState?.node, state.targetState?.node].includes(
    host,
  );
}

export function domainMigrated(domain: Domain | undefined): boolean {
  return domain?.Status.Status === 'Shutoff' && domain.Status.Reason === 'Migrated';
}

export function domainPausedFailedPostCopy(domain: Domain | undefined): boolean {
  return domain?.Status.Status === 'Paused' && domain.Status.Reason === 'PostcopyFailed';
}

export function domainPausedByIoError(domain: Domain | undefined): boolean {
  return domain?.Status.Status === 'Paused' && domain.Status.Reason === 'IOError';
}

export function isAlive(domain: Domain | undefined): domain is Domain {
  const status = domain?.Status.Status;
  return status !== undefined && status !== 'Shutoff' && status !== 'Crashed' && status !== '';
}

export function isOwnedByNode(vmi: Vmi, host: string): boolean {
  if (host === '') return false;
  const { nodeName } = vmi.status;
  return nodeName === host || (isNone(nodeName) && vmi.metadata.labels?.[nodeNameLabel] === host);
}

/** Another node has taken the VMI over. One of its label and its status alone is not enough to clean up after it. */
export function isOwnedElsewhere(vmi: Vmi, host: string): boolean {
  const { nodeName } = vmi.status;
  return !isNone(nodeName) && nodeName !== host && vmi.metadata.labels?.[nodeNameLabel] !== host;
}

function isNone(name: string | null | undefined): boolean {
  return name == null || name === '';
}

export function isNonRoot(vmi: Vmi): boolean {
  const user = vmi.status.runtimeUser;
  return (
    (user !== undefined && Number(user) !== 0) ||
    vmi.metadata.annotations?.['kubevirt.io/nonroot'] !== undefined
  );
}

function isSet<T>(value: T | null | undefined): value is T {
  return value !== null && value !== undefined;
}
