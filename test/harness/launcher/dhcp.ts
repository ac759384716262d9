/** The launcher's DHCP servers: one a bridge of the pod, each a small process bound to that bridge. */
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Vmi } from '../../../agent/api/vmi.js';
import { interfaceLinks } from './vmi-machine.js';

/** What the server hands out. The field names are the arguments of dhcp-server.py. */
export interface DhcpLease {
  readonly interface: string;
  readonly mac: string;
  readonly server: string;
  readonly address: string;
  readonly mask: string;
  readonly gateway: string;
  /** Routes besides the default one. */
  readonly routes: readonly {
    readonly network: string;
    readonly prefixLength: number;
    readonly gateway: string;
  }[];
  readonly mtu: number;
  readonly hostname: string;
  readonly nameservers: readonly string[];
  readonly bootFileName: string;
  readonly tftpServerName: string;
}

/** The node agent's note about a bridge-bound interface (`vif-cache-<pod interface>.json`). */
export interface VifCache {
  readonly IP: '' | { readonly IP: string; readonly Mask: string };
  readonly MAC: string | null;
  readonly Gateway: string;
  readonly IPAMDisabled: boolean;
  readonly Routes:
    | readonly { readonly Dst: { readonly IP: string; readonly Mask: string } | null; readonly Gw: string }[]
    | null;
}

const readyTimeoutMs = 10_000;
type VmiInterface = NonNullable<Vmi['spec']['domain']['devices']['interfaces']>[number];

function number(address: string): number {
  return address.split('.').reduce((sum, part) => sum * 256 + Number(part), 0);
}

function dotted(value: number): string {
  return [24, 16, 8, 0].map((shift) => Math.floor(value / 2 ** shift) % 256).join('.');
}

function maskOf(prefixLength: number): string {
  return dotted(2 ** 32 - 2 ** (32 - prefixLength));
}

/** A network for a gateway and a guest. Throws with the launcher's texts. */
function parseNetwork(cidr: string): { network: number; prefixLength: number } {
  const [, address = '', prefix = ''] = /^(\d{1,3}(?:\.\d{1,3}){3})\/(\d{1,2})$/.exec(cidr) ?? [];
  const prefixLength = Number(prefix);
  if (address === '' || prefixLength > 32) throw new Error(`invalid CIDR address: ${cidr}`);
  if (prefixLength > 30) throw new Error('less than 4 addresses on network');
  const size = 2 ** (32 - prefixLength);
  return { network: Math.floor(number(address) / size) * size, prefixLength };
}

/** Of a mask in base64. */
function prefixLengthOf(mask: string): number {
  return [...Buffer.from(mask, 'base64')].reduce(
    (sum, byte) => sum + byte.toString(2).replaceAll('0', '').length,
    0,
  );
}

/** The lease for one interface; undefined where the guest gets none from the launcher. */
export function leaseFor(
  vmi: Vmi,
  given: VmiInterface,
  index: number,
  readVifCache: (podInterface: string) => VifCache,
  readLink: (link: string, attribute: 'address' | 'mtu') => string,
  nameservers: readonly string[],
): DhcpLease | undefined {
  const links = interfaceLinks(vmi, given.name);
  const common = {
    interface: links.bridge,
    mtu: Number(readLink(links.podInterface, 'mtu')),
    hostname: vmi.spec.hostname ?? vmi.metadata.name,
    nameservers,
    bootFileName: given.dhcpOptions?.bootFileName ?? '',
    tftpServerName: given.dhcpOptions?.tftpServerName ?? '',
  };
  if (given.bridge !== undefined) {
    const cache = readVifCache(links.podInterface);
    if (cache.IPAMDisabled || cache.IP === '') return undefined;
    return {
      ...common,
      mac:
        given.macAddress ??
        Buffer.from(cache.MAC ?? '', 'base64')
          .toString('hex')
          .replace(/..(?!$)/g, '$&:'),
      server: `169.254.75.1${index}`,
      address: cache.IP.IP,
      mask: [...Buffer.from(cache.IP.Mask, 'base64')].join('.'),
      gateway: cache.Gateway,
      routes: (cache.Routes ?? []).flatMap(({ Dst, Gw }) =>
        Dst === null || Gw === ''
          ? []
          : [{ network: Dst.IP, prefixLength: prefixLengthOf(Dst.Mask), gateway: Gw }],
      ),
    };
  }
  if (given.masquerade !== undefined) {
    const pod = vmi.spec.networks?.find((each) => each.name === given.name)?.pod;
    const { network, prefixLength } = parseNetwork(pod?.vmNetworkCIDR ?? '10.0.2.0/24');
    return {
      ...common,
      mac: given.macAddress ?? readLink(links.podInterface, 'address'),
      server: dotted(network + 1),
      address: dotted(network + 2),
      mask: maskOf(prefixLength),
      gateway: dotted(network + 1),
      routes: [],
    };
  }
  return undefined;
}

export class DhcpServers {
  readonly #children = new Map<string, ChildProcess>();

  constructor(
    private readonly program: string | undefined,
    private readonly directories: { readonly privateDirectory: string; readonly links: string },
    private readonly log: (line: string) => void,
  ) {}

  /** Starts the servers that the VMI's interfaces need. Resolves when all listen. */
  async start(vmi: Vmi): Promise<void> {
    if (this.program === undefined) return;
    const interfaces = vmi.spec.domain.devices.interfaces ?? [];
    for (const [index, given] of interfaces.entries()) {
      const lease = leaseFor(
        vmi,
        given,
        index,
        (podInterface) =>
          JSON.parse(
            readFileSync(join(this.directories.privateDirectory, `vif-cache-${podInterface}.json`), 'utf8'),
          ) as VifCache,
        (link, attribute) => readFileSync(join(this.directories.links, link, attribute), 'utf8').trim(),
        nameservers(),
      );
      if (lease === undefined || this.#children.has(lease.interface)) continue;
      await this.#spawn(this.program, lease);
    }
  }

  #spawn(program: string, lease: DhcpLease): Promise<void> {
    const child = spawn('/usr/bin/python3', [program, JSON.stringify(lease)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#children.set(lease.interface, child);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`DHCP server on ${lease.interface}: no sign of life`)),
        readyTimeoutMs,
      );
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        for (const line of text.trim().split('\n')) this.log(`dhcp ${lease.interface}: ${line}`);
        clearTimeout(timer);
        resolve();
      });
      child.once('exit', (code) => {
        clearTimeout(timer);
        this.#children.delete(lease.interface);
        reject(new Error(`DHCP server on ${lease.interface} ended with ${code}`));
      });
    });
  }

  stop(): void {
    for (const child of this.#children.values()) child.kill('SIGTERM');
  }
}

function nameservers(): string[] {
  try {
    return readFileSync('/etc/resolv.conf', 'utf8')
      .split('\n')
      .flatMap((line) => /^nameserver\s+(\d+\.\d+\.\d+\.\d+)\s*$/.exec(line)?.slice(1) ?? []);
  } catch {
    return [];
  }
}
