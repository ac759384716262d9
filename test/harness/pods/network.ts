/** The node's pod network: a bridge in a network namespace of its own, as a bridge CNI would make it. */
import { run } from './run.js';

/** Runs a program in the network namespace of a process. */
export function runInNetns(pid: number, command: string, args: readonly string[]): Promise<string> {
  return run('nsenter', [`--net=/proc/${pid}/ns/net`, '--', command, ...args]);
}

/** Gives ip(8) several orders at once, in the network namespace of a process. It stops at the first that fails. */
export function ipInNetns(pid: number, orders: readonly string[]): Promise<string> {
  const args = [`--net=/proc/${pid}/ns/net`, '--', 'ip', '-batch', '-'];
  return run('nsenter', args, { input: `${orders.join('\n')}\n` });
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
  await ipInNetns(nodePid, [
    'link set lo up',
    `link add cni0 mtu ${mtu} type bridge`,
    `addr add ${gateway}/${prefixLength} dev cni0`,
    'link set cni0 up',
  ]);
}

/** CNI ADD: a veth pair between the pod and the node's bridge, address, default route. */
export async function connectPod(
  nodePid: number,
  podPid: number,
  hostLink: string,
  link: PodLink,
): Promise<void> {
  await addPair(nodePid, podPid, hostLink, { ...link, name: 'eth0' });
  await ipInNetns(podPid, [
    'link set lo up',
    `addr add ${link.podIP}/${link.prefixLength} brd + dev eth0`,
    'link set eth0 up',
    `route add default via ${link.gateway}`,
  ]);
}

interface Link {
  readonly name: string;
  readonly mac: string;
  readonly mtu: number;
}

/** CNI ADD of one more network, as Multus has it done: a veth pair to the node's bridge. */
export async function plugLink(
  nodePid: number,
  podPid: number,
  hostLink: string,
  link: Link & { readonly address?: string },
): Promise<void> {
  await addPair(nodePid, podPid, hostLink, link);
  const address = link.address === undefined ? [] : [`addr add ${link.address} brd + dev ${link.name}`];
  await ipInNetns(podPid, [`link set ${link.name} up`, ...address]);
}

async function addPair(
  nodePid: number,
  podPid: number,
  hostLink: string,
  { name, mac, mtu }: Link,
): Promise<void> {
  await ipInNetns(nodePid, [
    `link add ${hostLink} mtu ${mtu} type veth peer name ${name} address ${mac} mtu ${mtu} netns ${podPid}`,
    `link set ${hostLink} master cni0 up`,
  ]);
}

/** CNI DEL: the node's end of the pair takes the pod's end with it. */
export async function disconnectPod(nodePid: number, hostLink: string): Promise<void> {
  await runInNetns(nodePid, 'ip', ['link', 'del', hostLink]).catch((error: Error) => {
    if (!/Cannot find device|No such device/.test(error.message)) throw error;
  });
}

/** Names of the links in a network namespace. */
export async function linkNames(pid: number): Promise<string[]> {
  const links = JSON.parse(await runInNetns(pid, 'ip', ['-json', 'link'])) as { ifname: string }[];
  return links.map((link) => link.ifname);
}
