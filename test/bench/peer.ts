/**
 * The helper measured from where the agent sits: a process of the agent's user. Prints one JSON line.
 *
 * peer SOCKET_DIR health COUNT | peer SOCKET_DIR network POD_UID VMI_UID
 */
import { join } from 'node:path';
import { NativeDescriptorChannel } from '../../agent/helper/descriptors.js';
import { HelperClient } from '../../agent/helper/helper-client.js';
import { createHelperTransport } from '../../agent/helper/transport.js';
import { loadNative } from '../../native/binding.js';

const claimMs = 5_000;
const warmUp = 200;

const [socketDir = '', what = '', first = '', second = ''] = process.argv.slice(2);
const helper = new HelperClient(
  createHelperTransport(join(socketDir, 'helper.sock')),
  new NativeDescriptorChannel(loadNative(), join(socketDir, 'fd.sock'), claimMs),
);

async function time(call: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await call();
  return performance.now() - start;
}

async function roundTrips(count: number): Promise<number[]> {
  for (let i = 0; i < warmUp; i++) await helper.health();
  const times: number[] = [];
  for (let i = 0; i < count; i++) times.push(await time(() => helper.health()));
  return times;
}

/** One set-up; the launcher is pinned before, as it is when the agent gets there. */
async function networkSetUp(podUid: string, vmiUid: string): Promise<number[]> {
  const pod = { podUid, vmiUid };
  await helper.identify(pod);
  await helper.observeNetwork(pod);
  return [
    await time(() =>
      helper.applyNetwork({
        pod,
        attachments: [
          {
            network: 'default',
            podInterface: 'eth0',
            primary: true,
            binding: { case: 'masquerade', value: {} },
          },
        ],
      }),
    ),
  ];
}

const times = what === 'health' ? await roundTrips(Number(first)) : await networkSetUp(first, second);
process.stdout.write(`${JSON.stringify(times)}\n`, () => process.exit(0));
