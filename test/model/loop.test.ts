import fc from 'fast-check';
import { it } from 'vitest';
import { check } from './check.js';
import { history } from './history.js';

/**
 * The same histories each time, so that a red run means a changed product. More and other ones: MODEL_RUNS and
 * MODEL_SEED.
 */
const { MODEL_RUNS: runs = '1000', MODEL_SEED: seed = '20260727' } = process.env;

it('whatever happens, every VMI ends as its history demands, at a bounded cost, and nothing is left behind', async () => {
  await fc.assert(fc.asyncProperty(history, check), {
    numRuns: Number(runs),
    seed: Number(seed),
  });
}, 600_000);
