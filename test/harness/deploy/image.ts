/**
 * The container image of deploy/Containerfile as a directory: the machine's own system below /usr, and the
 * product with the packages it needs at run time.
 */
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { repositoryRoot } from '../pods/bundle.js';
import { run, succeeds } from '../pods/run.js';

/** Programs of the image: names in /usr/local/bin and the files that they are links to, below dist/. */
export function imagePrograms(): Map<string, string> {
  const text = readFileSync(join(repositoryRoot(), 'deploy/Containerfile'), 'utf8');
  const links = text.matchAll(/ln -s \/opt\/virt-privsep\/dist\/(\S+) \/usr\/local\/bin\/(\S+)/g);
  return new Map([...links].map(([, file = '', name = '']) => [name, file]));
}

interface LockFile {
  readonly packages: Readonly<Record<string, { readonly dev?: boolean }>>;
}

export class Image {
  private constructor(private readonly directory: string) {}

  /** Copies the product as it is built now. */
  static async create(): Promise<Image> {
    const directory = mkdtempSync(join(tmpdir(), 'vp-image-'));
    chmodSync(directory, 0o755);
    const product = join(directory, 'product');
    const root = repositoryRoot();
    const copy = (path: string) => cpSync(join(root, path), join(product, path), { recursive: true });
    for (const part of ['agent', 'privhelper', 'gen', 'native']) copy(`dist/${part}`);
    copy('build/Release/privsep.node');
    copy('package.json');
    const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as LockFile;
    for (const [path, { dev }] of Object.entries(packages)) {
      if (path === '' || dev || !existsSync(join(root, path))) continue;
      mkdirSync(dirname(join(product, path)), { recursive: true });
      const pair = [join(root, path), join(product, path)];
      // Installed packages do not change: links will do where the file system is the same.
      const linked = await succeeds('cp', ['--archive', '--link', '--no-target-directory', ...pair]);
      if (!linked) await run('cp', ['--archive', '--no-target-directory', ...pair]);
    }
    for (const file of imagePrograms().values()) chmodSync(join(product, 'dist', file), 0o755);
    return new Image(directory);
  }

  /**
   * Lays out a container's root file system at `rootfs` and gives the shell commands that complete it with
   * read-only mounts, for the mount namespace in which the container is to be started.
   */
  layOut(rootfs: string): string[] {
    const make = (...paths: string[]) => {
      for (const path of paths) mkdirSync(join(rootfs, path), { recursive: true, mode: 0o755 });
    };
    const system = ['usr/bin', 'usr/sbin', 'usr/lib', 'usr/lib64'].filter((path) =>
      existsSync(join('/', path)),
    );
    make(
      ...system,
      'usr/local/bin',
      'opt/virt-privsep',
      'etc',
      'proc',
      'sys',
      'dev',
      'run',
      'var/lib',
      'var/log',
    );
    make('tmp');
    for (const link of ['bin', 'sbin', 'lib', 'lib64']) symlinkSync(`usr/${link}`, join(rootfs, link));
    symlinkSync('/run', join(rootfs, 'var/run'));
    writeFileSync(join(rootfs, 'etc/passwd'), 'root:x:0:0:root:/root:/usr/sbin/nologin\n');
    for (const [name, file] of imagePrograms()) {
      symlinkSync(join('/opt/virt-privsep/dist', file), join(rootfs, 'usr/local/bin', name));
    }
    writeFileSync(join(rootfs, 'usr/local/bin/node'), '');
    const binds = [
      ...system.map((path) => [join('/', path), path]),
      [process.execPath, 'usr/local/bin/node'],
      [join(this.directory, 'product'), 'opt/virt-privsep'],
    ];
    return binds.map(
      ([source = '', target = '']) =>
        `mount --bind ${source} ${join(rootfs, target)} && mount -o remount,bind,ro ${join(rootfs, target)}`,
    );
  }

  destroy(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }
}
