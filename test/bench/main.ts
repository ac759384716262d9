/**
 * `make bench`: what the boundary costs, ratios first. Prints, and never fails because of a figure: times on
 * a shared machine are no gates.
 */
import { cpus, release } from 'node:os';
import { join } from 'node:path';
import { runInNetns } from '../harness/pods/network.js';
import { System, type Vm } from '../harness/system/system.js';
import { BareLoop } from './bare-loop.js';
import { batches, type DiskTimes, forkedMountMs, manyDisks, measureDisks } from './container-disk.js';
import { serveFloor } from './floor.js';
import { Measurer } from './measurer.js';
import { forkedNetworkMs } from './network.js';
import { measureScale, scaleDefaults, scaleReport } from './scale.js';
import { endVms, type Start, startOneByOne, startSteps, startTogether } from './start.js';
import { median, quantile } from './statistics.js';
import { megabytes, milliseconds, table } from './table.js';
import { type Usage, usageOf } from './usage.js';

const roundTrips = 3000;
const setUps = 20;
/** Links in the pod besides those of the set-up: its cost may grow with them, at worst linearly. */
const linkCounts = [10, 50, 200];
const single = 20;
const together = 50;

/** virt-handler v1.9.0, recorded on a machine with two processors. */
const stock = { singleMs: 1100, togetherMs: 5600, cpuMs: 600, programs: 24 };

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

function progress(text: string): void {
  process.stderr.write(`measuring ${text}\n`);
}

/** The same by the helper and by the bare loop in its turn. */
interface Both<T> {
  readonly helper: T;
  readonly bare: T;
}

type Times = readonly number[];

interface Calls {
  readonly echo: Times;
  readonly unary: Times;
  readonly health: Times;
  readonly stat: Times;
  readonly network: Both<Times>;
  /** By linkCounts. */
  readonly networkAmongLinks: readonly Times[];
  /** The first of each of several VMs. */
  readonly containerDisk: Times;
  /** By batches. */
  readonly containerDisks: readonly DiskTimes[];
}

/** Calls to the helper, by one process that stands where the agent will stand. */
async function measureCalls(system: System): Promise<Calls> {
  const measurer = new Measurer(system.socketDir);
  const bareNetwork = await BareLoop.start('privsep_net_bench');
  const bareDisk = await BareLoop.start('privsep_disk_bench', [system.node.podsDir]);
  const directory = system.node.root;
  const stopFloor = await serveFloor(directory);
  const vms: Vm[] = [];
  try {
    progress('round trips');
    const echo = await measurer.measure({ measure: 'echo', count: roundTrips, directory });
    const unary = await measurer.measure({ measure: 'unary', count: roundTrips, directory });
    const health = await measurer.measure({ measure: 'health', count: roundTrips });
    progress(`networks and container disks of ${setUps} pods`);
    const network = { helper: [] as number[], bare: [] as number[] };
    const containerDisk: number[] = [];
    let stat: Times = [];
    for (let i = 0; i < setUps; i++) {
      const vm = await system.createVm({ name: `pod-${i}`, machine: 'fake', containerDisk: true });
      vms.push(vm);
      const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
      await addIpv6(vm);
      if (i === 0) stat = await measurer.measure({ measure: 'stat', pod, count: roundTrips });
      const byHelper = async () => {
        network.helper.push(...(await measurer.measure({ measure: 'network', count: 1, pod })));
      };
      const byBareLoop = async () => {
        network.bare.push(await bareNetwork.measure(`/proc/${vm.launcher.pid}/ns/net`));
      };
      // The first in a namespace pays for what the kernel keeps.
      for (const set of i % 2 === 0 ? [byHelper, byBareLoop] : [byBareLoop, byHelper]) await set();
      containerDisk.push(...(await measurer.measure({ measure: 'container disks', pod, indexes: [0] })));
    }
    const vm = await system.createVm({ name: 'many-links', machine: 'fake' });
    vms.push(vm);
    await addIpv6(vm);
    const networkAmongLinks: Times[] = [];
    for (const [i, links] of linkCounts.entries()) {
      progress(`networks among ${links} links`);
      await addLinks(vm, linkCounts[i - 1] ?? 0, links);
      const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
      networkAmongLinks.push(await measurer.measure({ measure: 'network', count: setUps, pod }));
    }
    const containerDisks: DiskTimes[] = [];
    for (const batch of batches) {
      progress(`${manyDisks} container disks of a VM, ${batch.size} at a time`);
      containerDisks.push(await measureDisks(system, measurer, bareDisk, batch, vms));
    }
    return { echo, unary, health, stat, network, networkAmongLinks, containerDisk, containerDisks };
  } finally {
    await measurer.stop();
    bareNetwork.stop();
    bareDisk.stop();
    stopFloor();
    for (const { pod, namespace, name } of vms) {
      await pod.destroy();
      system.api.store.delete('virtualmachineinstances', namespace, name);
    }
  }
}

