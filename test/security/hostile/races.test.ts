import { execFileSync, spawn } from 'node:child_process';
import {
  closeSync,
  constants,
  fchownSync,
  ftruncateSync,
  lstatSync,
  openSync,
  renameSync,
  rmSync,
  type Stats,
  symlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ConnectResponseSchema } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { HostDiskOutcome, StorageService } from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { run, waitFor } from '../../harness/pods/run.js';
import { failureOf, helperUser } from '../../integration/privhelper-fixture.js';
import { processorTime, ticksPerSecond } from './host-snapshot.js';
import type { Use } from './line.js';
import { type HostileMethod, methodNamed, methods } from './methods.js';
import type { WholePod } from './pod.js';
import { World } from './world.js';

/** Calls of each method while an entry changes. */
const rounds = Number(process.env['RACE_ROUNDS'] || 60);
const deadlineMs = 20_000;
/** Longer for more rounds: of the calls of a method, and of a race. */
const callsMs = deadlineMs + rounds * 50;
const raceMs = 150_000 + rounds * 300;
const racer = new URL('racer.py', import.meta.url).pathname;
const uses = methods.flatMap(({ uses }) => uses);
const entries = [...new Set(uses.map(({ entry }) => entry))];
const volumes = [...new Set(entries.map((entry) => entry.split('/', 1)[0] ?? ''))];

const typeOf = ({ mode }: Stats) => mode & constants.S_IFMT;

