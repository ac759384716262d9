/** The version of the program. */
import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** From package.json, which is above the sources and above dist/. */
export function readVersion(): string {
  const here = dirname(fileURLToPath(import.meta.url));
  const root = basename(dirname(here)) === 'dist' ? join(here, '..', '..') : join(here, '..');
  const manifest: unknown = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  return typeof manifest === 'object' && manifest !== null && 'version' in manifest
    ? String(manifest.version)
    : 'unknown';
}
