import { expect } from 'vitest';
import { killInSystemCall } from '../harness/system/process-trace.js';
import type { HelperProcess } from './privhelper-fixture.js';

/** `work` kills the helper before it makes a system call for the `nth` time; afterwards there is a new one. */
export async function killDuring(
  helper: HelperProcess,
  call: string,
  nth: number,
  work: () => Promise<unknown>,
): Promise<void> {
  const { death } = await killInSystemCall(helper.pid, call, nth);
  await expect(work(), `killed before ${call} number ${nth}`).rejects.toThrow();
  await death;
  await helper.stop();
  await helper.start();
}
