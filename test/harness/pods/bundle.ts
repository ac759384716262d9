/**
 * The programs that make containers and that run inside them, each compiled or bundled into one file, which starts
 * quickly. Made from the sources on demand, so there is nothing to build beforehand and nothing that can be stale: by
 * each node, or once for all nodes of a test run.
 */
import { copyFileSync, cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';
import { run } from './run.js';

const entries = {
  monitor: 'test/harness/launcher/monitor.ts',
  launcher: 'test/harness/launcher/main.ts',
  peer: 'test/harness/guest/peer-main.ts',
} as const;

/** In C++, because every pod has some of them. */
const compiled = ['container', 'container-disk'] as const;
const compileMs = 120_000;

const copied = [
  'test/harness/launcher/dhcp-server.py',
  'test/harness/guest/ping.py',
  'test/harness/pods/named-process.py',
];

export type ProgramName = keyof typeof entries;

/** The directory of the repository, from the sources or from dist. */
export function repositoryRoot(): string {
  let directory = dirname(fileURLToPath(import.meta.url));
  for (;;) {
    const manifest = join(directory, 'package.json');
    if (existsSync(manifest) && readFileSync(manifest, 'utf8').includes('"name": "virt-privsep"'))
      return directory;
    const parent = dirname(directory);
    if (parent === directory) throw new Error('the repository root was not found above the harness');
    directory = parent;
  }
}

/** Directory of the programs that this test run has bundled. */
const bundledVariable = 'VIRT_PRIVSEP_HARNESS_PROGRAMS';

/** vitest's set-up of a run. Resolves to its end. */
export default async function bundleOnce(): Promise<() => void> {
  const directory = mkdtempSync(join(tmpdir(), 'vp-programs-'));
  await bundlePrograms(directory);
  process.env[bundledVariable] = directory;
  return () => rmSync(directory, { recursive: true });
}

/** Puts every program into `directory`, as `<name>.mjs` or `<name>`. */
export async function providePrograms(directory: string): Promise<void> {
  const bundled = process.env[bundledVariable];
  if (bundled === undefined) await bundlePrograms(directory);
  else cpSync(bundled, directory, { recursive: true });
}

async function bundlePrograms(directory: string): Promise<void> {
  const root = repositoryRoot();
  // One by one, so that none has to load what only another one needs.
  for (const [name, path] of Object.entries(entries)) {
    await build({
      root,
      configFile: false,
      logLevel: 'error',
      publicDir: false,
      ssr: { noExternal: true, target: 'node' },
      build: {
        ssr: true,
        target: 'node20',
        outDir: directory,
        emptyOutDir: false,
        minify: false,
        rollupOptions: {
          input: { [name]: join(root, path) },
          output: { format: 'es', entryFileNames: '[name].mjs', codeSplitting: false },
        },
      },
    });
  }
  const flags = ['-std=c++17', '-O1', '-Wall', '-Wextra', '-Werror'];
  const compile = (name: string) => {
    const files = ['-o', join(directory, name), join(root, 'test/harness/pods', `${name}.cc`)];
    return run('c++', [...flags, ...files], { timeoutMs: compileMs });
  };
  await Promise.all(compiled.map(compile));
  for (const path of copied)
    copyFileSync(join(root, path), join(directory, path.slice(path.lastIndexOf('/') + 1)));
}
