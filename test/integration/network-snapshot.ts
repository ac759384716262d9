/** A pod's network attribute by attribute, without what differs from run to run. */
import { runInNetns } from '../harness/pods/network.js';
import type { Pod } from '../harness/pods/pod.js';

interface IpLink {
  readonly ifname: string;
  readonly flags: readonly string[];
  readonly mtu: number;
  readonly master?: string;
  readonly address: string;
  readonly linkinfo?: {
    readonly info_kind?: string;
    readonly info_data?: Readonly<Record<string, unknown>>;
    readonly info_slave_data?: Readonly<Record<string, unknown>>;
  };
  readonly addr_info: readonly {
    readonly local: string;
    readonly prefixlen: number;
    readonly broadcast?: string;
    readonly scope: string;
  }[];
}
interface IpRoute {
  readonly type?: string;
  readonly dst: string;
  readonly gateway?: string;
  readonly dev: string;
  readonly protocol?: string;
  readonly prefsrc?: string;
}

const masqueradeMac = '02:00:00:00:00:00';
const portFlags = ['learning', 'flood', 'hairpin', 'guard', 'isolated', 'neigh_suppress', 'group_fwd_mask'];
const bridgeSettings = [
  'stp_state',
  'vlan_filtering',
  'mcast_snooping',
  'group_fwd_mask',
  'nf_call_iptables',
];
const sysctls = [
  'ipv4/ip_forward',
  'ipv4/conf/all/arp_ignore',
  'ipv4/ping_group_range',
  'ipv4/ip_unprivileged_port_start',
  'ipv6/conf/all/forwarding',
];

function pick(from: Readonly<Record<string, unknown>> | undefined, names: readonly string[]) {
  return Object.fromEntries(names.map((name) => [name, from?.[name]]));
}

function shownLink(link: IpLink, bridgeMacs: ReadonlySet<string>) {
  const kind = link.linkinfo?.info_kind;
  const data = link.linkinfo?.info_data;
  // A bridge's own MAC is random, and its first port has the same, also once it is unplugged. So is a tap's.
  const unplugged = link.ifname.endsWith('-nic') && link.master === undefined;
  const mac = unplugged || bridgeMacs.has(link.address) ? 'of the bridge' : link.address;
  const up = link.flags.includes('UP');
  return {
    name: link.ifname,
    kind,
    up,
    mtu: link.mtu,
    mac: kind === 'tun' ? '' : mac,
    master: link.master,
    port: link.master === undefined ? undefined : pick(link.linkinfo?.info_slave_data, portFlags),
    bridge: kind === 'bridge' ? pick(data, bridgeSettings) : undefined,
    tap:
      kind === 'tun'
        ? pick(data, ['type', 'pi', 'vnet_hdr', 'multi_queue', 'persist', 'user', 'group'])
        : undefined,
    addresses: link.addr_info
      // The kernel makes those of links that are up, from their MACs and when there is a carrier.
      .filter(({ local }) => !up || !local.startsWith('fe80'))
      .map(({ local, prefixlen, broadcast, scope }) => ({ local, prefixlen, broadcast, scope })),
  };
}

/** Links but lo and the other ends of pod links (`p<index>`), addresses, routes, kernel parameters, NAT rules. */
export async function networkSnapshot(pod: Pod) {
  const run = (command: string, ...args: string[]) => runInNetns(pod.pausePid, command, args);
  const all = JSON.parse(await run('ip', '-d', '-j', 'addr')) as IpLink[];
  const links = all.filter(({ ifname }) => ifname !== 'lo' && !/^p\d+$/.test(ifname));
  const bridges = links.filter(({ ifname }) => ifname.startsWith('k6t-'));
  const bridgeMacs = new Set(bridges.map(({ address }) => address).filter((mac) => mac !== masqueradeMac));
  const routes = await Promise.all(
    ['-4', '-6'].map(async (family) =>
      JSON.parse(await run('ip', family, '-j', 'route', 'show', 'table', 'all')),
    ),
  );
  const files = [...sysctls, ...links.map(({ ifname }) => `ipv4/conf/${ifname}/route_localnet`)].map(
    (name) => `/proc/sys/net/${name}`,
  );
  return {
    links: links
      .map((link) => shownLink(link, bridgeMacs))
      .sort((one, other) => one.name.localeCompare(other.name)),
    routes: (routes.flat() as IpRoute[])
      .filter(({ dst, type }) => !/^(fe80|ff00)/.test(dst) && type !== 'multicast' && type !== 'anycast')
      .map(({ type, dst, gateway, dev, protocol, prefsrc }) =>
        [type, dst, gateway, dev, protocol, prefsrc].map((part) => part ?? '-').join(' '),
      )
      .sort(),
    rules: await run('nft', '-n', '-s', 'list', 'ruleset'),
    sysctls: (await run('grep', '-H', '', ...files)).trim().split('\n').sort(),
  };
}
