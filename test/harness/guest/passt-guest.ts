/**
 * A guest behind passt: passt runs in the pod as the launcher's user, QEMU connects to its socket as it does
 * for a virtual machine and carries the frames to a link of a network namespace, whose kernel is the guest's.
 */
import { chownSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../pods/bundle.js';
import { runVariable } from '../pods/leftovers.js';
import { linkNames, runInNetns } from '../pods/network.js';
import type { HarnessNode } from '../pods/node.js';
import { type Pod, qemuUser } from '../pods/pod.js';
import { type Spawned, signal, start, waitFor } from '../pods/run.js';
import { Station } from './tap-guest.js';

const deadlineMs = 10_000;
/** Unlike any link of the namespace that QEMU starts in. */
const link = 'guest0';

interface Program extends Spawned {
  /** What it said so far. */
  readonly said: () => string;
}

function startQuietly(node: HarnessNode, command: string, args: readonly string[]): Program {
  const started = start(command, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: '/',
    env: { PATH: process.env['PATH'] ?? '', [runVariable]: node.runId },
  });
  let said = '';
  for (const stream of [started.child.stdout, started.child.stderr])
    stream?.on('data', (chunk: Buffer) => {
      said += chunk.toString();
    });
  return { ...started, said: () => said };
}

async function end({ pid, exited }: Program): Promise<void> {
  signal(pid, 'SIGKILL');
  await exited;
}

function failIfEnded(name: string, { child, said }: Program): void {
  if (child.exitCode !== null || child.signalCode !== null) throw new Error(`${name} ended: ${said()}`);
}

export interface Lease {
  /** CIDR. */
  readonly address: string;
  readonly gateway: string;
}

export class PasstGuest extends Station {
  private constructor(
    node: HarnessNode,
    private readonly qemu: Program,
    private readonly passt: Program,
    private readonly directory: string,
  ) {
    super(node, qemu.pid);
  }

  /** `ports`: TCP ports of the pod that passt listens on for the guest. */
  static async start(node: HarnessNode, pod: Pod, ports: readonly number[]): Promise<PasstGuest> {
    const directory = mkdtempSync(join(tmpdir(), 'passt-'));
    chownSync(directory, qemuUser, qemuUser);
    const socket = join(directory, 'passt.sock');
    const user = String(qemuUser);
    const passt = startQuietly(node, 'nsenter', [
      ...[`--net=/proc/${pod.pausePid}/ns/net`, '--', 'setpriv', '--reuid', user, '--regid', user],
      ...['--clear-groups', '--', 'passt', '--foreground', '--quiet', '--one-off', '--socket', socket],
      ...['--tcp-ports', ports.join(',')],
    ]);
    try {
      await waitFor("passt's socket", deadlineMs, () => {
        failIfEnded('passt', passt);
        return existsSync(socket);
      });
      const qemu = startQuietly(node, 'unshare', [
        ...['--net', '--', 'qemu-system-x86_64', '-machine', 'none', '-nodefaults', '-no-user-config'],
        ...['-display', 'none', '-monitor', 'none'],
        ...['-netdev', `stream,id=passt,server=off,addr.type=unix,addr.path=${socket}`],
        ...['-netdev', `tap,id=guest,ifname=${link},script=no,downscript=no`],
        ...['-netdev', 'hubport,id=port0,hubid=0,netdev=passt'],
        ...['-netdev', 'hubport,id=port1,hubid=0,netdev=guest'],
      ]);
      const guest = new PasstGuest(node, qemu, passt, directory);
      await guest.#plugIn().catch(async (error) => {
        await end(qemu);
        throw error;
      });
      return guest;
    } catch (error) {
      await end(passt);
      rmSync(directory, { recursive: true, force: true });
      throw error;
    }
  }

  async #plugIn(): Promise<void> {
    await waitFor("QEMU's link", deadlineMs, async () => {
      failIfEnded('QEMU', this.qemu);
      return (await linkNames(this.pid)).includes(link);
    });
    await this.ip('link', 'set', 'lo', 'up');
    await this.ip('link', 'set', link, 'up');
  }

  /** Asks for an IPv4 address and takes it. */
  async dhcp(): Promise<Lease> {
    const script = join(repositoryRoot(), 'test/harness/guest/udhcpc.sh');
    const said = await runInNetns(this.pid, 'udhcpc', [
      ...['-i', link, '-f', '-n', '-q', '-t', '5', '-T', '2', '-s', script],
    ]);
    const [, address, gateway] = /^lease (\S+) via (\S+)$/m.exec(said) ?? [];
    if (address === undefined || gateway === undefined) throw new Error(`no lease: ${said}`);
    return { address, gateway };
  }

  /**
   * Waits until the IPv6 address of the router advertisement may be used. What the guest sends before that has
   * its link's address, and passt takes the last address that it saw for the guest's: the unspecified one of
   * duplicate address detection as well.
   */
  async autoconfigured(): Promise<void> {
    await waitFor('an IPv6 address', 2 * deadlineMs, async () =>
      (await this.ip('-6', '-o', 'addr', 'show', 'dev', link, 'scope', 'global', '-tentative')).includes(
        link,
      ),
    );
  }

  async stop(): Promise<void> {
    await end(this.qemu);
    await end(this.passt);
    rmSync(this.directory, { recursive: true, force: true });
  }
}
