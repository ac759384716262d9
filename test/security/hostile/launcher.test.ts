import { readdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { run } from '../../harness/pods/run.js';
import { type Attack, onDirectories, onEntries, under } from './attacks.js';
import type { Use } from './line.js';
import { type HostileMethod, methodNamed, methods } from './methods.js';
import type { WholePod } from './pod.js';
import type { Answer } from './wire.js';
import { World } from './world.js';

const volumesDir = 'volumes/kubernetes.io~empty-dir';
const using = methods.filter(({ uses }) => uses.length > 0);
const entries = [...new Set(using.flatMap(({ uses }) => uses.map(({ entry }) => entry)))];
const volumes = [...new Set(entries.map((entry) => entry.split('/', 1)[0] ?? ''))];
/** Methods of which nothing is left to attack afterwards come last. */
const ordered = [...using].sort((a, b) => Number(removes(a)) - Number(removes(b)));

function removes({ name }: HostileMethod): boolean {
  return name === 'StorageService.UnmountContainerDisks';
}

describe.runIf(process.getuid?.() === 0)('pods whose directories and sockets are not what they seem', () => {
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

  /** Refused or failed, with what and why; never as a fault of the helper's own. */
  function expectNamed({ code, failure }: Answer, told: string): void {
    expect(['internal', 'unknown'], told).not.toContain(code);
    expect(failure, told).toBeDefined();
    expect(failure?.refused === true || failure?.errnoName !== '', told).toBe(true);
  }

  /** Calls each method that uses something at or below the attacked path; resolves to how many failed. */
  async function callAll(path: string, attacked: (use: Use) => boolean, attack: Attack, pinned: boolean) {
    let failed = 0;
    await world.callFor(methodNamed(pinned ? 'PodService.Identify' : 'PodService.Release'), pod);
    await under(world, pod, path, attack, async () => {
      for (const hostile of ordered) {
        const touched = hostile.uses.filter(attacked);
        if (touched.length === 0) continue;
        // Each call finds what it pins unpinned; a pod that is attacked may not be released.
        if (!pinned) await world.callFor(methodNamed('PodService.Release'), pod);
        const answer = await world.callFor(hostile, pod);
        const told = `${hostile.name} with ${attack.name} at <pod>/${path}, ${pinned ? '' : 'not '}pinned: ${answer.code} ${answer.text}`;
        const mustFail = touched.some(({ how }) => how === 'connect' || (how === 'pin' && !pinned));
        // Where nobody listens there is nothing to unmount.
        const unchanged = /^launcher or .*record$/.test(hostile.subject) && answer.message?.length === 0;
        if (mustFail && !unchanged) expect(answer.message, told).toBeUndefined();
        if (answer.message === undefined) {
          expectNamed(answer, told);
          failed += 1;
        }
        world.expectCanaryUnchanged(told);
      }
    });
    pod.restore();
    return failed;
  }

  async function attackAll(path: string, attacks: readonly Attack[], attacked: (use: Use) => boolean) {
    const start = world.helper.audit().length;
    let failed = 0;
    for (const attack of attacks) {
      for (const pinned of [false, true]) failed += await callAll(path, attacked, attack, pinned);
    }
    const lines = world.helper.audit().slice(start);
    const audited = lines.filter(
      ({ event, method, decision }) =>
        event === 'end' && method !== 'PodService.Release' && decision !== 'allowed',
    );
    expect(audited.length).toBeGreaterThanOrEqual(failed);
  }

  it.each(['', 'volumes', volumesDir])(
    'AFT-008 REC-051 STO-001 acts on nothing else when <pod>/%s is replaced',
    async (path) => {
      await attackAll(path, onDirectories, () => true);
    },
  );

  it.each(volumes)('AFT-008 REC-051 acts on nothing else when the volume %s is replaced', async (volume) => {
    await attackAll(`${volumesDir}/${volume}`, onDirectories, ({ entry }) => entry.startsWith(`${volume}/`));
  });

  it.each(entries)(
    'AFT-002 AFT-008 REC-051 acts on nothing else when %s is replaced',
    async (attackedEntry) => {
      await attackAll(`${volumesDir}/${attackedEntry}`, onEntries, ({ entry }) => entry === attackedEntry);
    },
  );

  it('STO-009 mounts nothing over what is no image of the pod, and does not take it for one', async () => {
    const seen = '/run/kubevirt/container-disks/disk_0.img';
    await world.callFor(methodNamed('StorageService.MountContainerDisks'), pod);
    const inLauncher = (...words: string[]) =>
      run('nsenter', [`--mount=/proc/${pod.launcher.pid}/ns/mnt`, '--', ...words]);
    await inLauncher('umount', '-l', seen);
    await inLauncher('mount', '--bind', world.canaryFile, seen);
    const answer = await world.callFor(methodNamed('StorageService.MountContainerDisks'), pod);
    expect(answer).toMatchObject({ code: 'permission_denied', failure: { refused: true, unchanged: true } });
  });

  it('reads a bounded part of a volume that holds 20,000 entries', async () => {
    const full = `${pod.directory}/full`;
    const make = 'mkdir "$1" && cd "$1" && seq -f disk_%g.x 1 20000 | xargs touch';
    await run('sh', ['-c', make, 'sh', full], { timeoutMs: 60_000 });
    const move = (from: string, to: string) => {
      for (const name of readdirSync(from)) {
        if (!name.endsWith('.x')) renameSync(join(from, name), join(to, name));
      }
    };
    for (const volume of volumes) {
      const [real, aside] = [pod.path(volume), `${pod.path(volume)}.aside`];
      move(real, full);
      renameSync(real, aside);
      renameSync(full, real);
      for (const hostile of ordered.filter(({ uses }) =>
        uses.some(({ entry }) => entry.startsWith(volume)),
      )) {
        const answer = await world.callFor(hostile, pod);
        if (answer.message === undefined)
          expectNamed(answer, `${hostile.name} ${answer.code} ${answer.text}`);
      }
      move(real, aside);
      pod.restore();
      renameSync(real, full);
      renameSync(aside, real);
    }
    await run('rm', ['-r', full], { timeoutMs: 60_000 });
  });
});
