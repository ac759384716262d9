/** Whether a device cgroup lets its processes open a block device for reading and writing. */
import type { DeviceDecision } from '../../native/binding.js';
import type { DeviceNumbers } from '../pods/plugged-devices.js';
import { parseDeviceList } from './list.js';
import { answerOf } from './program-run.js';
import { any } from './rules.js';

/** Undefined when it cannot be told. */
export function isGranted(decision: DeviceDecision, device: DeviceNumbers): boolean | undefined {
  if ('list' in decision) return isListed(decision.list, device);
  const answers = decision.programs.map(({ instructions }) =>
    answerOf(instructions, { type: 'b', access: 'rw', ...device }),
  );
  if (answers.includes(false)) return false;
  return answers.includes(undefined) ? undefined : true;
}

/** The kernel, too, wants one rule that allows all that is asked for. */
function isListed(text: string, { major, minor }: DeviceNumbers): boolean {
  const { allowAll, rules } = parseDeviceList(text);
  const fits = (rule: number, number: number) => rule === any || rule === number;
  return (
    allowAll ||
    rules.some(
      (rule) =>
        rule.type === 'b' &&
        fits(rule.major, major) &&
        fits(rule.minor, minor) &&
        ['r', 'w'].every((letter) => rule.permissions.includes(letter)),
    )
  );
}
