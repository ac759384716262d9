/** Kinds of values that a policy has. */
import { isAbsolute, normalize } from 'node:path';
import type { ClaimableDevice } from '../../native/binding.js';

export interface Setting<T> {
  /** Place in the policy file, for instance `limits.maxPods`. */
  readonly path: string;
  readonly default: T;
  /** What the value may be, in words. */
  readonly bound: string;
  /** Throws a RangeError that names the path. */
  parse(value: unknown): T;
}

export function integer(path: string, fallback: number, min: number, max: number): Setting<number> {
  const bound = `integer in ${min}..${max}`;
  return {
    path,
    default: fallback,
    bound,
    parse(value) {
      if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
        throw new RangeError(`${path}: ${shown(value)} is not an ${bound}`);
      }
      return value;
    },
  };
}

export function absolutePath(path: string, fallback: string): Setting<string> {
  const bound = 'absolute path without . and ..';
  return {
    path,
    default: fallback,
    bound,
    parse(value) {
      const fits =
        typeof value === 'string' && isAbsolute(value) && value.length < 1024 && !value.includes('\0');
      if (!fits || normalize(value) !== value) {
        throw new RangeError(`${path}: ${shown(value)} is not an ${bound}`);
      }
      // Names below it are compared as text.
      return value.length > 1 && value.endsWith('/') ? value.slice(0, -1) : value;
    },
  };
}

const claimable: readonly ClaimableDevice[] = [
  'kvm',
  'mshv',
  'tun',
  'vhost-net',
  'vhost-vsock',
  'sev',
  'vfio',
];

export function deviceList(
  path: string,
  fallback: readonly ClaimableDevice[],
): Setting<readonly ClaimableDevice[]> {
  const bound = `list of ${claimable.join(', ')}`;
  return {
    path,
    default: fallback,
    bound,
    parse(value) {
      if (!Array.isArray(value)) throw new RangeError(`${path}: ${shown(value)} is not a ${bound}`);
      const devices = value.map((entry: unknown, i) => {
        const device = claimable.find((name) => name === entry);
        if (device === undefined) {
          throw new RangeError(`${path}[${i}]: ${shown(entry)} is not one of ${claimable.join(', ')}`);
        }
        return device;
      });
      const twice = devices.findIndex((device, i) => devices.indexOf(device) !== i);
      if (twice >= 0) throw new RangeError(`${path}[${twice}]: ${devices[twice]} occurs twice`);
      return devices;
    },
  };
}

/** A value in an error message: short, on one line. */
function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}
