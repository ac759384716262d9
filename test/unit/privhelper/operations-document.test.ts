import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { permittedCaps, withheldCaps } from '../../../privhelper/declarations.js';
import { inspection, table } from '../../../privhelper/dispatch.js';
import { declareAll } from '../../../privhelper/server/routes.js';

const root = new URL('../../..', import.meta.url).pathname;
const text = readFileSync(join(root, 'docs/operations.md'), 'utf8');

describe('docs/operations.md', () => {
  it('shows the capabilities of a node on cgroup v1 without CAP_SYS_RESOURCE', () => {
    const withheld = withheldCaps({ permitted: 0n, cgroupsAreUnified: false });
    const declared = [...declareAll(table, withheld), ...declareAll(inspection)];
    const mask = permittedCaps(declared.map(({ declared: each }) => each)).toString(16);
    const shown = [...text.matchAll(/may raise 0x([0-9a-f]+)/g)];
    expect(shown.map(([, each]) => each)).toEqual([mask]);
  });
});
