/**
 * Process 1 of a compute container: starts the launcher, passes signals on, and cleans up after it
 * (KubeVirt cmd/virt-launcher-monitor). QEMU daemonizes and so becomes this process's child.
 */
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseFlags } from './flags.js';

const qemuWaitMs = 10_000;

async function main(): Promise<number> {
  const args = process.argv.slice(2);
  const flags = parseFlags(args);
  const program = join(dirname(fileURLToPath(import.meta.url)), 'launcher.mjs');
  const launcher = spawn(process.execPath, [program, ...args], { stdio: 'inherit' });
  for (const name of ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGQUIT'] as const)
    process.on(name, () => launcher.kill(name));
  const code = await new Promise<number>((resolve) => launcher.once('exit', (exit) => resolve(exit ?? 1)));
  const survived = await endQemu();
  removeContainerDiskSockets(flags.containerDiskDirectory);
  return code === 0 && survived ? 1 : code;
}

/** Terminates what is left of QEMU. True when it did not end. */
async function endQemu(): Promise<boolean> {
  const pids = liveQemu();
  for (const pid of pids) process.kill(pid, 'SIGTERM');
  const deadline = performance.now() + qemuWaitMs;
  while (pids.some(alive)) {
    if (performance.now() > deadline) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}

function liveQemu(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => stat(pid)?.command.startsWith('qemu-system') === true && alive(pid));
}

/** A zombie does not live: nobody collects the exit status of a daemon here. */
function alive(pid: number): boolean {
  const state = stat(pid)?.state;
  return state !== undefined && state !== 'Z' && state !== 'X';
}

function stat(pid: number): { command: string; state: string } | undefined {
  try {
    const [, command, state] = /^\d+ \((.*)\) (\S)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return command === undefined || state === undefined ? undefined : { command, state };
  } catch {
    return undefined;
  }
}

/** Their disappearance ends the container-disk containers. */
function removeContainerDiskSockets(directory: string): void {
  for (const name of readdirSync(directory)) {
    if (name.endsWith('.sock')) rmSync(join(directory, name), { force: true });
  }
}

main().then(
  (code) => process.exit(code),
  (error: Error) => {
    process.stderr.write(`monitor: ${error.stack ?? error.message}\n`);
    process.exit(1);
  },
);
