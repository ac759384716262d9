/** Lists of CPUs as libvirt writes them in a domain's cputune (KubeVirt pkg/util/hardware ParseCPUSetLine). */

/** The first entry beyond this many is refused; a list that ends there is not. */
const limit = 100;

/** A list that is none, or too long. */
export class CpuListError extends Error {
  override readonly name = 'CpuListError';
}

/** CPUs in the order of the list, repeated ones too; a range that descends has none. Throws CpuListError. */
export function parseCpuList(text: string): number[] {
  const cpus: number[] = [];
  for (const item of text.split(',')) {
    const [first = '', last = first] = item.split('-');
    for (let cpu = parseCpu(first, text), end = parseCpu(last, text); cpu <= end; cpu++) {
      if (cpus.length > limit)
        throw new CpuListError(`the CPU list ${shown(text)} has more than ${limit + 1} CPUs`);
      cpus.push(cpu);
    }
  }
  return cpus;
}

function parseCpu(digits: string, text: string): number {
  if (!/^\d{1,9}$/.test(digits)) throw new CpuListError(`${shown(text)} is no list of CPUs`);
  return Number(digits);
}

function shown(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 57)}...` : text);
}
