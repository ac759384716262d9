/** Numbers that this kernel has given to drivers (proc_devices(5), proc_misc(5)). */
import { readBounded } from '../inspect/proc.js';

export interface RegisteredDevices {
  /** Major numbers of character devices by name; a name may have several. */
  readonly characterMajors: ReadonlyMap<string, readonly number[]>;
  /** Minor numbers of miscellaneous devices (major 10) by name. */
  readonly miscMinors: ReadonlyMap<string, readonly number[]>;
}

const maxFileBytes = 64 << 10;

export async function readRegisteredDevices(): Promise<RegisteredDevices> {
  return parseRegisteredDevices(
    await readBounded('/proc/devices', maxFileBytes),
    await readBounded('/proc/misc', maxFileBytes),
  );
}

export function parseRegisteredDevices(devices: string, misc: string): RegisteredDevices {
  return { characterMajors: parseNumbers(characterSection(devices)), miscMinors: parseNumbers(misc) };
}

/** The lines between the heading "Character devices:" and the next. */
function characterSection(text: string): string {
  return /^Character devices:\n((?: *\d+ .*\n)*)/m.exec(text)?.[1] ?? '';
}

/** Lines of a number and a name. */
function parseNumbers(text: string): Map<string, number[]> {
  const numbers = new Map<string, number[]>();
  for (const line of text.split('\n')) {
    const [, number, name] = /^ *(\d{1,7}) (.+)$/.exec(line) ?? [];
    if (number === undefined || name === undefined) continue;
    numbers.set(name, [...(numbers.get(name) ?? []), Number(number)]);
  }
  return numbers;
}
