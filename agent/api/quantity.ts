/** Kubernetes quantities (apimachinery pkg/api/resource): `1Gi`, `1500m`, `2e3`. */

const pattern = /^([+-]?)(\d{0,40})(?:\.(\d{0,40}))?(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,2}|)$/;
const binaryPowers: Readonly<Record<string, number>> = { Ki: 10, Mi: 20, Gi: 30, Ti: 40, Pi: 50, Ei: 60 };
const decimalPowers: Readonly<Record<string, number>> = {
  n: -9,
  u: -6,
  m: -3,
  '': 0,
  k: 3,
  M: 6,
  G: 9,
  T: 12,
  P: 15,
  E: 18,
};

/** Billionths, rounded up beyond that as Kubernetes does; undefined for what is no quantity. */
export function quantityNanos(text: string): bigint | undefined {
  const match = pattern.exec(text);
  if (match === null) return undefined;
  const [, sign, whole = '', fraction = '', suffix = ''] = match;
  if (whole === '' && fraction === '') return undefined;
  const digits = BigInt(`${whole}${fraction}`);
  const exponent = 9 - fraction.length + decimalExponent(suffix);
  const scaled = digits * (1n << BigInt(binaryPowers[suffix] ?? 0));
  const magnitude =
    exponent >= 0 ? scaled * 10n ** BigInt(exponent) : divideUp(scaled, 10n ** BigInt(-exponent));
  return sign === '-' ? -magnitude : magnitude;
}

/** The value in whole units, rounded up; undefined for what is no quantity. */
export function quantityValue(text: string): bigint | undefined {
  const nanos = quantityNanos(text);
  if (nanos === undefined) return undefined;
  return nanos < 0n ? -(-nanos / 1_000_000_000n) : divideUp(nanos, 1_000_000_000n);
}

export type QuantityFormat = 'decimal' | 'binary' | 'exponent';

/** Which suffixes a quantity is written with. */
export function quantityFormat(text: string): QuantityFormat {
  if (/[KMGTPE]i$/.test(text)) return 'binary';
  return /[eE][+-]?\d+$/.test(text) ? 'exponent' : 'decimal';
}

/** Canonical form of a whole number: 2000000 -> `2M`, `2e6`, or 2097152 -> `2Mi` with binary suffixes. */
export function formatQuantity(value: bigint, format: QuantityFormat): string {
  if (format === 'exponent') return scaled(value, 1000n, ['', 'e3', 'e6', 'e9', 'e12', 'e15', 'e18']);
  // Kubernetes writes what is smaller than the first binary suffix with decimal ones.
  if (format === 'decimal' || value < 1024n) return decimalQuantity(value);
  return scaled(value, 1024n, ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei']);
}

function decimalQuantity(value: bigint): string {
  return scaled(value, 1000n, ['', 'k', 'M', 'G', 'T', 'P', 'E']);
}

function scaled(value: bigint, step: bigint, suffixes: readonly string[]): string {
  let rest = value;
  let power = 0;
  while (rest !== 0n && rest % step === 0n && power < suffixes.length - 1) {
    rest /= step;
    power++;
  }
  return `${rest}${suffixes[power]}`;
}

function decimalExponent(suffix: string): number {
  if (suffix in binaryPowers) return 0;
  const named = decimalPowers[suffix];
  return named ?? Number(suffix.slice(1));
}

function divideUp(value: bigint, by: bigint): bigint {
  return (value + by - 1n) / by;
}
