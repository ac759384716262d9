/** Domains that are said to be starting up, and when their launcher is asked whether they still are. */
import type { Domain } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import type { Clock } from '../clock.js';
import { isMigrationTarget, isOwnedByNode, phaseOf } from './predicates.js';

/** How long nothing is asked after the launcher said so, in milliseconds. */
const patienceMs = 5_000;

/**
 * A VM of this node that starts here and does not come from elsewhere. libvirt sends no event when QEMU ends
 * before it has started, so what the launcher said last may be that the domain starts up, which looks as if
 * a migration arrived (KubeVirt pkg/virt-handler/controller.go isMigrationInProgress).
 */
export function isStartingHere(vmi: Vmi, domain: Domain, host: string): boolean {
  if (domain.Status.Status !== 'Paused' || domain.Status.Reason !== 'StartingUp') return false;
  if (phaseOf(vmi) !== 'Scheduled' || !isOwnedByNode(vmi, host) || isMigrationTarget(vmi)) return false;
  return vmi.status.migrationState == null && domain.Spec.Metadata.KubeVirt.Migration == null;
}

/** Defined, and off because it has not been started or because that failed. */
export function isNotStarted(domain: Domain | undefined): boolean {
  return domain?.Status.Status === 'Shutoff' && ['', 'Unknown', 'Failed'].includes(domain.Status.Reason);
}

export class StartingDomains {
  readonly #seen = new Map<string, { readonly domain: Domain; readonly askAt: number }>();

  constructor(private readonly clock: Clock) {}

  /** Milliseconds until the launcher of a domain that is starting is to be asked; 0: now. */
  askInMs(uid: string, domain: Domain): number {
    const now = this.clock.now();
    const before = this.#seen.get(uid);
    // Every event of the launcher stores another one.
    if (before?.domain === domain) return Math.max(before.askAt - now, 0);
    this.#seen.set(uid, { domain, askAt: now + patienceMs });
    return patienceMs;
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#seen.size;
  }

  forget(uid: string): void {
    this.#seen.delete(uid);
  }
}
