/**
 * Set-up of every test file that has a host of its own: it fails when the file leaves something there. Mounts, which
 * the files share, are looked at when all have ended.
 */
import { afterAll, beforeAll, expect } from 'vitest';
import { ownCgroups } from '../pods/cgroup.js';
import { linkNames } from '../pods/network.js';
import { readIfThere } from '../pods/proc.js';
import { waitFor } from '../pods/run.js';

/** For what was killed to be gone. */
const endMs = 5000;

async function present(): Promise<string[]> {
  const { directories, pids } = ownCgroups();
  return [
    ...directories.map((directory) => `cgroup ${directory}`),
    ...(await linkNames(process.pid)).map((name) => `link ${name}`),
    ...pids.map((pid) => `process ${pid} ${commandOf(pid)}`),
  ].filter((entry) => !entry.startsWith(`process ${process.pid} `));
}

function commandOf(pid: number): string {
  return readIfThere(`/proc/${pid}/cmdline`).replaceAll('\0', ' ').trim();
}

let before: string[] = [];

beforeAll(async () => {
  before = await present();
});

// The first hook to be registered is the last to run: the file has cleaned up.
afterAll(async () => {
  let left: string[] = [];
  await waitFor('nothing to be left', endMs, async () => {
    const known = [...before];
    left = (await present()).filter((entry) => {
      const at = known.indexOf(entry);
      if (at >= 0) known.splice(at, 1);
      return at < 0;
    });
    return left.length === 0;
  }).catch(() => expect(left, 'left behind by this file').toEqual([]));
});
