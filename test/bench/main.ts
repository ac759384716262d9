/**
 * `make bench`: what the boundary costs, as ratios and percentiles. Prints; never fails because of a figure.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { run } from '../harness/pods/run.js';
import { agentUser, System, type Vm } from '../harness/system/system.js';
import { endVms, type Start, startOneByOne, startSteps, startTogether } from './start.js';
import { median, quantile } from './statistics.js';
import { megabytes, milliseconds, table } from './table.js';
import { usageOf } from './usage.js';

const roundTripCount = 3000;
const setUps = 10;
const single = 20;
const together = 50;

/** virt-handler v1.9.0 as it was recorded on a machine with two cores. */
const stock = { single: '1.1 s', together: '5.6 s', cpu: '0.6 s', programs: '24' };

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

/** Runs the measuring process as the agent's user. */
function asAgent(system: System, args: readonly string[]): number[] {
  const { stdout, stderr, status } = spawnSync(
    process.execPath,
    [join(repositoryRoot(), 'dist/test/bench/peer.js'), system.socketDir, ...args],
    { uid: agentUser, gid: agentUser, encoding: 'utf8', cwd: '/' },
  );
  if (status !== 0) throw new Error(`measuring ${args[0]} failed: ${stderr}`);
  return JSON.parse(stdout) as number[];
}

function roundTrip(system: System): void {
  const times = asAgent(system, ['health', String(roundTripCount)]);
  say(`\nHelper round trip (${roundTripCount} calls)`);
  say(
    table(['', 'p50', 'p99'], [['Health', milliseconds(median(times)), milliseconds(quantile(times, 0.99))]]),
  );
}

/** Microseconds of the bare loop's first call, median. */
async function bareNetworkMs(): Promise<number> {
  const build = mkdtempSync(join(tmpdir(), 'vp-bench-'));
  try {
    const root = repositoryRoot();
    await run('cmake', ['-S', join(root, 'native'), '-B', build, '-DCMAKE_BUILD_TYPE=Release']);
    const built = spawnSync('cmake', ['--build', build, '--target', 'privsep_net_bench', '-j2'], {
      encoding: 'utf8',
    });
    if (built.status !== 0) throw new Error(`privsep_net_bench was not built: ${built.stderr}`);
    const output = await run(join(build, 'privsep_net_bench'), ['20']);
    return Number(/median (\d+)/.exec(output)?.[1]) / 1000;
  } finally {
    rmSync(build, { recursive: true, force: true });
  }
}

/** The same end state by forking ip(8) and nft(8), as scripts do. */
const forked = `set -e
ip link add k6t-eth0 address 02:00:00:00:00:00 mtu 1450 type bridge
ip addr add 10.0.2.1/24 brd + dev k6t-eth0
ip -6 addr add fd10:0:2::1/120 dev k6t-eth0
ip link set k6t-eth0 up
echo 1 > /proc/sys/net/ipv4/conf/k6t-eth0/route_localnet
ip tuntap add dev tap0 mode tap user 107 group 107
ip link set tap0 mtu 1450 master k6t-eth0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
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

async function forkedNetworkMs(): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < setUps; i++) {
    const script = `ip link add eth0 mtu 1450 type veth peer name p0; ip link set eth0 up; date +%s%N; ${forked}; date +%s%N`;
    const [from = '0', to = '0'] = (await run('unshare', ['--net', '--', 'sh', '-c', script]))
      .trim()
      .split('\n');
    times.push(Number(BigInt(to) - BigInt(from)) / 1e6);
  }
  return median(times);
}

async function network(system: System): Promise<void> {
  const vms: Vm[] = [];
  const times: number[] = [];
  for (let i = 0; i < setUps; i++) {
    const vm = await system.createVm({ name: `net-${i}`, machine: 'fake' });
    vms.push(vm);
    times.push(...asAgent(system, ['network', vm.pod.uid, vm.uid]));
  }
  const [bare, forks] = [await bareNetworkMs(), await forkedNetworkMs()];
  const helped = median(times);
  for (const vm of vms) await vm.pod.destroy();
  const ratio = (value: number) => `${(value / bare).toFixed(2)} x`;
  say('\nPod network set-up, masquerade (median)');
  say(
    table(
      ['', 'time', 'of bare'],
      [
        ['bare C++ loop', milliseconds(bare), ratio(bare)],
        ['through the helper', milliseconds(helped), ratio(helped)],
        ['forking ip and nft', milliseconds(forks), ratio(forks)],
      ],
    ),
  );
}

function stepRows(starts: readonly Start[]): string[][] {
  const row = (name: string, values: readonly number[]) => [
    name,
    milliseconds(median(values)),
    milliseconds(quantile(values, 0.99)),
  ];
  return [
    ...startSteps.map((name, i) =>
      row(
        name,
        starts.map(({ steps }) => steps[i] ?? Number.NaN),
      ),
    ),
    row(
      'VMI seen to sync sent',
      starts.map(({ total }) => total),
    ),
  ];
}

async function starts(system: System): Promise<void> {
  const agent = await system.startAgent();
  const helper = system.helper;
  if (helper === undefined) throw new Error('the helper is not running');
  const used = () => [usageOf(agent.pid), usageOf(helper.pid)] as const;
  const cpu = () => used().reduce((sum, { cpuMs }) => sum + cpuMs, 0);
  const idle = used().map(({ rssBytes }) => megabytes(rssBytes));

  const one = await startOneByOne(system, single);
  say(`\nOne VM at a time, nothing to wait for (${single} VMs; stock virt-handler needs ${stock.single})`);
  say(table(['step', 'p50', 'p99'], stepRows(one.starts)));
  await endVms(system, one.vms);

  let before = 0;
  const many = await startTogether(system, together, () => {
    before = cpu();
  });
  say(`\n${together} VMs at once (stock p50 ${stock.together})`);
  say(table(['step', 'p50', 'p99'], stepRows(many.starts)));
  const [agentNow, helperNow] = used();
  say('\nUsed by agent and helper');
  say(
    table(
      ['', 'agent', 'helper', 'stock'],
      [
        ['memory, idle', idle[0] ?? '', idle[1] ?? '', '85 MB'],
        [
          `memory, ${together} VMs`,
          megabytes(agentNow.rssBytes),
          megabytes(helperNow.rssBytes),
          '121 MB (100 VMs)',
        ],
        [
          'programs executed',
          ...[agentNow, helperNow].map((u) => (u.hadChildren ? 'some' : '0')),
          `${stock.programs} a VM`,
        ],
        ['processor time a VM', milliseconds((cpu() - before) / together), '(both)', stock.cpu],
      ],
    ),
  );
  await endVms(system, many.vms);
}

async function main(): Promise<void> {
  const system = await System.create();
  try {
    await system.startHelper();
    roundTrip(system);
    await network(system);
    await starts(system);
  } finally {
    await system.stop();
  }
}

if (process.getuid?.() !== 0) {
  process.stderr.write('the benchmarks make namespaces, mounts and links: run them as root\n');
  process.exitCode = 2;
} else {
  await main();
}