/** So that a set-up has both families. */
async function addIpv6(vm: Vm): Promise<void> {
  await runInNetns(vm.launcher.pid, 'ip', ['addr', 'add', 'fd00:244::1/64', 'dev', 'eth0', 'nodad']);
}

/** The links number `from` to `to` of a pod. */
async function addLinks(vm: Vm, from: number, to: number): Promise<void> {
  await runInNetns(vm.launcher.pid, 'sh', [
    '-c',
    'i=$1; while [ $i -lt $2 ]; do echo "link add other$i type bridge"; i=$((i + 1)); done | ip -batch -',
    'sh',
    String(from),
    String(to),
  ]);
}

interface Without {
  readonly forkedNetworkMs: number;
  readonly forkedMountMs: number;
}

async function measureWithout(system: System): Promise<Without> {
  progress('the same networks and mounts by forked programs');
  return {
    forkedNetworkMs: await forkedNetworkMs(setUps),
    forkedMountMs: await forkedMountMs(join(system.node.root, 'forked-mounts'), setUps),
  };
}

type Used = readonly [agent: Usage, helper: Usage];

interface Starts {
  readonly single: readonly Start[];
  readonly together: readonly Start[];
  readonly idle: Used;
  readonly loaded: Used;
  /** Agent and helper together, milliseconds a VM. */
  readonly singleCpuMs: number;
  readonly togetherCpuMs: number;
}

async function measureStarts(system: System): Promise<Starts> {
  const agent = await system.startAgent('-v', '2');
  const { helper } = system;
  if (helper === undefined) throw new Error('the helper is not running');
  const usage = (): Used => [usageOf(agent.pid), usageOf(helper.pid)];
  const cpuMs = (of: Used) => of[0].cpuMs + of[1].cpuMs;

  progress(`${single} VMs, one after another`);
  const idle = usage();
  const one = await startOneByOne(system, single);
  const singleCpuMs = (cpuMs(usage()) - cpuMs(idle)) / single;
  await endVms(system, one.vms);

  progress(`${together} VMs at once`);
  let before = idle;
  const many = await startTogether(system, together, () => {
    before = usage();
  });
  const loaded = usage();
  const togetherCpuMs = (cpuMs(loaded) - cpuMs(before)) / together;
  await endVms(system, many.vms);
  return { single: one.starts, together: many.starts, idle, loaded, singleCpuMs, togetherCpuMs };
}

function ratioRow(what: string, here: number, than: string, there: number, aim = ''): string[] {
  return [what, milliseconds(here), than, milliseconds(there), `${(here / there).toFixed(2)} x`, aim];
}

function ratios(calls: Calls, without: Without, starts: Starts): string {
  const totals = (of: readonly Start[]) => median(of.map(({ total }) => total));
  const network = median(calls.network.helper);
  const disks = calls.containerDisks.map(({ size, helper, bare }) => {
    const what = size === 1 ? 'container disk, one a call' : `container disk, ${size} a call`;
    return ratioRow(what, median(helper), 'bare C++ loop, the same', median(bare), '<= 2');
  });
  const oneDisk = median(calls.containerDisks[0]?.helper ?? []);
  return table(
    ['', 'here', 'against', '', 'ratio', 'aim'],
    [
      ratioRow('Health', median(calls.health), 'node:http2 call that does nothing', median(calls.unary)),
      ratioRow('pod network, both families', network, 'bare C++ loop', median(calls.network.bare), '<= 1.5'),
      ratioRow('', network, 'forked ip and nft', without.forkedNetworkMs),
      ...disks,
      ratioRow('container disk, one a call', oneDisk, 'forked mount', without.forkedMountMs),
      ratioRow('VMI seen to sync sent', totals(starts.single), 'stock, one VM', stock.singleMs),
      ratioRow(`the same, ${together} at once`, totals(starts.together), 'stock', stock.togetherMs),
      ratioRow('processor time a VM', starts.singleCpuMs, 'stock', stock.cpuMs),
    ],
  );
}

