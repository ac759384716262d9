/** Condition SoftwareEmulation. */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import { isGateOn } from '../../cluster/config.js';
import { type Condition, condition, ensureCondition, withoutCondition } from './conditions.js';
import type { StatusSettings } from './pass.js';

const type = 'SoftwareEmulation';

/** A guest of another architecture than the node's. `now`: RFC 3339. */
export function softwareEmulation(
  conditions: readonly Condition[],
  vmi: Vmi,
  domain: Domain | undefined,
  settings: StatusSettings,
  now: string,
): readonly Condition[] {
  if (!isGateOn(settings.cluster, 'CrossArchitectureVirtualization')) return conditions;
  const host = settings.hostArchitecture;
  const guest = vmi.spec.architecture;
  if (domain?.Spec.Type !== 'qemu' || !guest || guest === host) return withoutCondition(conditions, type);
  const wanted = condition(type, 'True', {
    reason: 'CrossArchitectureEmulation',
    message: `VM running with software emulation (host=${host}, guest=${guest})`,
    probed: now,
    changed: now,
  });
  return ensureCondition(conditions, wanted);
}
