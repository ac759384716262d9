/** Puts a pod's network into a recorded state with ip(8), as far as a kernel can be told to. */
import { runInNetns } from '../harness/pods/network.js';
import type { Pod } from '../harness/pods/pod.js';
import { kernelHasDummy } from './network-fixture.js';

export interface RecordedLink {
  readonly name: string;
  readonly index: number;
  readonly type: string;
  readonly operState: string;
  readonly mac: string;
  readonly mtu: number;
  readonly addrs?: readonly string[];
  readonly master?: string;
  readonly portLearning?: boolean;
}
export interface RecordedRoute {
  readonly dst?: string;
  readonly gw?: string;
  readonly link: string;
  readonly table: number;
}

const mainTable = 254;
/** Of links that a recorded one needs: the other end of a veth pair, what a macvlan is on. */
const helperIndex = 100;

/** Of a link's kind; the kernel of the tests may have no dummies. */
export async function dummyKind(): Promise<string> {
  return (await kernelHasDummy()) ? 'dummy' : 'bridge';
}

function created({ name, index, type, mac, mtu }: RecordedLink, dummy: string): string[] {
  const link = `link add ${name} index ${index} mtu ${mtu} address ${mac}`;
  const other = `p${index}`;
  switch (type) {
    case 'veth':
      return [
        `${link} type veth peer name ${other} index ${helperIndex + index} mtu ${mtu}`,
        `link set ${other} addrgenmode none`,
      ];
    case 'macvlan':
      return [
        `link add ${other} index ${helperIndex + index} mtu ${mtu} type veth peer name q${index}`,
        ...[other, `q${index}`].flatMap((name) => [
          `link set ${name} addrgenmode none`,
          `link set ${name} up`,
        ]),
        `${link} link ${other} type macvlan`,
      ];
    case 'bridge':
    case 'dummy':
      return [`${link} type ${type === 'dummy' ? dummy : type}`];
    case 'tap':
      return [
        `tuntap add dev ${name} mode tap user 107 group 107 pi`,
        `link set ${name} address ${mac} mtu ${mtu}`,
      ];
    case 'tun':
      return [`tuntap add dev ${name} mode tun`];
    default:
      throw new Error(`link ${name} of kind ${type}`);
  }
}

/** Admin state and carrier that lead to the operational state; the others cannot be had. */
function brought({ name, index, type, operState }: RecordedLink): string[] {
  const up = ['up', 'lower-layer-down', 'dormant'].includes(operState) || type === 'tap';
  return [
    ...(operState === 'dormant' ? [`link set ${name} mode dormant`] : []),
    ...(type === 'veth' && ['up', 'dormant'].includes(operState) ? [`link set p${index} up`] : []),
    ...(up ? [`link set ${name} up`] : []),
  ];
}

function addressed({ name, addrs = [] }: RecordedLink): string[] {
  const ipv6 = addrs.filter((address) => address.includes(':'));
  const ipv4 = addrs.filter((address) => !address.includes(':'));
  return [
    ...ipv4.map((address) => `addr add ${address} brd + dev ${name}`),
    // The kernel lists the newest first, and adds their routes once more when it notices a carrier.
    ...ipv6.reverse().map((address) => `addr add ${address} dev ${name} nodad noprefixroute`),
  ];
}

function routed({ dst, gw, link, table }: RecordedRoute): string {
  const family = (dst ?? gw ?? '').includes(':') ? '-6' : '-4';
  const via = gw === undefined ? '' : `via ${gw}`;
  const into = table === mainTable ? '' : `table ${table}`;
  return `ip ${family} route add ${dst ?? 'default'} ${via} dev ${link} ${into}`;
}

/** Other than what any set-up makes of them. */
const untouched: Readonly<Record<string, string>> = {
  'net/ipv4/ip_forward': '0',
  'net/ipv4/conf/all/arp_ignore': '0',
  'net/ipv4/ping_group_range': '1 0',
  'net/ipv4/ip_unprivileged_port_start': '1024',
  'net/ipv6/conf/all/forwarding': '0',
};

/** Replaces all links but lo, with all that goes with them, and takes NAT rules away. There are the recorded routes and no others. */
export async function arrange(
  pod: Pod,
  links: readonly RecordedLink[],
  routes: readonly RecordedRoute[] = [],
  sysctls: Readonly<Record<string, string>> = {},
): Promise<void> {
  const dummy = await dummyKind();
  const made = links.filter(({ name }) => name !== 'lo');
  const linked = made.filter(({ type }) => type !== 'tun');
  const batch = [
    ...made.flatMap((link) => created(link, dummy)),
    ...linked.map(({ name }) => `link set ${name} addrgenmode none`),
    ...made.flatMap(({ name, master }) =>
      master === undefined ? [] : [`link set ${name} master ${master}`],
    ),
    ...made.flatMap(brought),
    ...made.flatMap(addressed),
  ];
  // A gateway must be on a link.
  const ordered = [...routes].sort((one, other) => Number('gw' in one) - Number('gw' in other));
  const fixed = made.filter(({ portLearning, master }) => portLearning === false && master !== undefined);
  const script = `set -e
    ip -o link | sed -n 's/^[0-9]*: \\([^:@]*\\).*/link del \\1/p' | grep -v ' lo$' | ip -force -batch - 2>/dev/null || true
    nft flush ruleset
    ip link set lo up
    ip -batch - <<.
${batch.join('\n')}
.
    ip -4 route flush table main
    ip -6 route flush table main
    ${ordered.map(routed).join('\n')}
    ${fixed.map(({ name }) => `bridge link set dev ${name} learning off`).join('\n')}
    ${Object.entries({ ...untouched, ...sysctls })
      .map(([name, value]) => `echo ${value} >/proc/sys/${name}`)
      .join('\n')}`;
  await runInNetns(pod.pausePid, 'sh', ['-c', script]);
}
