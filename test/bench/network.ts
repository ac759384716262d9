/** The same pod network made by forking ip(8) and nft(8). */
import { run } from '../harness/pods/run.js';
import { median } from './statistics.js';

/** The end state that the helper makes, in the words of scripts. */
const setUp = `
ip link add k6t-eth0 address 02:00:00:00:00:00 mtu 1450 type bridge
ip addr add 10.0.2.1/24 brd + dev k6t-eth0
ip -6 addr add fd10:0:2::1/120 dev k6t-eth0
ip link set k6t-eth0 up
echo 1 >/proc/sys/net/ipv4/conf/k6t-eth0/route_localnet
ip tuntap add dev tap0 mode tap user 107 group 107
ip link set tap0 mtu 1450 master k6t-eth0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
for family in "ip 10.0.2.2 10.0.2.1 127.0.0.1" "ip6 fd10:0:2::2 fd10:0:2::1 ::1"; do
  set -- $family
  nft add table $1 nat
  nft add chain $1 nat prerouting "{ type nat hook prerouting priority -100; }"
  nft add chain $1 nat input "{ type nat hook input priority 100; }"
  nft add chain $1 nat output "{ type nat hook output priority -100; }"
  nft add chain $1 nat postrouting "{ type nat hook postrouting priority 100; }"
  nft add chain $1 nat KUBEVIRT_PREINBOUND
  nft add chain $1 nat KUBEVIRT_POSTINBOUND
  nft add rule $1 nat postrouting $1 saddr $2 counter masquerade
  nft add rule $1 nat prerouting iifname eth0 counter jump KUBEVIRT_PREINBOUND
  nft add rule $1 nat postrouting oifname k6t-eth0 counter jump KUBEVIRT_POSTINBOUND
  nft add rule $1 nat KUBEVIRT_PREINBOUND counter dnat to $2
  nft add rule $1 nat KUBEVIRT_POSTINBOUND $1 saddr $4 counter snat to $3
  nft add rule $1 nat output $1 daddr $4 counter dnat to $2
done`;

const podLink = 'ip link add eth0 mtu 1450 type veth peer name p0; ip link set eth0 up';

/** Median, milliseconds. */
export async function forkedNetworkMs(rounds: number): Promise<number> {
  const script = `set -e\n${podLink}\ndate +%s%N\n${setUp}\ndate +%s%N`;
  const times: number[] = [];
  for (let i = 0; i < rounds; i++) {
    const output = await run('unshare', ['--net', '--', 'sh', '-c', script]);
    const [from = '0', to = '0'] = output.trim().split('\n');
    times.push(Number(BigInt(to) - BigInt(from)) / 1e6);
  }
  return median(times);
}
