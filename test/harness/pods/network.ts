/** The node's pod network: a bridge in a network namespace of its own, as a bridge CNI would make it. */
import { run } from './run.js';

/** Runs a program in the network namespace of a process. */
export function runInNetns(pid: number, command: string, args: readonly string[]): Promise<string> {
  return run('nsenter', [`--net=/proc/${pid}/ns/net`, '--', command, ...args]);
}

export interface PodLink {
  readonly podIP: string;
  readonly prefixLength: number;
  readonly gateway: string;
  readonly mac: string;
  readonly mtu: number;
}

/** `0a:58` and the address, as the bridge and ptp CNI plugins choose it. */
export function macOf(podIP: string): string {
  const bytes = podIP.split('.').map((part) => Number(part).toString(16).padStart(2, '0'));
  return ['0a', '58', ...bytes].join(':');
}

/** Gives the node's namespace its bridge with the gateway's address. */
export async function setUpNodeNetwork(
  nodePid: number,
  gateway: string,
  prefixLength: number,
  mtu: number,
): Promise<void> {
  await runInNetns(nodePid, 'ip', ['link', 'set', 'lo', 'up']);
  await runInNetns(nodePid, 'ip', ['link', 'add', 'cni0', 'mtu', String(mtu), 'type', 'bridge']);
  await runInNetns(nodePid, 'ip', ['addr', 'add', `${gateway}/${prefixLength}`, 'dev', 'cni0']);
  await runInNetns(nodePid, 'ip', ['link', 'set', 'cni0', 'up']);
}

/** CNI ADD: a veth pair between the pod and the node's bridge, address, default route. */
export async function connectPod(
  nodePid: number,
  podPid: number,
  hostLink: string,
  link: PodLink,
): Promise<void> {
  const mtu = String(link.mtu);
  await runInNetns(nodePid, 'sh', [
    '-c',
    'ip link add "$1" mtu "$2" type veth peer name eth0 address "$3" mtu "$2" netns "$4" && ip link set "$1" master cni0 up',
    'sh',
    hostLink,
    mtu,
    link.mac,
    String(podPid),
  ]);
  // The container runtime lets unprivileged processes open low ports (the launcher's DHCP server needs 67).
  await runInNetns(podPid, 'sh', [
    '-c',
    'ip link set lo up && ip addr add "$1" brd + dev eth0 && ip link set eth0 up && ip route add default via "$2" && echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start',
    'sh',
    `${link.podIP}/${link.prefixLength}`,
    link.gateway,
  ]);
}

/** CNI ADD of one more network, as Multus has it done: a veth pair to the node's bridge. */
export async function plugLink(
  nodePid: number,
  podPid: number,
  hostLink: string,
  link: { readonly name: string; readonly mac: string; readonly mtu: number; readonly address?: string },
): Promise<void> {
  await runInNetns(nodePid, 'sh', [
    '-c',
    'ip link add "$1" mtu "$2" type veth peer name "$3" address "$4" mtu "$2" netns "$5" && ip link set "$1" master cni0 up',
    'sh',
    hostLink,
    String(link.mtu),
    link.name,
    link.mac,
    String(podPid),
  ]);
  await runInNetns(podPid, 'sh', [
    '-c',
    'ip link set "$1" up && { [ -z "$2" ] || ip addr add "$2" brd + dev "$1"; }',
    'sh',
    link.name,
    link.address ?? '',
  ]);
}

/** CNI DEL: the node's end of the pair takes the pod's end with it. */
export async function disconnectPod(nodePid: number, hostLink: string): Promise<void> {
  await runInNetns(nodePid, 'sh', ['-c', 'ip link del "$1" 2>/dev/null || true', 'sh', hostLink]);
}

/** Names of the links in a network namespace. */
export async function linkNames(pid: number): Promise<string[]> {
  const links = JSON.parse(await runInNetns(pid, 'ip', ['-json', 'link'])) as { ifname: string }[];
  return links.map((link) => link.ifname);
}
