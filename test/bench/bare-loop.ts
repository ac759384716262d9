/** Loops in C++ that do the helper's native work, without helper and protocol. */
import { join } from 'node:path';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { run } from '../harness/pods/run.js';

const buildMs = 600_000;

type BareLoop = 'privsep_net_bench' | 'privsep_disk_bench';

/** Builds the loop beside the addon: seconds at the first time, nothing later. Resolves to its path. */
async function buildBareLoop(target: BareLoop): Promise<string> {
  const root = repositoryRoot();
  const build = join(root, 'build', 'bench');
  await run('cmake', ['-S', join(root, 'native'), '-B', build, '-DCMAKE_BUILD_TYPE=Release']);
  await run('cmake', ['--build', build, '--target', target, '-j2'], buildMs);
  return join(build, target);
}

/** Median of what the loop calls `what`, milliseconds. */
export async function bareLoopMs(target: BareLoop, what: string, args: readonly string[]): Promise<number> {
  const output = await run(await buildBareLoop(target), args);
  const microseconds = new RegExp(`^${what} us: median (\\d+)`, 'm').exec(output)?.[1];
  if (microseconds === undefined) throw new Error(`unexpected output of ${target}: ${output}`);
  return Number(microseconds) / 1000;
}
