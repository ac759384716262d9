/** Numbers that are the same for the same seed, so that every call of a run can be made again. */
import { createHash } from 'node:crypto';

/** The generator sfc32, seeded by texts and numbers. */
export class Random {
  private readonly state: Uint32Array;

  constructor(...seed: readonly (string | number)[]) {
    const digest = createHash('sha256').update(JSON.stringify(seed)).digest();
    this.state = Uint32Array.from({ length: 4 }, (_, i) => digest.readUInt32LE(4 * i));
    for (let i = 0; i < 12; i += 1) this.uint32();
  }

  uint32(): number {
    const [a = 0, b = 0, c = 0, d = 0] = this.state;
    const result = (a + b + d) >>> 0;
    this.state[3] = d + 1;
    this.state[0] = b ^ (b >>> 9);
    this.state[1] = c + (c << 3);
    this.state[2] = ((c << 21) | (c >>> 11)) + result;
    return result;
  }

  /** An integer in 0..limit-1. */
  below(limit: number): number {
    return Math.floor((this.uint32() / 2 ** 32) * limit);
  }

  chance(probability: number): boolean {
    return this.uint32() / 2 ** 32 < probability;
  }

  pick<T>(list: readonly T[]): T {
    if (list.length === 0) throw new RangeError('nothing to pick from');
    return list[this.below(list.length)] as T;
  }

  bytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => this.uint32() >>> 24);
  }
}

/** Picks by weight. */
export class Weighted<T> {
  private readonly total: number;

  constructor(private readonly entries: readonly (readonly [T, number])[]) {
    this.total = entries.reduce((sum, [, weight]) => sum + weight, 0);
  }

  pick(random: Random): T {
    let at = random.below(this.total);
    for (const [value, weight] of this.entries) {
      at -= weight;
      if (at < 0) return value;
    }
    throw new RangeError('no weights');
  }
}
