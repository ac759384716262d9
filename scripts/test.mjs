// Runs every suite one after another, shows their output, and ends with one line that sums them all.
// A suite that breaks before it counts anything counts as one failure.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const scratch = mkdtempSync(join(tmpdir(), 'virt-privsep-test-'));
const total = { passed: 0, failed: 0, skipped: 0 };
const isRoot = process.getuid?.() === 0;

function add(name, counts) {
  for (const key of Object.keys(total)) total[key] += counts[key];
  process.stdout.write(
    `== ${name}: ${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`,
  );
}

function run(command, args, options = {}) {
  return spawnSync(command, args, { stdio: ['ignore', 'inherit', 'inherit'], ...options });
}

function step(name, command, args) {
  const failed = run(command, args).status === 0 ? 0 : 1;
  add(name, { passed: 1 - failed, failed, skipped: 0 });
}

function vitest(project) {
  const report = join(scratch, `${project}.json`);
  const { status } = run('npx', [
    'vitest',
    'run',
    '--project',
    project,
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${report}`,
  ]);
  if (!existsSync(report)) return add(project, { passed: 0, failed: 1, skipped: 0 });
  const result = JSON.parse(readFileSync(report, 'utf8'));
  const brokenFiles = result.testResults.filter(
    (f) => f.status === 'failed' && f.assertionResults.length === 0,
  ).length;
  const failed = result.numFailedTests + brokenFiles;
  add(project, {
    passed: result.numPassedTests,
    failed: status !== 0 && failed === 0 ? 1 : failed,
    skipped: result.numPendingTests + result.numTodoTests,
  });
}

/** A script that ends with "N passed, N failed". */
function native(name, script) {
  const { stdout, status } = run(script, [], {
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
  });
  process.stdout.write(stdout ?? '');
  const match = /(\d+) passed, (\d+) failed\s*$/.exec(stdout ?? '');
  const counts = match
    ? { passed: Number(match[1]), failed: Number(match[2]), skipped: 0 }
    : { passed: 0, failed: 1, skipped: 0 };
  if (status !== 0 && counts.failed === 0) counts.failed = 1;
  add(name, counts);
}

/** What a suite must not leave on the machine. */
function footprint() {
  const lines = (text) => text.split('\n').filter(Boolean);
  const output = (command, args) => lines(spawnSync(command, args, { encoding: 'utf8' }).stdout ?? '');
  return {
    links: output('ip', ['-o', 'link']).map((l) => l.split(':')[1]?.trim()),
    'named network namespaces': output('ip', ['netns', 'list']),
    mounts: lines(readFileSync('/proc/self/mountinfo', 'utf8')).map((l) => l.split(' ')[4]),
    cgroups: existsSync('/sys/fs/cgroup')
      ? output('find', ['/sys/fs/cgroup', '-maxdepth', '4', '-type', 'd', '-path', '*kubepods*'])
      : [],
    processes: readdirSync('/proc')
      .filter((n) => /^\d+$/.test(n))
      .flatMap((pid) => {
        try {
          const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
          return /qemu-system|dist\/(agent|privhelper|test)/.test(command) ? [command] : [];
        } catch {
          return []; // ended between readdir and here
        }
      }),
  };
}

function leftovers(before, after) {
  return Object.keys(before).flatMap((kind) => {
    const known = [...before[kind]];
    return after[kind]
      .filter((entry) => {
        const at = known.indexOf(entry);
        if (at >= 0) known.splice(at, 1);
        return at < 0;
      })
      .map((entry) => `${kind}: ${entry}`);
  });
}

try {
  step('lint', 'npm', ['run', '--silent', 'lint']);
  const before = isRoot ? footprint() : undefined;
  vitest('unit');
  if (before === undefined) {
    process.stdout.write(
      '== skipped without root: native tests and fuzzing, integration, security, end-to-end, containers\n',
    );
    total.skipped += 6;
  } else {
    native('native (sanitizers)', 'native/test/run.sh');
    native('native (fuzzing)', 'native/fuzz/run.sh');
    vitest('root');
    vitest('deploy');
    const left = leftovers(before, footprint());
    for (const entry of left) process.stdout.write(`left behind: ${entry}\n`);
    add('nothing left behind', {
      passed: left.length === 0 ? 1 : 0,
      failed: left.length === 0 ? 0 : 1,
      skipped: 0,
    });
  }
} finally {
  rmSync(scratch, { recursive: true, force: true });
}
process.stdout.write(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped\n`);
process.exitCode = total.failed === 0 ? 0 : 1;
