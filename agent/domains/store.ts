import type { Domain } from '../api/domain.js';
import { vmiKey } from '../api/vmi.js';
import type { DomainStore as DomainStorePort } from '../reconcile/ports.js';

/** Versions of deleted keys that are remembered. */
const maxTombstones = 1024;

/** The domain that a key stands for is gone from the cache, or it changed. */
export type DomainChange = (key: string) => void;

/**
 * The cached domains by `namespace/name`. Every change tells the queue. A domain with a deletionTimestamp
 * stays in the store: it counts as absent, but its UID is still needed for the cleanup.
 */
export class DomainStore implements DomainStorePort {
  private readonly domains = new Map<string, Domain>();
  private readonly versions = new Map<string, number>();
  private version = 0;

  constructor(private readonly changed: DomainChange) {}

  get(key: string): Domain | undefined {
    return this.domains.get(key);
  }

  keys(): string[] {
    return [...this.domains.keys()];
  }

  put(key: string, domain: Domain): void {
    this.domains.set(key, domain);
    this.versions.set(key, ++this.version);
    this.changed(key);
  }

  /** Adds or replaces by the domain's own namespace and name. */
  upsert(domain: Domain): void {
    this.put(vmiKey(domain.ObjectMeta), domain);
  }

  /** Drops a key without telling anybody: the caller is the pass that works on it. */
  delete(key: string): void {
    if (!this.domains.delete(key)) return;
    // Deleting is a write too: an answer that was asked for before must not bring the domain back.
    this.versions.delete(key);
    this.versions.set(key, ++this.version);
    if (this.versions.size > this.domains.size + maxTombstones) this.dropOldestTombstone();
  }

  /** Drops a key because the launcher said so. */
  remove(key: string): void {
    if (!this.domains.has(key)) return;
    this.delete(key);
    this.changed(key);
  }

  /** Grows with each write of the key: tells whether an answer was overtaken by an event. 0: never written. */
  versionOf(key: string): number {
    return this.versions.get(key) ?? 0;
  }

  private dropOldestTombstone(): void {
    for (const key of this.versions.keys()) {
      if (this.domains.has(key)) continue;
      this.versions.delete(key);
      return;
    }
  }
}
