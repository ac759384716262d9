/**
 * What ip(8), bridge(8), nft(8) and /proc/sys say of a pod's network, in KubeVirt's captures and in a pod, with
 * what differs from kernel to kernel and from run to run taken out.
 */
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

/** Titles of a capture's sections, and the commands whose output they hold. */
export const sections = {
  links: ['ip -d link', 'ip -d link'],
  addresses: ['ip addr', 'ip addr'],
  routes: ['routes4', 'ip route show table all'],
  routes6: ['routes6', 'ip -6 route show table all'],
  ports: ['bridge -d link', 'bridge -d link'],
} as const;

export const sysctls = [
  'ipv4/ip_forward',
  'ipv6/conf/all/forwarding',
  'ipv4/conf/all/arp_ignore',
  'ipv4/conf/k6t-eth0/route_localnet',
  'ipv4/ping_group_range',
  'ipv4/ip_unprivileged_port_start',
] as const;

/** Output of each command, sysctls as `name = value` lines. */
export type NetworkText = Readonly<Record<keyof typeof sections | 'sysctls', string>> & {
  /** Absent where the captured kernel had no nf_tables. */
  readonly ruleset?: string | undefined;
};

/** A network in comparable form: lines without order, by link where they are about one. */
export interface NetworkView {
  readonly links: Readonly<Record<string, readonly string[]>>;
  readonly addresses: Readonly<Record<string, readonly string[]>>;
  readonly ports: Readonly<Record<string, readonly string[]>>;
  readonly routes: readonly string[];
  readonly sysctls: readonly string[];
  readonly ruleset?: string;
}

/** The sections of `network/data/<file>.txt.gz` by title, for instance `bridge-after: ip addr`. */
export function loadCaptures(file: string): ReadonlyMap<string, string> {
  const packed = readFileSync(new URL(`network/data/${file}.txt.gz`, import.meta.url));
  const text = gunzipSync(packed)
    .toString('utf8')
    .replace(/^ALLDONE$/m, '');
  const parts = text.split(/^##### /m).slice(1);
  return new Map(
    parts.map((part) => {
      const end = part.indexOf('\n');
      return [part.slice(0, end), part.slice(end + 1)];
    }),
  );
}

/** The captured network of that name, for instance `bridge-after`. */
export function captured(captures: ReadonlyMap<string, string>, name: string): NetworkText {
  const section = (title: string) => {
    const text = captures.get(`${name}: ${title}`);
    if (text === undefined) throw new Error(`no section ${name}: ${title}`);
    return text;
  };
  const texts = Object.entries(sections).map(([key, [title]]) => [key, section(title)]);
  return {
    ...(Object.fromEntries(texts) as Record<keyof typeof sections, string>),
    sysctls: section('sysctl'),
    ruleset: captures.get(`${name.replace(/-after$/, '')}: nft`),
  };
}

/** Link addresses that are not random: those of the pod's links and of masquerade's bridge. */
const knownMacs = new Set([
  '0a:58:0a:f4:02:05',
  '02:00:00:aa:bb:cc',
  '02:00:00:00:00:00',
  '00:00:00:00:00:00',
]);
const knownLinkLocal = new Set(['fe80::858:aff:fef4:205', 'fe80::ff:feaa:bbcc', 'fe80::']);

const attributesOfKernels =
  /\b(cost|vlan_protocol|vlan_default_pvid|vlan_stats_enabled|vlan_stats_per_port|mcast_startup_query_interval) \S+/g;
const whatPasses = /\b\w+_timer +[\d.]+|\blink-netnsid \d+|\b(?:addrgenmode|numtxqueues).*|,M-DOWN\b/g;

function cleaned(line: string): string {
  return line
    .replaceAll(attributesOfKernels, '')
    .replaceAll(whatPasses, '')
    .replaceAll(/\b8000\.[0-9a-f:]+/g, '<bridge id>')
    .replaceAll(/\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b/g, (mac) =>
      knownMacs.has(mac) || mac.startsWith('ff:') || mac.startsWith('01:80:') ? mac : '<random>',
    )
    .replaceAll(/\bfe80::[0-9a-f:]*/g, (ip) => (knownLinkLocal.has(ip) ? ip : 'fe80::<random>'))
    .replaceAll(/\s+/g, ' ')
    .trim();
}

const lines = (text: string): string[] =>
  text
    .split('\n')
    .map(cleaned)
    .filter((line) => line !== '');
const sorted = (list: readonly string[]): string[] => [...new Set(list)].sort();

/** Blocks that begin with `2: eth0@if3: <FLAGS> …`, by link. */
function blocks(text: string): Record<string, string[]> {
  const found: Record<string, string[]> = {};
  let block: string[] = [];
  for (const raw of text.split('\n')) {
    const [, name, flags = '', rest = ''] = /^\d+: ([^:@]+)(?:@\S+)?: <(.*?)> (.*)$/.exec(raw) ?? [];
    if (name !== undefined) {
      block = [`${flags.replace(',M-DOWN', '').split(',').sort().join(',')} ${cleaned(rest)}`];
      found[name] = block;
    } else if (raw.startsWith(' ')) {
      const line = cleaned(raw);
      if (line !== '') block.push(line);
    }
  }
  return found;
}

function onlyAddresses(found: Readonly<Record<string, string[]>>): Record<string, string[]> {
  const about = ([head = '', ...rest]: string[]) => [head, ...rest.filter((line) => line.startsWith('inet'))];
  return Object.fromEntries(Object.entries(found).map(([name, block]) => [name, about(block)]));
}

export function networkView(text: NetworkText): NetworkView {
  return {
    links: blocks(text.links),
    addresses: onlyAddresses(blocks(text.addresses)),
    ports: blocks(text.ports),
    routes: sorted([...lines(text.routes), ...lines(text.routes6)]),
    sysctls: sorted(lines(text.sysctls)),
    ...(text.ruleset === undefined ? {} : { ruleset: text.ruleset.trim() }),
  };
}
