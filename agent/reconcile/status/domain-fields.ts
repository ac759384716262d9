/** Status fields that repeat one value of the domain. */
import type { Domain } from '../../api/domain.js';
import type { VmiStatus } from '../../api/vmi.js';

/** `frozen`, or undefined for a thawed guest; a domain that says nothing changes nothing. */
export function fsFreezeStatus(current: string | undefined, domain: Domain | undefined): string | undefined {
  const status = domain?.Status.FSFreezeStatus?.Status;
  if (!status) return current;
  return status === 'thawed' ? undefined : status;
}

export function machine(current: VmiStatus['machine'], domain: Domain | undefined): VmiStatus['machine'] {
  const type = domain?.Spec.OS?.Type?.Machine;
  return type ? { ...current, type } : current;
}

/** A label with categories is not replaced by one without: later migrations depend on them. */
export function selinuxContext(current: string | undefined, read: string | undefined): string | undefined {
  if (read === undefined) return current;
  const hasCategories = (label: string) => /:c[0-9]/.test(label);
  return current !== undefined && hasCategories(current) && !hasCategories(read) ? current : read;
}
