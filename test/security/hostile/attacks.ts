/** What a launcher, or somebody who can change its directories, puts in the place of what a call expects. */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  closeSync,
  constants,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { run, waitFor } from '../../harness/pods/run.js';
import type { WholePod } from './pod.js';
import type { World } from './world.js';

export interface Attack {
  readonly name: string;
  /** Puts it at a path that is free. `counterpart`: the same path in another pod. */
  readonly plant: (world: World, path: string, counterpart: string) => Promise<void> | void;
  /** Takes it away again. */
  readonly remove?: (world: World, path: string) => Promise<void> | void;
}

/** Addresses of sockets are short. */
const directoryAndName = (path: string) => [dirname(path), basename(path)];

const deadlineMs = 10_000;

const removeAll = (_world: World, path: string) => rmSync(path, { recursive: true, force: true });

const common: readonly Attack[] = [
  { name: 'a dangling link', plant: (_world, path) => symlinkSync('/nowhere/at/all', path) },
  { name: 'a link to itself', plant: (_world, path) => symlinkSync(path, path) },
  { name: 'a link to the other pod', plant: (_world, path, counterpart) => symlinkSync(counterpart, path) },
  { name: 'a FIFO', plant: async (_world, path) => void (await run('mkfifo', [path])) },
  {
    name: 'a device node',
    plant: async (_world, path) => void (await run('mknod', [path, 'c', '10', '200'])),
  },
  { name: 'a regular file', plant: (_world, path) => writeFileSync(path, 'planted') },
];

/** In the place of a directory on the way. */
export const onDirectories: readonly Attack[] = [
  ...common,
  {
    name: 'a link to a directory outside',
    plant: ({ outside }, path) => symlinkSync(join(outside, 'directory'), path),
  },
  { name: 'a link to /', plant: (_world, path) => symlinkSync('/', path) },
];

/** One that is in use. */
function datagramSocket(): Attack {
  let holder: ChildProcess | undefined;
  return {
    name: 'a datagram socket',
    plant: async (_world, path) => {
      const program = `import os,socket,sys; os.chdir(sys.argv[1])
made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); made.bind(sys.argv[2]); sys.stdin.read()`;
      holder = spawn('/usr/bin/python3', ['-c', program, ...directoryAndName(path)], {
        stdio: ['pipe', 'ignore', 'inherit'],
      });
      await waitFor('datagram socket', deadlineMs, () => lstatSync(path, { throwIfNoEntry: false }));
    },
    remove: async () => {
      holder?.kill();
      await waitFor(
        'its holder to end',
        deadlineMs,
        () => holder?.signalCode !== null || holder.exitCode !== null,
      );
    },
  };
}

/** In the place of an entry of a volume. */
export const onEntries: readonly Attack[] = [
  ...common,
  { name: 'a link to a foreign socket', plant: (world, path) => symlinkSync(world.canarySocket, path) },
  { name: 'a link to a foreign file', plant: (world, path) => symlinkSync(world.canaryFile, path) },
  {
    name: 'a link through /proc/self/root',
    plant: (world, path) => symlinkSync(`/proc/self/root${world.canarySocket}`, path),
  },
  { name: 'a directory', plant: (_world, path) => void mkdirSync(join(path, 'inside'), { recursive: true }) },
  {
    name: 'a foreign process’s socket',
    plant: async (world, path) => {
      const made = join(world.outside, '..', `${basename(world.outside)}.sock`);
      await world.listenAlso(made);
      renameSync(made, path);
    },
  },
  datagramSocket(),
  {
    name: 'a socket of nobody',
    plant: ({ helper: { native } }, path) => {
      const directory = openSync(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
      const short = `/proc/self/fd/${directory}/${basename(path)}`;
      native.close(native.listenUnix({ path: short, type: 'stream', mode: 0o777, gid: 0, backlog: 1 }));
      closeSync(directory);
    },
  },
  {
    name: 'a foreign socket, mounted over it',
    plant: async (world, path) => {
      writeFileSync(path, '');
      await world.inMountNamespace('mount', ['--bind', world.canarySocket, path]);
    },
    remove: async (world, path) => {
      await world.unmount(path);
      rmSync(path, { force: true });
    },
  },
  {
    name: 'a foreign file, mounted over it',
    plant: async (world, path) => {
      writeFileSync(path, '');
      await world.inMountNamespace('mount', ['--bind', world.canaryFile, path]);
    },
    remove: async (world, path) => {
      await world.unmount(path);
      rmSync(path, { force: true });
    },
  },
  {
    name: 'a hard link to another file of the pod',
    plant: (_world, path) => {
      writeFileSync(`${path}.other`, 'planted', { mode: 0o600 });
      linkSync(`${path}.other`, path);
    },
    remove: (_world, path) => {
      unlinkSync(`${path}.other`);
      rmSync(path, { force: true });
    },
  },
];

/** Runs `body` with the attack in place of what is at `path` below the pod's directory. */
export async function under(
  world: World,
  pod: WholePod,
  path: string,
  attack: Attack,
  body: () => Promise<void>,
): Promise<void> {
  const real = join(pod.directory, path).replace(/\/$/, '');
  const aside = `${real}.aside`;
  const there = lstatSync(real, { throwIfNoEntry: false }) !== undefined;
  if (there) renameSync(real, aside);
  try {
    await attack.plant(world, real, join(world.bystander.directory, path).replace(/\/$/, ''));
    await body();
  } finally {
    await (attack.remove ?? removeAll)(world, real);
    // What the call itself made there goes, too.
    rmSync(real, { recursive: true, force: true });
    if (there) renameSync(aside, real);
  }
}