type Row = readonly [name: string, values: readonly number[], aim?: string];

function diskRows({ size, helper, bare }: DiskTimes): Row[] {
  const what = `one of ${manyDisks} container disks, ${size} a call`;
  // Whether it grows with the mounts that are there.
  const ends: Row[] =
    size === 1
      ? [
          ['the first 20 of them', helper.slice(0, 20)],
          ['the last 20', helper.slice(-20)],
        ]
      : [];
  return [[what, helper], ...ends, ['the same by the bare loop', bare]];
}

function series(rows: readonly Row[]): string {
  return table(
    ['', 'p50', 'p99', 'aim (p50)'],
    rows.map(([name, values, aim = '']) => [
      name,
      milliseconds(median(values)),
      milliseconds(quantile(values, 0.99)),
      aim,
    ]),
  );
}

function steps(of: readonly Start[], aim = ''): string {
  const rows = startSteps.map((name, i): Row => [name, of.map((start) => start.steps[i] ?? Number.NaN)]);
  return series([...rows, ['VMI seen to sync sent', of.map(({ total }) => total), aim]]);
}

function used({ idle, loaded, singleCpuMs, togetherCpuMs }: Starts): string {
  const programs = ({ hadChildren }: Usage) => (hadChildren ? 'some' : '0');
  return table(
    ['', 'agent', 'helper', 'stock'],
    [
      ['resident memory, idle', ...idle.map(({ rssBytes }) => megabytes(rssBytes))],
      [`resident memory, ${together} VMs`, ...loaded.map(({ rssBytes }) => megabytes(rssBytes))],
      ['programs executed', ...loaded.map(programs), `${stock.programs} a VM`],
      ['processor time a VM', `${milliseconds(singleCpuMs)} both`, '', milliseconds(stock.cpuMs)],
      [`the same, ${together} at once`, `${milliseconds(togetherCpuMs)} both`],
    ],
  );
}

async function main(): Promise<void> {
  const system = await System.create();
  try {
    await system.startHelper();
    const calls = await measureCalls(system);
    const without = await measureWithout(system);
    const starts = await measureStarts(system);
    say(`${cpus().length} processors, Linux ${release()}, Node ${process.version}`);
    say('stock: virt-handler v1.9.0 recorded on a 2-core machine\n');
    say(`Ratios (medians)\n${ratios(calls, without, starts)}`);
    const trips: Row[] = [
      ['a message to Node and back', calls.echo],
      ['node:http2 call that does nothing', calls.unary],
      ['Health', calls.health, '<= 0.3 ms'],
      ['Stat of a pod', calls.stat],
      ['network set-up', calls.network.helper],
      ['the same by the bare loop', calls.network.bare],
      ...calls.networkAmongLinks.map((times, i): Row => [`the same among ${linkCounts[i]} links`, times]),
      ['first container disk of a VM', calls.containerDisk],
      ...calls.containerDisks.flatMap(diskRows),
    ];
    say(`\nThe helper, from a process of the agent's user\n${series(trips)}`);
    say(`\nOne VM after another, pod and launcher ready before\n${steps(starts.single, '<= 60 ms')}`);
    say(`\n${together} VMs at once\n${steps(starts.together)}`);
    say(`\nAgent and helper\n${used(starts)}`);
  } finally {
    await system.stop();
  }
  progress(`${scaleDefaults.vms} VMs on one node, a few minutes`);
  say(`\n${scaleReport(await measureScale())}`);
}

if (process.getuid?.() === 0) {
  await main();
} else {
  process.stderr.write('the benchmarks make namespaces, mounts and links: run them as root\n');
  process.exitCode = 2;
}
