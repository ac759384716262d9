/** What the device cgroup of a container allows now, for people. */
import type { AttachedProgram } from '../../native/binding.js';
import { parseDeviceList } from './list.js';
import { deviceProgram, rulesOfProgram } from './program.js';
import { byNumber, type DeviceRule, deviceOf } from './rules.js';

export interface PolicyInForce {
  /** For instance `c 1:3 rwm`. */
  readonly rules: string[];
  /** Why the rules are not all that decides; empty if they are. */
  readonly note: string;
}

export function policyOfList(text: string): PolicyInForce {
  const { allowAll, rules } = parseDeviceList(text);
  return { rules: shown([...rules].sort(byNumber)), note: allowAll ? 'everything is allowed' : '' };
}

/** Programs that are attached together allow what all of them allow. */
export function policyOfPrograms(programs: readonly AttachedProgram[]): PolicyInForce {
  const [only] = programs;
  if (only === undefined) return { rules: [], note: 'no program: everything is allowed' };
  if (programs.length > 1) return { rules: [], note: `${programs.length} programs decide together` };
  const rules = rulesOfProgram(only.instructions);
  const isKnown = rules !== undefined && Buffer.from(deviceProgram(rules)).equals(only.instructions);
  if (isKnown) return { rules: shown(rules), note: '' };
  return { rules: [], note: `program ${only.id} is not of the usual form` };
}

function shown(rules: readonly DeviceRule[]): string[] {
  return rules.map((rule) => `${deviceOf(rule)} ${rule.permissions}`);
}
