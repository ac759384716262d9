/** Rules of the device cgroup: what is allowed. What no rule allows is denied, so there are no rules that deny. */

export interface DeviceRule {
  readonly type: 'b' | 'c';
  /** -1 for any. */
  readonly major: number;
  readonly minor: number;
  readonly permissions: Permissions;
}

/** Read, write and make, in this order. */
export type Permissions = '' | 'r' | 'w' | 'm' | 'rw' | 'rm' | 'wm' | 'rwm';

export const any = -1;

export function permissions(letters: { has(letter: string): boolean }): Permissions {
  return ['r', 'w', 'm'].filter((letter) => letters.has(letter)).join('') as Permissions;
}

/** What one of two allows. */
function united(a: Permissions, b: Permissions): Permissions {
  return permissions(new Set([...a, ...b]));
}

/** What `a` allows and `b` does not. */
export function without(a: Permissions, b: Permissions): Permissions {
  return permissions(new Set([...a].filter((letter) => !b.includes(letter))));
}

/** The device that a rule is about; equal for equal devices. */
export function deviceOf({ type, major, minor }: Omit<DeviceRule, 'permissions'>): string {
  return `${type} ${number(major)}:${number(minor)}`;
}

/** One rule for each device, by major number, minor number and type: the order in which they are applied. */
export function uniteRules(rules: readonly DeviceRule[]): DeviceRule[] {
  const byDevice = new Map<string, DeviceRule>();
  for (const rule of rules) {
    const known = byDevice.get(deviceOf(rule));
    byDevice.set(deviceOf(rule), {
      ...rule,
      permissions: united(known?.permissions ?? '', rule.permissions),
    });
  }
  return [...byDevice.values()].sort(byNumber);
}

export function byNumber(a: DeviceRule, b: DeviceRule): number {
  return a.major - b.major || a.minor - b.minor || (a.type < b.type ? -1 : a.type > b.type ? 1 : 0);
}

function number(value: number): string {
  return value === any ? '*' : String(value);
}
