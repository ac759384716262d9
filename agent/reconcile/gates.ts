/** The reasons not to act on a key, in order (KubeVirt pkg/virt-handler/vm.go execute). */
import type { Domain } from '../api/domain.js';
import type { Vmi } from '../api/vmi.js';
import {
  domainMigrated,
  isDeleting,
  isFinal,
  isMigratingWith,
  isMigrationInProgress,
  isMigrationSource,
  isOwnedByNode,
  isOwnedElsewhere,
} from './predicates.js';

export interface GateFacts {
  readonly host: string;
  /** Undefined: gone from the API. */
  readonly vmi: Vmi | undefined;
  /** Undefined also for a domain with a deletion timestamp. */
  readonly domain: Domain | undefined;
}

export type Gate =
  /** The domain belongs to an older VMI of the same name. */
  | 'uid-mismatch'
  /** The domain has migrated away: delete it and clean up. */
  | 'orphan-delete'
  /** The migration controllers own it. */
  | 'ignore-migrating'
  | 'ignore-not-owned'
  /** Another node owns it and no migration needs this one: what is left here has to go. */
  | 'owned-elsewhere'
  | 'ignore-migration-source'
  | 'sync';

export function gate({ host, vmi, domain }: GateFacts): Gate {
  if (vmi !== undefined && domain !== undefined && domainUid(domain) !== vmi.metadata.uid)
    return 'uid-mismatch';
  if (domainMigrated(domain)) return 'orphan-delete';
  const deleting = vmi !== undefined && isDeleting(vmi);
  if (!deleting && isMigrationInProgress(vmi, domain)) return 'ignore-migrating';
  if (vmi === undefined) return 'sync';
  if (isOwnedElsewhere(vmi, host) && !isMigratingWith(vmi, host)) return 'owned-elsewhere';
  if (!isOwnedByNode(vmi, host)) return 'ignore-not-owned';
  if (isMigrationSource(vmi) && !deleting && !isFinal(vmi)) return 'ignore-migration-source';
  return 'sync';
}

/** UID of the VMI that a domain was made for; empty when its metadata does not say. */
export function domainUid(domain: Domain): string {
  return domain.Spec.Metadata.KubeVirt.UID;
}

/**
 * A domain left on a node that its VMI has moved away from is destroyed only when the migration is known
 * to have ended well: otherwise it may be the only copy of the guest.
 */
export function mayDestroyMovedDomain(vmi: Vmi, host: string): boolean {
  const migration = vmi.status.migrationState;
  return migration?.completed === true && migration.failed !== true && isOwnedElsewhere(vmi, host);
}
