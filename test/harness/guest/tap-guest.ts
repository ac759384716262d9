/**
 * A guest without a machine: a network namespace whose links are joined with the taps of a pod, so that a real
 * kernel sends and receives what a virtual machine would.
 */
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { DhcpLease } from '../launcher/dhcp.js';
import { repositoryRoot } from '../pods/bundle.js';
import { runVariable } from '../pods/leftovers.js';
import { runInNetns } from '../pods/network.js';
import type { HarnessNode } from '../pods/node.js';
import { qemuUser } from '../pods/pod.js';
import { signal, start, waitFor } from '../pods/run.js';

const deadlineMs = 10_000;
const program = (name: string) => join(repositoryRoot(), 'test/harness/guest', name);

/** A program of Python's that says `ready`, and what it says after that. It ends with this process. */
async function startProgram(node: HarnessNode, netnsPid: number, name: string, args: readonly string[]) {
  const started = start(
    'nsenter',
    [`--net=/proc/${netnsPid}/ns/net`, '--', '/usr/bin/python3', program(name), ...args],
    {
      stdio: ['pipe', 'pipe', 'pipe'],
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '', [runVariable]: node.runId },
    },
  );
  const { child, pid, exited } = started;
  const lines: string[] = [];
  let problem = '';
  let ended = false;
  if (child.stdout === null || child.stderr === null) throw new Error(`${name} has no output`);
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(line));
  child.stderr.on('data', (chunk: Buffer) => {
    problem += chunk.toString();
  });
  // After all of its output.
  child.once('close', () => {
    ended = true;
  });
  const stop = async () => {
    if (!ended) signal(pid, 'SIGKILL');
    await exited;
  };
  await waitFor(`${name} to be ready`, deadlineMs, () => {
    if (ended) throw new Error(`${name} ended: ${problem}`);
    return lines.includes('ready');
  }).catch(async (error) => {
    await stop();
    throw error;
  });
  return { pid, lines, stop };
}

export interface Echo {
  /** Sizes of the requests that were answered, in order; empty when the last one was not. */
  readonly answered: readonly number[];
  /** Of the path to the address as the sender has learnt it, bytes; 0 without an answer. */
  readonly mtu: number;
}

/** What a guest has been told by DHCP. The routes are those of RFC 3442: network, prefix length, gateway. */
export interface GuestLease {
  readonly address: string;
  readonly mask: string;
  readonly router: string;
  readonly server: string;
  readonly mtu: number;
  readonly hostname: string;
  readonly routes: readonly (readonly [string, number, string])[];
}

/** A network namespace from which a test asks others and in which it answers. */
export class Station {
  /** `pid`: a process in the namespace. */
  constructor(
    protected readonly node: HarnessNode,
    readonly pid: number,
  ) {}

  ip(...args: string[]): Promise<string> {
    return runInNetns(this.pid, 'ip', args);
  }

  /** One echo request of each size: bytes of the whole packet, which is never fragmented. */
  async ping(address: string, ...sizes: number[]): Promise<Echo> {
    return JSON.parse(await this.#traffic('ping', address, ...sizes.map(String))) as Echo;
  }

  /** Waits for the first answer, which neighbours and duplicate address detection may delay. */
  async reach(address: string): Promise<void> {
    await waitFor(`an answer of ${address}`, 2 * deadlineMs, async () => {
      const { answered } = await this.ping(address, 84);
      return answered.length > 0;
    });
  }

  /** The address that the other side saw, `refused` or `silent`; once for each of `times` ports. */
  async ask(protocol: 'tcp' | 'udp', address: string, port: number, times = 1): Promise<string[]> {
    const answers = await this.#traffic('ask', protocol, address, String(port), String(times));
    return answers.trim().split('\n');
  }

  /** Answers on TCP and UDP ports. Resolves to what ends it. */
  async serve(...ports: number[]): Promise<() => Promise<void>> {
    const { stop } = await startProgram(this.node, this.pid, 'traffic.py', ['serve', ...ports.map(String)]);
    return stop;
  }

  /** Serves the lease in this namespace as the launcher of a pod does. Resolves to what ends it. */
  async serveLease(lease: DhcpLease): Promise<() => Promise<void>> {
    const { stop } = await startProgram(this.node, this.pid, '../launcher/dhcp-server.py', [
      JSON.stringify(lease),
    ]);
    return stop;
  }

  /** Asks for a lease on a link without an address; null when nobody answers within `seconds`. */
  async askLease(link: string, seconds: number): Promise<GuestLease | null> {
    const answer = await runInNetns(this.pid, '/usr/bin/python3', [
      program('dhcp-client.py'),
      link,
      String(seconds),
    ]);
    return JSON.parse(answer) as GuestLease | null;
  }

  /** Link address of a neighbour. */
  async neighbour(address: string): Promise<string | undefined> {
    const found = JSON.parse(await this.ip('-j', 'neigh', 'show', address)) as { lladdr?: string }[];
    return found[0]?.lladdr;
  }

  #traffic(...args: string[]): Promise<string> {
    return runInNetns(this.pid, '/usr/bin/python3', [program('traffic.py'), ...args]);
  }
}

export interface GuestNic {
  /** Name of a tap, or path of a macvtap's device. */
  readonly tap: string;
  /** Name of the link in the guest. */
  readonly link: string;
  readonly mac: string;
  readonly mtu: number;
  /** Queues of the tap that are opened (default 1). */
  readonly queues?: number;
  /** CIDRs. */
  readonly addresses: readonly string[];
  /** Of default routes. */
  readonly gateways?: readonly string[];
}

export class TapGuest extends Station {
  private constructor(
    node: HarnessNode,
    private readonly program: Awaited<ReturnType<typeof startProgram>>,
  ) {
    super(node, program.pid);
  }

  /** Opens the taps as the launcher's user. */
  static async start(node: HarnessNode, podPid: number, nics: readonly GuestNic[]): Promise<TapGuest> {
    const words = nics.flatMap(({ tap, link, queues = 1 }) => [tap, link, String(queues)]);
    const guest = new TapGuest(
      node,
      await startProgram(node, podPid, 'tap-guest.py', [String(qemuUser), ...words]),
    );
    try {
      for (const nic of nics) await guest.#configure(nic);
    } catch (error) {
      await guest.stop();
      throw error;
    }
    return guest;
  }

  async #configure({ link, mac, mtu, addresses, gateways = [] }: GuestNic): Promise<void> {
    await this.ip('link', 'set', link, 'address', mac, 'mtu', String(mtu), 'up');
    for (const address of addresses)
      await this.ip('addr', 'add', address, 'dev', link, ...(address.includes(':') ? ['nodad'] : []));
    for (const gateway of gateways)
      await this.ip(gateway.includes(':') ? '-6' : '-4', 'route', 'add', 'default', 'via', gateway);
  }

  /** Queues of a tap through which the pod has sent frames so far, in the order of first use. */
  usedQueues(tap: string): number[] {
    return this.program.lines
      .map((line) => line.split(' '))
      .filter(([word, name]) => word === 'queue' && name === tap)
      .map(([, , queue]) => Number(queue));
  }

  stop(): Promise<void> {
    return this.program.stop();
  }
}
