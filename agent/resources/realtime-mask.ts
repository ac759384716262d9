/** `spec.domain.cpu.realtime.mask`: which vCPUs are real-time (KubeVirt pkg/hypervisor/common parseCPUMask). */

/** More vCPUs than KVM is built for by default have no number of their own. */
export const maxVcpus = 1024;
const maxInt64 = 2n ** 63n - 1n;

/** A mask that KubeVirt refuses as well; the messages are its own. */
export class RealtimeMaskError extends Error {
  override readonly name = 'RealtimeMaskError';
}

/** By the text of a vCPU's number: `007` is not the name of vCPU 7. */
export type RealtimeMask = ReadonlyMap<string, boolean>;

/**
 * Items are `n`, `a-b` and `^n`, with blanks around them. What is set once stays; a negation always holds; what is not
 * mentioned is not real-time. The empty mask, which means every vCPU, is an empty map. Throws RealtimeMaskError.
 */
export function parseRealtimeMask(mask: string): RealtimeMask {
  const vcpus = new Map<string, boolean>();
  if (mask === '') return vcpus;
  for (const item of mask.split(',')) {
    const text = item.trim();
    const [, first, last] = /^(\d+)-(\d+)$/.exec(text) ?? [];
    const [, negation = '', single] = /^(\^?)(\d+)$/.exec(text) ?? [];
    if (first !== undefined && last !== undefined) {
      setRange(vcpus, integer(first), integer(last));
    } else if (single !== undefined) {
      integer(single);
      if (negation !== '' || !vcpus.has(single)) vcpus.set(single, negation === '');
    } else {
      throw new RealtimeMaskError(`invalid mask value '${item}' in '${mask}'`);
    }
  }
  return vcpus;
}

function setRange(vcpus: Map<string, boolean>, first: bigint, last: bigint): void {
  if (first > last) throw new RealtimeMaskError(`invalid mask range \`${first}-${last}\``);
  for (let vcpu = first; vcpu <= last && vcpu < maxVcpus; vcpu++) {
    if (!vcpus.has(`${vcpu}`)) vcpus.set(`${vcpu}`, true);
  }
}

function integer(digits: string): bigint {
  const value = BigInt(digits);
  if (value > maxInt64) throw new RealtimeMaskError(`strconv.Atoi: parsing "${digits}": value out of range`);
  return value;
}
