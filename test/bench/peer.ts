/**
 * The helper measured from where the agent sits: a process of the agent's user, driven over IPC so that all
 * measurements share one connection, as the agent's calls do. Times are in milliseconds.
 */
import { join } from 'node:path';
import { NativeDescriptorChannel } from '../../agent/helper/descriptors.js';
import { HelperClient } from '../../agent/helper/helper-client.js';
import { createHelperTransport } from '../../agent/helper/transport.js';
import { loadNative } from '../../native/binding.js';
import { echoCall, unaryCall } from './floor.js';

export interface PodName {
  readonly podUid: string;
  readonly vmiUid: string;
}

export type Order =
  /** Round trips to somebody else who answers in `directory`. */
  | { readonly measure: 'echo' | 'unary'; readonly count: number; readonly directory: string }
  | { readonly measure: 'health'; readonly count: number }
  | { readonly measure: 'stat'; readonly count: number; readonly pod: PodName }
  /** Set-up of the pod's masquerade network, which must not have been made yet and is taken down each time. */
  | { readonly measure: 'network'; readonly count: number; readonly pod: PodName }
  /** Mount of the container disks of volumes by one call, of which none must have been made yet. */
  | { readonly measure: 'container disks'; readonly pod: PodName; readonly indexes: readonly number[] };

const claimMs = 5_000;
/** So that both ends run compiled code, as those of a node that has run for a while do. */
const warmUp = 1000;

const [socketDir = ''] = process.argv.slice(2);
const helper = new HelperClient(
  createHelperTransport(join(socketDir, 'helper.sock')),
  new NativeDescriptorChannel(loadNative(), join(socketDir, 'fd.sock'), claimMs),
);

async function time(call: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await call();
  return performance.now() - start;
}

async function many(count: number, call: () => Promise<unknown>): Promise<number[]> {
  for (let i = 0; i < warmUp; i++) await call();
  const times: number[] = [];
  for (let i = 0; i < count; i++) times.push(await time(call));
  return times;
}

/** The launcher is pinned and looked at before, as it is when the agent gets there. */
async function once(pod: PodName, call: () => Promise<boolean>): Promise<number[]> {
  await helper.identify(pod);
  await helper.observeNetwork(pod);
  let changed = false;
  const took = await time(async () => {
    changed = await call();
  });
  if (!changed) throw new Error(`pod ${pod.podUid} had it already`);
  return [took];
}

const primary = { network: 'default', podInterface: 'eth0', primary: true } as const;

async function networks(pod: PodName, count: number): Promise<number[]> {
  const attachments = [{ ...primary, binding: { case: 'masquerade', value: {} } as const }];
  const times: number[] = [];
  for (let i = 0; i < count; i++) {
    times.push(...(await once(pod, () => helper.applyNetwork({ pod, attachments }))));
    await helper.applyNetwork({ pod, detachments: [primary] });
  }
  return times;
}

async function onFloor(
  { call, close }: { call: () => Promise<void>; close: () => void },
  count: number,
): Promise<number[]> {
  try {
    return await many(count, call);
  } finally {
    close();
  }
}

async function obey(order: Order): Promise<number[]> {
  switch (order.measure) {
    case 'echo':
      return onFloor(echoCall(order.directory), order.count);
    case 'unary':
      return onFloor(unaryCall(order.directory), order.count);
    case 'health':
      return many(order.count, () => helper.health());
    case 'stat':
      return many(order.count, () => helper.statPod(order.pod.podUid));
    case 'container disks': {
      const disks = order.indexes.map((volumeIndex) => ({ volumeIndex }));
      return once(order.pod, () => helper.mountContainerDisks({ pod: order.pod, disks }));
    }
    case 'network':
      return networks(order.pod, order.count);
  }
}

process.on('message', (order: Order) => {
  obey(order).then(
    (times) => process.send?.({ times }),
    (error: Error) => process.send?.({ error: error.message }),
  );
});
