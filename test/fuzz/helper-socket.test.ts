/**
 * The helper's sockets under calls of every kind. FUZZ_CALLS sets their number, FUZZ_SEED the seed; a seed with a
 * number always gives the same bytes, but for the UIDs of the pods.
 */
import { createReadStream, readdirSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HelperService } from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { OperationReader } from '../../privhelper/audit/operations.js';
import { methodName } from '../../privhelper/declarations.js';
import { waitFor } from '../harness/pods/run.js';
import { everyMethod } from './calls.js';
import { FuzzRun } from './run.js';
import { World } from './world.js';

const calls = Number(process.env['FUZZ_CALLS'] || 60_000);
const seed = Number(process.env['FUZZ_SEED'] || 1);
/** For starting, for what follows the calls, and for a thousand of them on a slow machine. */
const startMs = 120_000;
const thousandMs = 10_000;
const deadlineMs = 20_000;
const maxResidentMiB = 256;

describe.runIf(process.getuid?.() === 0)('fuzzing the helper’s sockets', () => {
  let world: World;

  beforeEach(async () => {
    world = await World.create();
  });
  afterEach(async () => {
    await world?.destroy();
  });

  it(
    `NODE-041 answers ${calls} calls as it may and changes nothing but what they are about`,
    async () => {
      const { helper } = world;
      const health = () => helper.client(HelperService).health({});
      await health();
      const before = await world.untouchable();
      const resources = () => ({
        descriptors: readdirSync(`/proc/${helper.pid}/fd`).length,
        threads: readdirSync(`/proc/${helper.pid}/task`).length,
      });
      const resourcesBefore = resources();

      // Bound to their own VMIs; a call that names another one would bind them to that.
      for (const pod of world.targets.pods) await helper.client(PodService).identify({ pod });

      const run = new FuzzRun(helper, seed, world);
      const started = performance.now();
      try {
        await run.run(calls);
      } finally {
        run.close();
        const seconds = ((performance.now() - started) / 1000).toFixed(1);
        process.stdout.write(`fuzz: seed ${seed}, ${calls} calls in ${seconds} s\n${histogram(run)}\n`);
      }

      expect(run.problems).toEqual([]);
      expect(faults(helper.stderr)).toEqual([]);
      expect(world.ended).toEqual([]);
      expect(await world.untouchable()).toBe(before);
      expect((await health()).instanceId).not.toBe('');
      await expectStillUseful(world);

      for (const { podUid, vmiUid } of [...world.targets.pods, world.targets.silent]) {
        await helper.client(PodService).release({ pod: { podUid, vmiUid } });
      }
      // What is bound to a VMI is watched for as long as its launcher lives.
      await world.node.destroyPods();
      await waitFor('descriptors and threads as before', deadlineMs, () => {
        const now = resources();
        return now.descriptors <= resourcesBefore.descriptors && now.threads <= resourcesBefore.threads;
      }).catch(() => expect(resources()).toEqual(resourcesBefore));
      const peak = residentPeakMiB(helper.pid);
      process.stdout.write(`  resident at most ${peak.toFixed(0)} MiB\n`);
      expect(peak).toBeLessThan(maxResidentMiB);

      const { reached, malformed, unfinished } = await readAudit(helper.auditFile);
      expect({ malformed, unfinished }).toEqual({ malformed: 0, unfinished: [] });
      // Past their checks: the fuzzer does not bounce at the door.
      expect(everyMethod.map(methodName).filter((name) => !reached.has(name))).toEqual([]);
    },
    startMs + (calls / 1000) * thousandMs,
  );
});

/** A launcher pod can still be identified and its network looked at. */
async function expectStillUseful({ helper, targets }: World): Promise<void> {
  const [pod] = targets.pods;
  if (pod === undefined) throw new Error('no pod');
  expect((await helper.client(PodService).identify({ pod })).uid).toBe(107);
  const { links } = await helper.client(NetworkService).observe({ pod });
  expect(links.map(({ name }) => name)).toContain('lo');
}

/** What the helper has said beyond that it is ready, what it does without, and that raw connections broke. */
function faults(stderr: string): string[] {
  const expected =
    /"msg":"(?:ready: instance|connection failed|[a-z_ ]+ is missing \(|CAP_[A-Z_]+ is not given)/;
  return stderr.split('\n').filter((line) => line !== '' && !expected.test(line));
}

function residentPeakMiB(pid: number): number {
  const match = /^VmHWM:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
  return Number(match?.[1]) / 1024;
}

/** The audit log, read as `privctl audit` reads it. */
async function readAudit(path: string) {
  const reader = new OperationReader();
  const reached = new Set<string | undefined>();
  for await (const line of createInterface({ input: createReadStream(path) })) {
    for (const { outcome, method } of reader.read(line)) {
      if (outcome === 'allowed' || outcome === 'failed') reached.add(method);
    }
  }
  return { reached, malformed: reader.malformed, unfinished: reader.unfinished };
}

/** Outcomes of each method and their numbers. */
function histogram({ outcomes }: FuzzRun): string {
  const lines = [...outcomes].sort().map(([name, counts]) => {
    const numbers = [...counts].sort(([, a], [, b]) => b - a).map(([outcome, n]) => `${outcome} ${n}`);
    return `  ${name.padEnd(38)} ${numbers.join(', ')}`;
  });
  return lines.join('\n');
}
