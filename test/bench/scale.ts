/** What a node with hundreds of VMs costs the agent, and whether one launcher that hangs costs the others. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { LoopDelay } from './node-agent.js';
import { ScaleNode, type ScaleVm } from './scale-node.js';
import { median, quantile } from './statistics.js';
import { megabytes, milliseconds, table } from './table.js';
import { usageOf } from './usage.js';

export interface ScaleOptions {
  readonly vms: number;
  /** Of the idle window, and of the window of the resyncs. */
  readonly seconds: number;
}

export interface ScaleResult {
  readonly vms: number;
  /** From all VMIs being Scheduled to all of them Running. */
  readonly startMs: number;
  readonly startCpuMs: number;
  /** Of the agent's event loop meanwhile. */
  readonly startLoopDelay: LoopDelay;
  /** A new agent on a node whose VMs run: until its caches are complete. */
  readonly restartMs: number;
  readonly restartCpuMs: number;
  readonly idleCpuPercent: number;
  readonly resyncCpuMs: number;
  readonly relistCpuMs: number;
  /** Writes of VMIs after the start: idle, restart, resyncs and relist together. */
  readonly writesAtRest: number;
  readonly heapBytesPerVm: number;
  readonly rssBytesPerVm: number;
  readonly rssBytes: number;
  /** From a guest's pause to the condition at the API server, milliseconds. */
  readonly latency: readonly number[];
  /** The same with one launcher that takes calls and never answers. */
  readonly latencyBesideHung: readonly number[];
}

const sampled = 50;
const settleMs = 3_000;
const noResyncSeconds = 3_600;
const resyncEverySeconds = 5;

export const scaleDefaults: ScaleOptions = { vms: 500, seconds: 30 };

export async function measureScale(options: ScaleOptions = scaleDefaults): Promise<ScaleResult> {
  const node = await ScaleNode.create();
  try {
    await node.startAgent(noResyncSeconds);
    await sleep(settleMs);
    const empty = await node.memory();
    await node.watchLoop();

    const start = await measured(node, async () => {
      const vms = await addVms(node, options.vms);
      await Promise.all(vms.map(({ name }) => node.until(name, ({ status }) => status?.phase === 'Running')));
      return vms;
    });
    const startLoopDelay = await node.loopDelay();
    await sleep(settleMs);
    const full = await node.memory();
    const writesBefore = writes(node);

    const idle = await measured(node, () => sleep(options.seconds * 1000));
    const relist = await measured(node, () => relistAll(node));
    const latency = await latencies(node, start.result.slice(0, sampled));
    // Each guest was paused and resumed twice.
    const pauseWrites = 4 * Math.min(sampled, options.vms);
    const hung = await node.addVm(options.vms, true);
    await sleep(settleMs);
    const latencyBesideHung = await latencies(node, start.result.slice(0, sampled));
    await node.stopAgent();

    const restart = await measured(node, () => node.startAgent(resyncEverySeconds), 'new process');
    await sleep(settleMs);
    const resyncs = await measured(node, () => sleep(options.seconds * 1000));
    node.checkHelper();
    return {
      vms: options.vms,
      startMs: start.ms,
      startCpuMs: start.cpuMs,
      startLoopDelay,
      restartMs: restart.ms,
      restartCpuMs: restart.cpuMs,
      idleCpuPercent: (100 * idle.cpuMs) / idle.ms,
      resyncCpuMs: Math.max(0, resyncs.cpuMs - idle.cpuMs) / (options.seconds / resyncEverySeconds),
      relistCpuMs: relist.cpuMs,
      writesAtRest: writes(node) - writes(node, hung.name) - writesBefore - pauseWrites,
      heapBytesPerVm: (full.heapUsed - empty.heapUsed) / options.vms,
      rssBytesPerVm: (full.rss - empty.rss) / options.vms,
      rssBytes: full.rss,
      latency,
      latencyBesideHung,
    };
  } finally {
    await node.stop();
  }
}

export function scaleReport(result: ScaleResult): string {
  const cpu = (wall: number, used: number) => `${milliseconds(wall)} (CPU ${milliseconds(used)})`;
  const spread = (values: readonly number[]) =>
    `${milliseconds(median(values))} / ${milliseconds(quantile(values, 0.99))}`;
  const { p99, max } = result.startLoopDelay;
  return table(
    [`${result.vms} VMs on one node`, 'agent'],
    [
      ['all started at once', cpu(result.startMs, result.startCpuMs)],
      ['event loop late meanwhile, p99 / most', `${milliseconds(p99)} / ${milliseconds(max)}`],
      ['restart until the caches are complete', cpu(result.restartMs, result.restartCpuMs)],
      ['CPU while idle', `${result.idleCpuPercent.toFixed(2)} %`],
      ['CPU of a resync of all launchers', milliseconds(result.resyncCpuMs)],
      ['CPU of a relist after 410', milliseconds(result.relistCpuMs)],
      ['writes without a change', String(result.writesAtRest)],
      ['heap for each VM', `${(result.heapBytesPerVm / 1024).toFixed(1)} KiB`],
      ['resident for each VM', `${(result.rssBytesPerVm / 1024).toFixed(1)} KiB`],
      ['resident in all', megabytes(result.rssBytes)],
      ['guest pause to condition, median / p99', spread(result.latency)],
      ['the same beside a launcher that hangs', spread(result.latencyBesideHung)],
    ],
  );
}

async function addVms(node: ScaleNode, count: number): Promise<ScaleVm[]> {
  const vms: ScaleVm[] = [];
  for (let number = 0; number < count; number++) vms.push(await node.addVm(number));
  return vms;
}

/** All watches expire together. */
async function relistAll(node: ScaleNode): Promise<void> {
  const lists = { verb: 'list', plural: 'virtualmachineinstances' };
  const before = node.api.count(lists);
  node.api.expireHistory();
  node.api.dropWatches();
  // Both caches of VMIs.
  await node.api.untilCount(lists, before + 2, 60_000);
  await sleep(settleMs);
}

/** One guest after another is paused and resumed. Milliseconds from the pause to the condition. */
async function latencies(node: ScaleNode, vms: readonly ScaleVm[]): Promise<number[]> {
  const all: number[] = [];
  const paused = ({ status }: ReturnType<ScaleNode['view']>) =>
    status?.conditions?.some(({ type }) => type === 'Paused') === true;
  for (const { name, machine } of vms) {
    const began = performance.now();
    await machine().suspend();
    await node.until(name, paused);
    all.push(performance.now() - began);
    await machine().resume();
    await node.until(name, (vmi) => !paused(vmi));
  }
  return all;
}

function writes(node: ScaleNode, name?: string): number {
  const all = { verb: 'update', plural: 'virtualmachineinstances' };
  return node.api.count(name === undefined ? all : { ...all, name });
}

async function measured<T>(
  node: ScaleNode,
  work: () => Promise<T>,
  which: 'same process' | 'new process' = 'same process',
): Promise<{ readonly result: T; readonly ms: number; readonly cpuMs: number }> {
  const before = which === 'same process' ? usageOf(node.agentPid).cpuMs : 0;
  const began = performance.now();
  const result = await work();
  const ms = performance.now() - began;
  return { result, ms, cpuMs: usageOf(node.agentPid).cpuMs - before };
}
