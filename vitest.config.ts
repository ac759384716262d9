import { defineConfig } from 'vitest/config';

// Pure tests run in parallel anywhere; integration, security and end-to-end tests need
// root and real kernel objects, and share the machine, so they run one file after another.
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          include: ['test/unit/**/*.test.ts', 'test/vectors/**/*.test.ts', 'test/model/**/*.test.ts'],
          // Many wait for clocks of others, so one for each processor is not too many.
          maxWorkers: 2,
        },
      },
      // The product's own containers under crun.
      {
        test: {
          name: 'deploy',
          include: ['test/deploy/**/*.test.ts'],
          fileParallelism: false,
          testTimeout: 180_000,
          hookTimeout: 180_000,
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
          fileParallelism: false,
          testTimeout: 180_000,
          hookTimeout: 180_000,
        },
      },
    ],
  },
});
