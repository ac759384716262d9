import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

const root = new URL('../../..', import.meta.url).pathname;
const text = readFileSync(join(root, 'docs/security.md'), 'utf8');

describe('docs/security.md', () => {
  it('has the methods as they are declared and checked', () => {
    const { stderr, status } = spawnSync(process.execPath, ['scripts/method-table.mjs', '--check'], {
      cwd: root,
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    expect(status).toBe(0);
  });

  it('names files that exist', () => {
    const links = [...text.matchAll(/\]\(\.\.\/([^)#]+)\)/g)].map(([, path = '']) => path);
    expect(links.length).toBeGreaterThan(30);
    expect(links.filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });

  it('has an exploit test that names each fault', () => {
    const rows = [...text.matchAll(/^\| (CVE-[^|]+)\|.*\|([^|]+)\|$/gm)];
    expect(rows).toHaveLength(12);
    for (const [, faults = '', tests = ''] of rows) {
      const files = [...tests.matchAll(/\(\.\.\/([^)]+)\)/g)].map(([, path = '']) => path);
      const sources = files.map((path) => readFileSync(join(root, path), 'utf8')).join('\n');
      for (const [fault] of faults.matchAll(/CVE-\d+-\d+/g)) expect(sources).toContain(fault);
    }
  });
});