describe.runIf(process.getuid?.() === 0)('pods that change between two system calls', () => {
  let world: World;
  let pod: WholePod;

  beforeAll(async () => {
    world = await World.create();
  });
  afterAll(async () => {
    await world?.destroy();
  });
  beforeEach(async () => {
    pod = await world.pod();
    await world.remember();
  });
  afterEach(async () => {
    await world.removePods();
    await world.expectUnchanged();
    await world.expectHealthy();
  });

  /** Runs `body` while the entry and a link to `target`, or what else is made in its place, take turns. */
  async function racing(
    path: string,
    target: string,
    body: () => Promise<void>,
    make: (target: string, path: string) => void = symlinkSync,
  ): Promise<void> {
    const link = `${path}.link`;
    const there = lstatSync(path, { throwIfNoEntry: false });
    if (there !== undefined) make(target, link);
    const words = there !== undefined ? ['swap', path, link] : ['plant', path, target];
    const child = spawn('/usr/bin/python3', [racer, ...words], { stdio: ['ignore', 'pipe', 'inherit'] });
    let said = '';
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString();
    });
    try {
      await waitFor('racer', deadlineMs, () => said.includes('racing'));
      await body();
    } finally {
      child.kill('SIGTERM');
      await waitFor(
        'racer to end',
        deadlineMs,
        () => /racing\n\d+ .*\n/.test(said) || child.exitCode !== null,
      );
    }
    expect(Number.parseInt(said.split('\n')[1] ?? '', 10)).toBeGreaterThan(rounds);
    if (there === undefined) return;
    const now = lstatSync(path, { throwIfNoEntry: false });
    if (now !== undefined && typeOf(now) !== typeOf(there)) {
      rmSync(path);
      renameSync(link, path);
    } else rmSync(link, { force: true });
  }

  /** Each answer is a success on what is the pod's, or says what was refused. */
  async function callOften(hostile: HostileMethod, attacked: readonly Use[]): Promise<void> {
    const counts = { succeeded: 0, failed: 0 };
    const bothExpected = attacked.some(({ how }) => how === 'connect' || how === 'pin');
    const deadline = performance.now() + callsMs;
    const enough = () => {
      const both = counts.succeeded > 0 && counts.failed > 0;
      return counts.succeeded + counts.failed >= rounds && (both || !bothExpected);
    };
    while (!enough()) {
      expect(performance.now(), `${hostile.name} succeeds and fails: ${JSON.stringify(counts)}`).toBeLessThan(
        deadline,
      );
      pod.restore();
      // Each call finds what it pins unpinned.
      await world.callFor(methodNamed('PodService.Release'), pod);
      const { code, text, failure, message } = await world.callFor(hostile, pod);
      const told = `${hostile.name}: ${code} ${text}`;
      expect(['internal', 'unknown'], told).not.toContain(code);
      const lacksQemu = hostile.wantsQemu && failure?.errnoName === 'ESRCH' && !failure.refused;
      if (lacksQemu) counts.succeeded += 1;
      else if (message === undefined) {
        expect(failure?.refused || failure?.errnoName, told).toBeTruthy();
        counts.failed += 1;
      } else {
        counts.succeeded += 1;
        if (hostile.name === 'SocketService.Connect') {
          const { ticket } = fromBinary(ConnectResponseSchema, message);
          world.helper.native.close(await world.helper.claim(ticket?.value ?? new Uint8Array()));
        }
      }
    }
    world.expectCanaryUnchanged(hostile.name);
  }

  it.each(entries)(
    'AFT-002 AFT-008 STO-001 acts on %s of the pod or on nothing while it and a link take turns',
    async (entry) => {
      const target = entry.endsWith('sock') ? world.canarySocket : world.canaryFile;
      await racing(pod.path(entry), target, async () => {
        for (const hostile of methods) {
          const attacked = hostile.uses.filter((use) => use.entry === entry);
          if (attacked.length > 0) await callOften(hostile, attacked);
        }
      });
    },
    raceMs,
  );

  it.each(volumes)(
    'AFT-002 AFT-008 REC-051 acts in the volume %s of the pod or nowhere while it and a link to another’s take turns',
    async (volume) => {
      await racing(pod.path(volume), world.bystander.path(volume), async () => {
        for (const hostile of methods) {
          const attacked = hostile.uses.filter(
            ({ entry, how }) => entry.startsWith(`${volume}/`) && how !== 'look',
          );
          if (attacked.length > 0) await callOften(hostile, attacked);
        }
      });
    },
    raceMs,
  );

  it(
    'AFT-002 writes no file of another pod’s when the directory above the volumes takes turns with a link',
    async () => {
      const above = join(pod.directory, 'volumes');
      await racing(above, join(world.bystander.directory, 'volumes'), async () => {
        for (const name of [
          'NetworkService.Apply',
          'StorageService.MountContainerDisks',
          'PodService.MarkUnresponsive',
        ]) {
          await callOften(methodNamed(name), []);
        }
      });
    },
    raceMs,
  );

  it(
    'AFT-008 opens nothing that takes the place of an image that an earlier call has left unfinished',
    async () => {
      const image = `/proc/${pod.launcher.pid}/root/run/kubevirt-private/vmi-disks/data/raced.img`;
      const { podUid, vmiUid } = pod.target;
      const request = {
        pod: { podUid, vmiUid },
        volume: 'data',
        fileName: 'raced.img',
        capacityBytes: 4096n,
      };
      const held = openSync(image, 'w');
      const said = new Set<string>();
      const ensure = async () => {
        ftruncateSync(held, 0);
        fchownSync(held, helperUser, helperUser);
        const ensuring = world.helper.client(StorageService).ensureHostDisk(request);
        const outcome = await ensuring.then(
          ({ outcome }) => HostDiskOutcome[outcome],
          async () => (await failureOf(ensuring)).errnoName ?? '',
        );
        said.add(outcome);
      };
      // Nobody reads from the pipe: whoever opens it is told so, ENXIO.
      const makePipe = (_: string, path: string) => execFileSync('mkfifo', [path]);
      const call = async () => {
        const deadline = performance.now() + callsMs;
        for (let i = 0; i < 10 * rounds || said.size < 2; i += 1) {
          await ensure();
          expect(performance.now(), [...said].join()).toBeLessThan(deadline);
        }
      };
      await racing(image, '', call, makePipe);
      closeSync(held);
      // Refused by its type, given away, or finished by the time that it was looked at.
      expect([...said].sort()).toEqual(['CREATED', 'EINVAL']);
    },
    raceMs,
  );

  it('gives little of its time to a pod that changes its directories without end', async () => {
    const path = pod.path('sockets/one');
    for (const each of [path, `${path}.link`]) symlinkSync('/nowhere', each);
    const before = processorTime(world.helper.pid);
    const said = await run('/usr/bin/python3', [racer, 'swap', path, `${path}.link`, '500000'], {
      timeoutMs: 120_000,
    });
    const [, seconds] = /^500000 (.*)$/m.exec(said) ?? [];
    const { code } = await world.callFor(methodNamed('PodService.Identify'), world.bystander);
    expect(code).toBe('');
    expect(processorTime(world.helper.pid) - before).toBeLessThan((Number(seconds) * ticksPerSecond) / 4);
  });
});
