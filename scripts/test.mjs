// Runs every suite, what needs no machine of its own side by side, shows the output of each in one piece and how long
// each took, and ends with one line that sums them all.
// A suite that breaks before it counts anything counts as one failure.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';

const scratch = mkdtempSync(join(tmpdir(), 'virt-privsep-test-'));
const total = { passed: 0, failed: 0, skipped: 0 };
/** Of suites and of test files, in the order in which they ended. */
const times = { suites: [], files: [] };
/** What failed and how, for the end, where it is found. */
const failures = [];
const maxFailureLines = 12;
const slowest = 10;
const isRoot = process.getuid?.() === 0;

function add(name, counts) {
  for (const key of Object.keys(total)) total[key] += counts[key];
  process.stdout.write(
    `== ${name}: ${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`,
  );
}

/** Runs a program to its end. With `live` its output is shown as it comes, otherwise when it has ended. `said`: on stdout. */
async function run(name, command, args, live = false) {
  const started = performance.now();
  const child = spawn(command, args, {
    stdio: live ? ['ignore', 'inherit', 'inherit'] : ['ignore', 'pipe', 'pipe'],
  });
  const chunks = [];
  let said = '';
  child.stdout?.on('data', (chunk) => {
    said += chunk;
    chunks.push(chunk);
  });
  child.stderr?.on('data', (chunk) => chunks.push(chunk));
  const status = await new Promise((resolve) => {
    child.once('error', (error) => {
      chunks.push(Buffer.from(`${command}: ${error.message}\n`));
      resolve(null);
    });
    child.once('close', resolve);
  });
  process.stdout.write(Buffer.concat(chunks));
  times.suites.push({ name, seconds: (performance.now() - started) / 1000 });
  return { status, said };
}

async function step(name, command, args) {
  const failed = (await run(name, command, args)).status === 0 ? 0 : 1;
  if (failed > 0) failures.push(name);
  add(name, { passed: 1 - failed, failed, skipped: 0 });
}

async function vitest(project, live) {
  const report = join(scratch, `${project}.json`);
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
  const { status } = await run(project, 'npx', ['vitest', 'run', '--project', project, ...reporters], live);
  if (!existsSync(report)) {
    failures.push(`${project}: vitest has written no report`);
    return add(project, { passed: 0, failed: 1, skipped: 0 });
  }
  const result = JSON.parse(readFileSync(report, 'utf8'));
  for (const { name, startTime, endTime, message, assertionResults } of result.testResults) {
    const file = relative('.', name);
    times.files.push({ name: file, seconds: (endTime - startTime) / 1000 });
    if (message) failures.push(`${file}: ${brief(message)}`);
    for (const { status, fullName, failureMessages } of assertionResults) {
      if (status === 'failed') failures.push(`${file}: ${fullName}\n${brief(failureMessages.join('\n'))}`);
    }
  }
  const brokenFiles = result.testResults.filter(
    (f) => f.status === 'failed' && f.assertionResults.every(({ status }) => status !== 'failed'),
  ).length;
  const failed = result.numFailedTests + brokenFiles;
  add(project, {
    passed: result.numPassedTests,
    failed: status !== 0 && failed === 0 ? 1 : failed,
    skipped: result.numPendingTests + result.numTodoTests,
  });
}

function brief(text) {
  return text.split('\n').slice(0, maxFailureLines).join('\n');
}

/** A script that ends with "N passed, N failed". */
async function native(name, script) {
  const { said, status } = await run(name, script, []);
  const match = /(\d+) passed, (\d+) failed\s*$/.exec(said);
  const counts = match
    ? { passed: Number(match[1]), failed: Number(match[2]), skipped: 0 }
    : { passed: 0, failed: 1, skipped: 0 };
  if (status !== 0 && counts.failed === 0) counts.failed = 1;
  if (counts.failed > 0) failures.push(`${name}: see its output above`);
  add(name, counts);
}

function showTimes() {
  const rows = (list) =>
    list.map(({ name, seconds }) => `${seconds.toFixed(0).padStart(6)}  ${name}\n`).join('');
  const files = times.files.sort((a, b) => b.seconds - a.seconds).slice(0, slowest);
  process.stdout.write(`== seconds of each suite\n${rows(times.suites)}`);
  process.stdout.write(`== seconds of the ${files.length} slowest files\n${rows(files)}`);
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
      ? output('find', [
          '/sys/fs/cgroup',
          '-maxdepth',
          '7',
          '-type',
          'd',
          '(',
          '-name',
          'kubepods*',
          '-o',
          '-name',
          'vitest-*',
          ')',
        ])
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
  const before = isRoot ? footprint() : undefined;
  const plain = async () => {
    await step('lint', 'npm', ['run', '--silent', 'lint']);
    await vitest('unit', false);
  };
  if (before === undefined) {
    await plain();
    process.stdout.write(
      '== skipped without root: native tests and fuzzing, integration, security, end-to-end, containers\n',
    );
    total.skipped += 6;
  } else {
    await Promise.all([
      plain(),
      native('native (sanitizers)', 'native/test/run.sh').then(() =>
        native('native (fuzzing)', 'native/fuzz/run.sh'),
      ),
    ]);
    // From here on there is no network but the tests' own.
    await step('kernel for the tests of SELinux', 'native/test/vm_kernel.sh', []);
    await Promise.all([vitest('root', true), vitest('deploy', false)]);
    const left = leftovers(before, footprint());
    failures.push(...left.map((entry) => `left behind: ${entry}`));
    add('nothing left behind', {
      passed: left.length === 0 ? 1 : 0,
      failed: left.length === 0 ? 0 : 1,
      skipped: 0,
    });
  }
  showTimes();
  for (const failure of failures) process.stdout.write(`== failed: ${failure}\n`);
} finally {
  rmSync(scratch, { recursive: true, force: true });
}
process.stdout.write(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped\n`);
process.exitCode = total.failed === 0 ? 0 : 1;
