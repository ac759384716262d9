/** The device list of cgroup v1, and how one becomes another (cgroup-v1/devices in the kernel's documentation). */
import { Code } from '@connectrpc/connect';
import { CallFailure } from '../failure.js';
import { any, byNumber, type DeviceRule, deviceOf, permissions, uniteRules, without } from './rules.js';

export interface DeviceList {
  /** Everything is allowed; there are no rules. */
  readonly allowAll: boolean;
  readonly rules: readonly DeviceRule[];
}

/** A line for devices.allow or devices.deny. */
export interface ListChange {
  readonly allow: boolean;
  readonly rule: string;
}

const line = /^([abc])[ :]+(\d{1,10}|\*)[ :]+(\d{1,10}|\*)[ :]+(r?w?m?)$/;

/** Parses devices.list. Throws when the kernel wrote something else than what its documentation says. */
export function parseDeviceList(text: string): DeviceList {
  const rules: DeviceRule[] = [];
  let allowAll = false;
  for (const entry of text.split('\n').slice(0, text.endsWith('\n') ? -1 : undefined)) {
    if (entry === '' && text === '') break;
    const [, type, major = '', minor = '', letters = ''] = line.exec(entry) ?? [];
    if (type === undefined || letters === '') throw unreadable(entry);
    if (type === 'b' || type === 'c') {
      rules.push({
        type,
        major: parseNumber(major),
        minor: parseNumber(minor),
        permissions: permissions(new Set(letters)),
      });
    } else if (entry === 'a *:* rwm') {
      allowAll = true;
    } else {
      throw unreadable(entry);
    }
  }
  return { allowAll, rules };
}

/**
 * The list that a container has with the wanted rules: what else the runtime allowed it stays, but no single block
 * device, which would be a volume that is not there any more.
 */
export function mergeRules(wanted: readonly DeviceRule[], { rules }: DeviceList): DeviceRule[] {
  const named = new Set(wanted.map(deviceOf));
  const kept = rules.filter((rule) => {
    const single = rule.type === 'b' && rule.major !== any && rule.minor !== any;
    return !single && !named.has(deviceOf(rule));
  });
  return uniteRules([...wanted, ...kept]);
}

/**
 * What must be written for the list to have exactly the target's rules. What is allowed before and after is allowed all
 * the time, unless everything was: leaving that is one step that allows nothing.
 */
export function changesTo(target: readonly DeviceRule[], current: DeviceList): ListChange[] {
  const before = new Map(uniteRules(current.rules).map((rule) => [deviceOf(rule), rule]));
  const after = new Map(uniteRules(target).map((rule) => [deviceOf(rule), rule]));
  const gained = [...after].flatMap(([device, rule]) =>
    lines(true, rule, without(rule.permissions, before.get(device)?.permissions ?? '')),
  );
  const lost = [...before.values()]
    .sort(byNumber)
    .flatMap((rule) =>
      lines(false, rule, without(rule.permissions, after.get(deviceOf(rule))?.permissions ?? '')),
    );
  const closing = current.allowAll ? [{ allow: false, rule: 'a *:* rwm' }] : [];
  return [...closing, ...gained, ...lost];
}

function lines(allow: boolean, rule: DeviceRule, letters: string): ListChange[] {
  return letters === '' ? [] : [{ allow, rule: `${deviceOf(rule)} ${letters}` }];
}

function parseNumber(text: string): number {
  return text === '*' ? any : Number(text);
}

function unreadable(entry: string): CallFailure {
  return new CallFailure({
    code: Code.Internal,
    operation: 'read device list',
    message: `devices.list has the line ${JSON.stringify(entry.slice(0, 80))}`,
  });
}
