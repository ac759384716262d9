/** The stand-in launcher as a process of a pod. */
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FakeMachine } from './fake-machine.js';
import { parseFlags } from './flags.js';
import { Launcher, LauncherPanic } from './launcher.js';
import { launcherTimes } from './notifier.js';
import { QemuMachine } from './qemu-machine.js';

async function main(): Promise<number> {
  const flags = parseFlags(process.argv.slice(2));
  const log = (line: string) => process.stdout.write(`${new Date().toISOString()} launcher: ${line}\n`);
  if (flags.simulateCrash) throw new LauncherPanic('simulated crash');
  const launcher = new Launcher({
    namespace: flags.namespace,
    name: flags.name,
    uid: flags.uid,
    podName: process.env['POD_NAME'] ?? '',
    directories: {
      share: flags.shareDirectory,
      privateDirectory: '/var/run/kubevirt-private',
      run: '/var/run/libvirt/qemu/run',
      links: '/sys/class/net',
    },
    times: {
      qemuTimeoutMs: flags.qemuTimeoutMs,
      gracePeriodMs: flags.gracePeriodMs,
      finalMs: [15_000, 30_000],
      killEveryMs: 1000,
      notifier: launcherTimes,
    },
    faults: flags.faults,
    lateMetadata: flags.lateMetadata,
    createMachine: (listener) =>
      flags.machine === 'fake' ? new FakeMachine(listener, flags.obeyAcpi) : new QemuMachine(listener),
    dhcpProgram:
      flags.machine === 'fake' ? undefined : join(dirname(fileURLToPath(import.meta.url)), 'dhcp-server.py'),
    log,
  });
  for (const name of ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGQUIT'] as const)
    process.on(name, () => launcher.requestStop());
  await launcher.run();
  log('end');
  return 0;
}

main().then(
  (code) => process.exit(code),
  (error: Error) => {
    process.stderr.write(`panic: ${error.stack ?? error.message}\n`);
    process.exit(2);
  },
);
