import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { ownHost } from './test/harness/host/own-host.js';

// Pure tests run anywhere. All others need root and real kernel objects.
const realKernel = {
  globalSetup: ['test/harness/pods/bundle.ts'],
  testTimeout: 180_000,
  hookTimeout: 180_000,
};

/** Whole systems take longest: with them first, both workers end at about the same time. */
const slowFirst = ['/test/fuzz/', '/test/e2e/', '/test/security/'];

class SlowFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const found = slowFirst.findIndex((directory) => moduleId.includes(directory));
      return found < 0 ? slowFirst.length : found;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

export default defineConfig({
  test: {
    sequence: { sequencer: SlowFirst },
    projects: [
      {
        test: {
          name: 'unit',
          // The name of a memory dump tells the local time, and the vectors were made in this zone.
          env: { TZ: 'UTC' },
          include: ['test/unit/**/*.test.ts', 'test/vectors/**/*.test.ts', 'test/model/**/*.test.ts'],
          // Many wait for clocks of others, so one for each processor is not too many.
          maxWorkers: 2,
          // Some work real sockets: on a busy machine they take more than the default of 5 s.
          testTimeout: 30_000,
        },
      },
      // The product's own containers under crun, one file after another: their cgroups must be the machine's own.
      {
        test: {
          name: 'deploy',
          include: ['test/deploy/**/*.test.ts'],
          ...realKernel,
          fileParallelism: false,
        },
      },
      {
        test: {
          name: 'root',
          include: [
            'test/integration/**/*.test.ts',
            'test/security/**/*.test.ts',
            'test/e2e/**/*.test.ts',
            'test/fuzz/**/*.test.ts',
          ],
          ...realKernel,
          // Each file has a host of its own, and much of its time goes by waiting: two run side by side.
          ...(process.getuid?.() === 0
            ? { pool: ownHost, setupFiles: ['test/harness/host/leftovers.ts'] }
            : {}),
          maxWorkers: 2,
        },
      },
    ],
  },
});
