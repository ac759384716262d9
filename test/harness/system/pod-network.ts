/** What ip, nft and /proc/sys say of a pod's network namespace. */
import { runInNetns } from '../pods/network.js';
import type { Pod } from '../pods/pod.js';

export interface LinkFacts {
  readonly ifindex: number;
  readonly ifname: string;
  readonly flags: readonly string[];
  readonly mtu: number;
  readonly qdisc: string;
  readonly operstate: string;
  readonly address: string;
  readonly master?: string;
  readonly linkinfo?: {
    readonly info_kind?: string;
    readonly info_data?: Readonly<Record<string, unknown>>;
    readonly info_slave_kind?: string;
    readonly info_slave_data?: Readonly<Record<string, unknown>>;
  };
}

interface AddressFacts {
  readonly ifname: string;
  readonly addr_info: readonly {
    readonly local: string;
    readonly prefixlen: number;
    readonly broadcast?: string;
    readonly scope: string;
    readonly tentative?: boolean;
  }[];
}

interface RouteFacts {
  readonly type?: string;
  readonly dst: string;
  readonly gateway?: string;
  readonly dev: string;
  readonly table?: string;
  readonly prefsrc?: string;
  readonly flags: readonly string[];
}

export class PodNetwork {
  constructor(private readonly pod: Pod) {}

  /** Links by name, all that `ip -d -j link` says. */
  async links(): Promise<Map<string, LinkFacts>> {
    const links = (await this.#json('ip', '-d', '-j', 'link')) as LinkFacts[];
    return new Map(links.map((link) => [link.ifname, link]));
  }

  /** `10.0.2.1/24 brd 10.0.2.255 global` by link. */
  async addresses(): Promise<Record<string, string[]>> {
    const links = (await this.#json('ip', '-j', 'addr')) as AddressFacts[];
    return Object.fromEntries(
      links.map(({ ifname, addr_info }) => [
        ifname,
        addr_info.map(({ local, prefixlen, broadcast, scope }) =>
          [`${local}/${prefixlen}`, ...(broadcast === undefined ? [] : ['brd', broadcast]), scope].join(' '),
        ),
      ]),
    );
  }

  /** `default via 10.244.2.1 dev eth0`, `local 10.0.2.1 dev k6t-eth0 src 10.0.2.1 linkdown`, ...; of all tables. */
  async routes(family: '-4' | '-6'): Promise<string[]> {
    const routes = (await this.#json('ip', family, '-j', 'route', 'show', 'table', 'all')) as RouteFacts[];
    return routes.map(({ type, dst, gateway, dev, prefsrc, flags }) =>
      [
        ...(type === undefined ? [] : [type]),
        dst,
        ...(gateway === undefined ? [] : ['via', gateway]),
        ...['dev', dev],
        ...(prefsrc === undefined ? [] : ['src', prefsrc]),
        ...flags,
      ].join(' '),
    );
  }

  /** Names below net., for instance `ipv4.ip_forward`; the value has single spaces. */
  async sysctl(name: string): Promise<string> {
    const path = `/proc/sys/net/${name.replaceAll('.', '/')}`;
    return (await runInNetns(this.pod.pausePid, 'cat', [path])).trim().replaceAll(/\s+/g, ' ');
  }

  async setSysctl(name: string, value: string): Promise<void> {
    const path = `/proc/sys/net/${name.replaceAll('.', '/')}`;
    await runInNetns(this.pod.pausePid, 'sh', ['-c', 'echo "$1" >"$2"', 'sh', value, path]);
  }

  /** What `nft -j list ruleset` says, without handles, counts and what describes nft itself. */
  async ruleset(): Promise<unknown[]> {
    const { nftables } = (await this.#json('nft', '-j', 'list', 'ruleset')) as { nftables: unknown[] };
    return nftables
      .filter((entry) => !Object.hasOwn(entry as object, 'metainfo'))
      .map((entry) =>
        JSON.parse(JSON.stringify(entry), function (this: object, key, value) {
          if (key === 'handle') return undefined;
          return key === 'packets' || key === 'bytes' ? 0 : value;
        }),
      );
  }

  async #json(command: string, ...args: string[]): Promise<unknown> {
    return JSON.parse(await runInNetns(this.pod.pausePid, command, args));
  }
}
