/**
 * `make bench`: what the boundary costs, ratios first. Prints, and never fails because of a figure: times on
 * a shared machine are no gates.
 */
import { writeFileSync } from 'node:fs';
import { cpus, release } from 'node:os';
import { join } from 'node:path';
import { runInNetns } from '../harness/pods/network.js';
import { System, type Vm } from '../harness/system/system.js';
import { bareLoopMs } from './bare-loop.js';
import { forkedMountMs, startManyDisks } from './container-disk.js';
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
/** Container disks of one VM. */
const manyDisks = 200;
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

interface Calls {
  readonly health: readonly number[];
  readonly stat: readonly number[];
  readonly network: readonly number[];
  /** By linkCounts. */
  readonly networkAmongLinks: readonly (readonly number[])[];
  readonly containerDisk: readonly number[];
  /** Of one VM, in the order in which they were mounted. */
  readonly containerDisks: readonly number[];
}

/** Calls to the helper, each kind by one process that stands where the agent will stand. */
async function measureCalls(system: System): Promise<Calls> {
  const measurer = new Measurer(system.socketDir);
  const network: number[] = [];
  const networkAmongLinks: (readonly number[])[] = [];
  const containerDisk: number[] = [];
  let stat: readonly number[] = [];
  const vms: Vm[] = [];
  try {
    progress('round trips');
    const health = await measurer.measure({ measure: 'health', count: roundTrips });
    progress(`networks and container disks of ${setUps} pods`);
    for (let i = 0; i < setUps; i++) {
      const vm = await system.createVm({ name: `pod-${i}`, machine: 'fake', containerDisk: true });
      vms.push(vm);
      const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
      await addIpv6(vm);
      if (i === 0) stat = await measurer.measure({ measure: 'stat', pod, count: roundTrips });
      network.push(...(await measurer.measure({ measure: 'network', count: 1, pod })));
      containerDisk.push(...(await measurer.measure({ measure: 'container disk', pod })));
    }
    const vm = await system.createVm({ name: 'many-links', machine: 'fake' });
    vms.push(vm);
    await addIpv6(vm);
    for (const [i, links] of linkCounts.entries()) {
      progress(`networks among ${links} links`);
      await addLinks(vm, linkCounts[i - 1] ?? 0, links);
      const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
      networkAmongLinks.push(await measurer.measure({ measure: 'network', count: setUps, pod }));
    }
    progress(`${manyDisks} container disks of one VM`);
    const containerDisks = await measureManyDisks(system, measurer, vms);
    return { health, stat, network, networkAmongLinks, containerDisk, containerDisks };
  } finally {
    await measurer.stop();
    for (const { pod, namespace, name } of vms) {
      await pod.destroy();
      system.api.store.delete('virtualmachineinstances', namespace, name);
    }
  }
}

async function measureManyDisks(system: System, measurer: Measurer, vms: Vm[]): Promise<readonly number[]> {
  const vm = await system.createVm({ name: 'many-disks', machine: 'fake' });
  vms.push(vm);
  const image = join(system.node.root, 'image');
  writeFileSync(image, 'image');
  await startManyDisks(vm.pod, image, manyDisks);
  const pod = { podUid: vm.pod.uid, vmiUid: vm.uid };
  return measurer.measure({ measure: 'container disks', count: manyDisks, pod });
}

/** As many disks of another pod, mounted by a bare loop. Milliseconds. */
async function bareDiskMs(system: System): Promise<number> {
  const vm = await system.createVm({ name: 'bare-disks', machine: 'fake' });
  try {
    const image = join(system.node.root, 'image');
    writeFileSync(image, 'image');
    await startManyDisks(vm.pod, image, manyDisks);
    const args = [system.node.podsDir, vm.pod.uid, String(manyDisks)];
    return await bareLoopMs('privsep_disk_bench', 'container disk', args);
  } finally {
    await vm.pod.destroy();
    system.api.store.delete('virtualmachineinstances', vm.namespace, vm.name);
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
  readonly bareNetworkMs: number;
  readonly bareDiskMs: number;
  readonly forkedNetworkMs: number;
  readonly forkedMountMs: number;
}

async function measureWithout(system: System): Promise<Without> {
  progress('the same networks and disks by bare loops and by forked programs');
  return {
    bareNetworkMs: await bareLoopMs('privsep_net_bench', 'masquerade set-up', [String(setUps)]),
    bareDiskMs: await bareDiskMs(system),
    forkedNetworkMs: await forkedNetworkMs(setUps),
    forkedMountMs: await forkedMountMs(join(system.node.root, 'forked-mounts'), setUps),
  };
}

type Both = readonly [agent: Usage, helper: Usage];

interface Starts {
  readonly single: readonly Start[];
  readonly together: readonly Start[];
  readonly idle: Both;
  readonly loaded: Both;
  /** Agent and helper together, milliseconds a VM. */
  readonly singleCpuMs: number;
  readonly togetherCpuMs: number;
}

async function measureStarts(system: System): Promise<Starts> {
  const agent = await system.startAgent('-v', '2');
  const { helper } = system;
  if (helper === undefined) throw new Error('the helper is not running');
  const usage = (): Both => [usageOf(agent.pid), usageOf(helper.pid)];
  const cpuMs = (of: Both) => of[0].cpuMs + of[1].cpuMs;

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
  const network = median(calls.network);
  return table(
    ['', 'here', 'against', '', 'ratio', 'aim'],
    [
      ratioRow('pod network, both families', network, 'bare C++ loop', without.bareNetworkMs, '<= 1.5'),
      ratioRow('', network, 'forked ip and nft', without.forkedNetworkMs),
      ratioRow('container disk', median(calls.containerDisks), 'bare C++ loop', without.bareDiskMs, '<= 2'),
      ratioRow('', median(calls.containerDisks), 'forked mount', without.forkedMountMs),
      ratioRow('VMI seen to sync sent', totals(starts.single), 'stock, one VM', stock.singleMs),
      ratioRow(`the same, ${together} at once`, totals(starts.together), 'stock', stock.togetherMs),
      ratioRow('processor time a VM', starts.singleCpuMs, 'stock', stock.cpuMs),
    ],
  );
}

type Row = readonly [name: string, values: readonly number[], aim?: string];

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
      ['Health', calls.health, '<= 0.3 ms'],
      ['Stat of a pod', calls.stat],
      ['network set-up', calls.network],
      ...calls.networkAmongLinks.map((times, i): Row => [`the same among ${linkCounts[i]} links`, times]),
      ['container disk', calls.containerDisk],
      [`the first 20 of ${manyDisks} of one VM`, calls.containerDisks.slice(0, 20)],
      [`the last 20 of ${manyDisks} of one VM`, calls.containerDisks.slice(-20)],
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
