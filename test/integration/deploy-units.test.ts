/** What the units of systemd need of the host before they start. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parseFlags } from '../../privhelper/flags.js';
import { repositoryRoot } from '../harness/pods/bundle.js';

const file = (name: string) => join(repositoryRoot(), 'deploy/systemd', name);

/** Where the helper keeps records, by the name that they have on a host of systemd, where /var/run is a link. */
const recordDirectories = (() => {
  const flags = parseFlags([]);
  const all = [flags.stateDir, flags.hotplugStateDir, flags.pluggedDevicesDir];
  return all.map((path) => path.replace(/^\/var\/run\//, '/run/'));
})();

describe('the directories of the records', () => {
  it('are made at boot and open to the helper, and a missing one keeps the unit from starting', () => {
    const unit = readFileSync(file('virt-privhelper.service'), 'utf8');
    const paths = [...unit.matchAll(/^ReadWritePaths=(.*)$/gm)].map(([, path = '']) => path);
    expect(unit).toMatch(/^ProtectSystem=strict$/m);
    expect(paths.map((path) => path.replace(/^\/var\/run\//, '/run/'))).toEqual(
      expect.arrayContaining(recordDirectories),
    );
    expect(paths.filter((path) => path.startsWith('-'))).toEqual([]);
    const lines = readFileSync(file('virt-privsep.tmpfiles.conf'), 'utf8').split('\n');
    for (const directory of recordDirectories) {
      expect(lines).toContain(`d ${directory} 0700 virt-privhelper virt-privhelper`);
    }
  });

  const made = ['/usr/bin/systemd-tmpfiles', '/usr/bin/systemd-sysusers'].every(existsSync);
  it.skipIf(!made)('are there after a boot, with the owner and mode that the helper gives them', () => {
    const root = mkdtempSync(join(tmpdir(), 'vp-root-'));
    const run = (command: string, ...args: string[]) => {
      const { stderr, status } = spawnSync(command, args, { encoding: 'utf8' });
      expect(stderr.replace(/^Creating (group|user) .*\n/gm, '')).toBe('');
      expect(status).toBe(0);
    };
    try {
      mkdirSync(join(root, 'etc'));
      run('systemd-sysusers', `--root=${root}`, file('virt-privsep.sysusers.conf'));
      // A /run that holds nothing, and one that was used.
      for (const _ of ['first', 'again']) {
        run('systemd-tmpfiles', '--create', `--root=${root}`, file('virt-privsep.tmpfiles.conf'));
        const { uid, gid } = parseFlags([]);
        for (const directory of recordDirectories) {
          const status = statSync(join(root, directory));
          expect([status.uid, status.gid, status.mode & 0o7777]).toEqual([uid, gid, 0o700]);
        }
      }
      expect(readdirSync(join(root, 'run/kubevirt-private'))).toHaveLength(recordDirectories.length);
    } finally {
      rmSync(root, { recursive: true, force: true });
    }
  });
});
