import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { Expectations } from '../../agent/kube/expectations.js';
import { ItemRateLimiter } from '../../agent/kube/item-rate-limiter.js';

interface Vector<Input, Expected> {
  readonly name: string;
  readonly input: Input;
  readonly expected: Expected;
}

function vectors<Input, Expected>(file: string): Vector<Input, Expected>[] {
  const packed = readFileSync(new URL(`reconcile/${file}.json.gz`, import.meta.url));
  return JSON.parse(gunzipSync(packed).toString('utf8'));
}

interface RateInput {
  readonly attempts?: number;
  readonly distinctKeys?: number;
  readonly forgetBefore?: readonly number[];
  readonly pollSeconds?: number;
}

describe('workqueue-rate', () => {
  // The executor of SR-IOV hotplug has a back-off of its own and is no part of the queue.
  const cases = vectors<RateInput, number[]>('workqueue-rate').filter(
    ({ input }) => input.pollSeconds === undefined,
  );

  it.each(cases)('REC-002 $name', ({ input, expected }) => {
    let now = 0;
    const limiter = new ItemRateLimiter({ now: () => now });
    const delays: number[] = [];
    for (let attempt = 0; attempt < (input.attempts ?? 0); attempt++) {
      if (input.forgetBefore?.includes(attempt)) limiter.forget('a');
      const delay = limiter.when('a');
      now += delay;
      delays.push(delay);
    }
    for (let key = 0; key < (input.distinctKeys ?? 0); key++) delays.push(limiter.when(`key-${key}`));
    expect(delays.map(Math.round)).toEqual(expected);
  });
});

interface ExpectationStep {
  readonly op: 'set' | 'lower' | 'delete' | 'advance';
  readonly add: number;
  readonly del: number;
  readonly seconds: number;
}

describe('expectations', () => {
  it.each(vectors<ExpectationStep[], boolean[]>('expectations'))('$name', ({ input, expected }) => {
    let now = 0;
    const expectations = new Expectations({ now: () => now });
    const satisfied = input.map((step) => {
      if (step.op === 'advance') now += step.seconds * 1000;
      else if (step.op === 'delete') expectations.delete('key');
      else expectations[step.op]('key', step.add, step.del);
      return expectations.satisfied('key');
    });
    expect(satisfied).toEqual(expected);
  });
});
