import type { Domain } from '../../api/domain.js';
import { formatQuantity, type QuantityFormat } from '../../api/quantity.js';
import type { VmiStatus } from '../../api/vmi.js';

const units: ReadonlyMap<string, readonly [factor: bigint, format: QuantityFormat]> = new Map([
  ['b', [1n, 'binary']],
  ['bytes', [1n, 'binary']],
  ['KB', [10n ** 3n, 'decimal']],
  ['MB', [10n ** 6n, 'decimal']],
  ['GB', [10n ** 9n, 'decimal']],
  ['TB', [10n ** 12n, 'decimal']],
  ['k', [1n << 10n, 'binary']],
  ['KiB', [1n << 10n, 'binary']],
  ['M', [1n << 20n, 'binary']],
  ['MiB', [1n << 20n, 'binary']],
  ['G', [1n << 30n, 'binary']],
  ['GiB', [1n << 30n, 'binary']],
  ['T', [1n << 40n, 'binary']],
  ['TiB', [1n << 40n, 'binary']],
]);
const maxBytes = (1n << 63n) - 1n;

/**
 * Canonical Kubernetes quantity of a libvirt memory size; undefined for a unit that libvirt does not
 * use in its answers and for a size that Kubernetes cannot hold.
 */
export function libvirtQuantity(value: bigint, unit: string): string | undefined {
  const known = units.get(unit);
  if (known === undefined) return undefined;
  const [factor, format] = known;
  const bytes = value * factor;
  if (bytes < 0n || bytes > maxBytes) return undefined;
  // Kubernetes writes less than 1024 with decimal suffixes.
  return formatQuantity(bytes, bytes < 1024n ? 'decimal' : format);
}

export function memory(current: VmiStatus['memory'], domain: Domain | undefined): VmiStatus['memory'] {
  const reported = domain?.Spec.CurrentMemory;
  if (reported === undefined) return current;
  const { guestCurrent: _, ...others } = current ?? {};
  const quantity = libvirtQuantity(reported.Value, reported.Unit);
  return quantity === undefined ? others : { ...others, guestCurrent: quantity };
}
