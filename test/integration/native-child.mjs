// The process under test: a helper with the addon locked down as in production, driven over IPC.
// argv: addon path, JSON {count, permitted, uid, gid, directories, selinux}
import { execFileSync } from 'node:child_process';
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { Worker } from 'node:worker_threads';

const native = createRequire(import.meta.url)(process.argv[2]);
const options = JSON.parse(process.argv[3]);
const directories = options.directories.map((path) => openSync(path, 'r'));

// Nothing: an own tun device could be made and labelled.
if (options.selinux && native.labelTaps() !== undefined) throw new Error('no labelled tun device');
native.startPrivilegedThreads({ count: options.count, permitted: BigInt(options.permitted) });
native.dropPrivileges({ uid: options.uid, gid: options.gid, groups: [] });
native.lockDown({ privileged: true });

const codeOf = (attempt) => {
  try {
    attempt();
    return 'allowed';
  } catch (error) {
    return error.code;
  }
};

// Inotify events that nobody asked for yet.
const events = [];
let largestBatch = 0;
let noticed = () => {};
const collect = (batch) => {
  largestBatch = Math.max(largestBatch, batch.length);
  events.push(...batch);
  noticed();
};

const own = {
  watch: () => native.createInotify(collect).fd,
  largestBatch: () => largestBatch,
  events: async (count) => {
    while (events.length < count) await new Promise((resolve) => (noticed = resolve));
    return events.splice(0, count);
  },
  directories: () => directories,
  threads: () =>
    readdirSync('/proc/self/task').map((tid) => readFileSync(`/proc/self/task/${tid}/status`, 'utf8')),
  descriptors: () => readdirSync('/proc/self/fd').length,
  namespaces: () => ['mnt', 'net'].map((kind) => readlinkSync(`/proc/self/ns/${kind}`)),
  where: () => [process.cwd(), statSync('/').ino],
  execute: () => codeOf(() => execFileSync('/bin/true')),
  setUser: () => codeOf(() => process.setuid(0)),
  readShadow: () => codeOf(() => closeSync(openSync('/etc/shadow', 'r'))),
  dial: () =>
    new Promise((resolve) => {
      connect(1, '127.0.0.1')
        .on('error', (error) => resolve(error.code))
        .on('connect', () => resolve('allowed'));
    }),
  worker: () =>
    new Promise((resolve, reject) => {
      const worker = new Worker(
        `require('node:worker_threads').parentPort.postMessage(
           require('node:fs').readFileSync('/proc/thread-self/status', 'utf8'))`,
        { eval: true },
      );
      // Its descriptors are counted until it has ended.
      let status;
      worker
        .on('message', (text) => {
          status = text;
        })
        .on('exit', () => resolve(status))
        .on('error', reject);
    }),
  closeAll: (fds) => {
    for (const fd of fds) native.close(fd);
  },
  exited: (pidfd) => new Promise((resolve) => native.onProcessExit(pidfd, () => resolve('exited'))),
  // Each with the outcome or the error code, all at once.
  many: (count, method, args) =>
    Promise.all(
      Array.from({ length: count }, () => native[method](...args).then(String, (error) => error.code)),
    ),
};

process.on('message', async ({ id, method, args }) => {
  try {
    process.send({ id, value: await (own[method] ?? native[method])(...args) });
  } catch (error) {
    const { code, errno, operation, refused, unchanged, message } = error;
    process.send({ id, error: { code, errno, operation, refused, unchanged, message } });
  }
});
process.send({ ready: true });
