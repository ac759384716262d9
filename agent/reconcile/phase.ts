/** The phase that a VMI should have (KubeVirt pkg/virt-handler/vm.go calculateVmPhaseForStatusReason). */
import type { Domain } from '../api/domain.js';
import type { Phase, Vmi } from '../api/vmi.js';
import type { LauncherProbe } from './ports.js';
import { domainPausedFailedPostCopy, isFinal, isMigrationTarget, phaseOf } from './predicates.js';

export interface PhaseResult {
  readonly phase: Phase;
  /** The launcher is not there yet: look again. */
  readonly requeueAfterMs?: number;
}

/**
 * Without a domain the launcher decides what becomes of a VMI that was started. A Running VMI whose domain
 * is not cached is not dead: the agent may have restarted a moment ago.
 */
export function phaseNeedsProbe(vmi: Vmi, domain: Domain | undefined): boolean {
  if (domain !== undefined) return false;
  if (isMigrationTarget(vmi) && vmi.status.migrationState?.failed === true) return false;
  const phase = phaseOf(vmi);
  return phase === 'Scheduled' || phase === 'Running';
}

/** `probe` is the launcher's, needed if phaseNeedsProbe says so. */
export function calculatePhase(
  vmi: Vmi,
  domain: Domain | undefined,
  probe: LauncherProbe | undefined,
): PhaseResult {
  if (domain !== undefined) return { phase: phaseWithDomain(vmi, domain) };
  const phase = phaseOf(vmi);
  if (isMigrationTarget(vmi) && vmi.status.migrationState?.failed === true) return { phase };
  if (isFinal(vmi)) return { phase };
  if (!phaseNeedsProbe(vmi, domain)) return { phase: 'Scheduled' };
  if (probe === undefined) throw new TypeError('the phase of a started VMI without domain needs a probe');
  if (!probe.initialized) return { phase, requeueAfterMs: 1000 };
  if (!probe.unresponsive) return { phase };
  return { phase: isMigrationTarget(vmi) ? 'WaitingForSync' : 'Failed' };
}

function phaseWithDomain(vmi: Vmi, domain: Domain): Phase {
  switch (domain.Status.Status) {
    case 'Shutoff':
    case 'Crashed':
      return phaseOfStopped(vmi, domain);
    case 'Paused':
      return domainPausedFailedPostCopy(domain) ? 'Failed' : 'Running';
    case 'Running':
    case 'Blocked':
    case 'PMSuspended':
      return 'Running';
    default:
      return phaseOf(vmi);
  }
}

function phaseOfStopped(vmi: Vmi, domain: Domain): Phase {
  switch (domain.Status.Reason) {
    case 'Crashed':
    case 'Panicked':
      return 'Failed';
    case 'Destroyed':
      return phaseOfDestroyed(vmi, domain);
    case 'Shutdown':
    case 'Saved':
    case 'FromSnapshot':
      return 'Succeeded';
    default:
      return phaseOf(vmi);
  }
}

/** A guest that could have been asked to shut down was killed; one that could not was stopped. */
function phaseOfDestroyed(vmi: Vmi, domain: Domain): Phase {
  const canAsk = domain.Spec.Features?.ACPI != null && vmi.spec.terminationGracePeriodSeconds !== 0;
  if (canAsk) return 'Failed';
  const migration = vmi.status.migrationState;
  return migration?.failed === true && migration.mode === 'PostCopy' ? 'Failed' : 'Succeeded';
}
