/**
 * The programs that run inside pods, each bundled into one file that plain Node starts quickly. Made from
 * the sources on demand, so there is nothing to build beforehand and nothing that can be stale.
 */
import { copyFileSync, existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const entries = {
  monitor: 'test/harness/launcher/monitor.ts',
  launcher: 'test/harness/launcher/main.ts',
  'container-disk': 'test/harness/pods/container-disk.ts',
  peer: 'test/harness/guest/peer-main.ts',
} as const;

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

/** Bundles every program into `directory` as `<name>.mjs`. */
export async function bundlePrograms(directory: string): Promise<void> {
  const root = repositoryRoot();
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
        input: Object.fromEntries(Object.entries(entries).map(([name, path]) => [name, join(root, path)])),
        output: { format: 'es', entryFileNames: '[name].mjs', chunkFileNames: '[name]-[hash].mjs' },
      },
    },
  });
  for (const path of copied)
    copyFileSync(join(root, path), join(directory, path.slice(path.lastIndexOf('/') + 1)));
}
