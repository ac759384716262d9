/**
 * The demo: one VM from Scheduled to Running and back to gone, with what happens shown while it happens.
 * Ends with 0 when everything that it shows was true. Ctrl-C cleans up.
 */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { timelineSvg, timelineTable } from '../../agent/timeline/render.js';
import type { TimelineStep } from '../../agent/timeline/timeline.js';
import { guestLines } from '../harness/guest/disk.js';
import { startPeer } from '../harness/guest/peer.js';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { run, succeeds, waitFor } from '../harness/pods/run.js';
import { describeProcess } from '../harness/system/processes.js';
import { System, type Vm } from '../harness/system/system.js';

const out = join(repositoryRoot(), 'demo-out');
const colour = process.stdout.isTTY;

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

function title(text: string): void {
  say(`\n${colour ? '\u001b[1m' : ''}${text}${colour ? '\u001b[0m' : ''}`);
}

function step(text: string): void {
  say(`  ${text}`);
}

function indented(text: string): string {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => `  ${line}`)
    .join('\n');
}

async function demo(system: System): Promise<void> {
  title('A node');
  step(`API server for tests at ${system.api.url}`);
  step(`kubelet's directory ${system.node.kubeletRoot}, pod network with gateway ${system.node.gateway}`);
  await system.startHelper();
  await system.startAgent();
  step('helper and agent are running:');
  for (const which of ['agent', 'helper'] as const) {
    const { pid } = system[which] ?? {};
    if (pid !== undefined) say(indented(indented(describeProcess(which, pid))));
  }

  title('A VMI is handed to the node');
  const peer = await startPeer(system.node, { '/boot.ipxe': '#!ipxe\n:idle\nsleep 1\ngoto idle\n' });
  try {
    await lifeOfOneVm(system, peer);
  } finally {
    await peer.stop();
  }
  const left = await system.node.leftovers();
  title(
    left.length === 0
      ? 'Nothing is left: no process, namespace, mount, link, cgroup or file of the pod'
      : 'Left behind:',
  );
  for (const line of left) step(line);
  if (left.length > 0) throw new Error('the VM left something behind');
}

async function lifeOfOneVm(system: System, peer: Awaited<ReturnType<typeof startPeer>>): Promise<void> {
  const vm = await system.createVm({ name: 'demo', bootUrl: `${peer.url}/boot.ipxe` });
  step(
    `VMI ${vm.namespace}/${vm.name}, pod ${vm.pod.uid} at ${vm.pod.podIP}, launcher process ${vm.launcher.pid}`,
  );
  await showSteps(system, vm, 'Running written', 60_000);
  await system.waitForPhase(vm, 'Running');
  title('From takeover to Running');
  const steps = system.timeline(vm.uid);
  const timeline = { vmi: { namespace: vm.namespace, name: vm.name, uid: vm.uid }, takeoverAt: 0, steps };
  say(indented(timelineTable(timeline)));

  title('The guest, booted from the disk that the helper mounted, uses the network that the helper made');
  const request = await peer.request('/boot.ipxe', 90_000);
  await waitFor('the guest to answer', 20_000, () => system.node.ping(vm.pod.podIP));
  const console_ = vm.launcher.console().split('\n');
  step(console_.find((line) => line.includes(guestLines.bootLoader))?.trim() ?? '');
  step(console_.find((line) => line.includes(guestLines.address))?.trim() ?? '');
  step(`it fetched ${request.path} from a peer in the pod network, which saw ${request.from}`);
  step(`ping ${vm.pod.podIP}: answered`);

  title('What kubectl shows');
  say(indented(await kubectl(system, vm)));

  title('Graceful shutdown and deletion');
  const seen = system.timeline(vm.uid).length;
  system.deleteVmi(vm);
  await showSteps(system, vm, 'cleaned', 90_000, seen);
  await system.finishDeletion(vm);
  step('the launcher ended, kubelet removed the pod, the VMI object is gone');

  mkdirSync(out, { recursive: true });
  const all = system.timeline(vm.uid);
  writeFileSync(join(out, 'timeline.svg'), timelineSvg({ ...timeline, steps: all }));
  writeFileSync(join(out, 'timeline.txt'), `${timelineTable({ ...timeline, steps: all })}\n`);
  step(`the timeline as a picture: ${join(out, 'timeline.svg')}`);
}

/** Prints the steps of a VM as the agent notes them, until `last`. */
async function showSteps(system: System, vm: Vm, last: string, timeoutMs: number, from = 0): Promise<void> {
  let shown = from;
  const show = ({ step: name, who, atMs }: TimelineStep) =>
    step(`${`${atMs.toFixed(1)} ms`.padStart(12)}  ${who.padEnd(8)}  ${name}`);
  await waitFor(`step "${last}"`, timeoutMs, () => {
    const steps = system.timeline(vm.uid);
    for (const one of steps.slice(shown)) show(one);
    shown = Math.max(shown, steps.length);
    return steps.some((one) => one.step === last);
  }).catch((error: Error) => {
    throw new Error(`${error.message}\n${system.tail()}\n${vm.launcher.log().slice(-2000)}`);
  });
}

async function kubectl(system: System, vm: Vm): Promise<string> {
  if (!(await succeeds('kubectl', ['version', '--client'])))
    return JSON.stringify(system.vmi(vm)?.status, null, 2);
  const config = join(system.node.root, 'kubectl.config');
  writeFileSync(config, system.api.kubeConfigText, { mode: 0o600 });
  chmodSync(config, 0o600);
  const common = ['--kubeconfig', config, '-n', vm.namespace];
  const columns =
    'NAME:.metadata.name,PHASE:.status.phase,NODE:.status.nodeName,IP:.status.interfaces[0].ipAddress,MIGRATABLE:.status.conditions[?(@.type=="LiveMigratable")].status';
  const table = await run('kubectl', [
    ...common,
    'get',
    'virtualmachineinstances',
    vm.name,
    '-o',
    `custom-columns=${columns}`,
  ]);
  const events = await run('kubectl', [
    ...common,
    ...[
      'get',
      'events',
      '-o',
      'custom-columns=TYPE:.type,REASON:.reason,FROM:.source.component,MESSAGE:.message',
    ],
  ]);
  return `${table}\n${events}`;
}

async function main(): Promise<number> {
  if (process.getuid?.() !== 0) {
    process.stderr.write('the demo makes namespaces, mounts and links: run it as root\n');
    return 2;
  }
  const system = await System.create();
  let interrupted = false;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      if (interrupted) return;
      interrupted = true;
      say('\ninterrupted: cleaning up');
      void system.stop().then(() => process.exit(130));
    });
  }
  try {
    await demo(system);
    return 0;
  } catch (error) {
    if (interrupted) return 130;
    process.stderr.write(`\nthe demo failed: ${(error as Error).message}\n`);
    return 1;
  } finally {
    await system.stop();
  }
}

process.exitCode = await main();
