import { unlinkSync, writeFileSync } from 'node:fs';
import { connect as connectHttp2, constants } from 'node:http2';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { GetHelperResponseSchema } from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { waitFor } from '../../harness/pods/run.js';
import { TestPod } from '../../integration/privhelper-fixture.js';
import { field, frame, frameType, opening, pour } from './frames.js';
import { memoryOf } from './host-snapshot.js';
import { methodNamed } from './methods.js';
import { type Answer, dial, pathOf, Wire } from './wire.js';
import { World } from './world.js';

const deadlineMs = 30_000;
const limits = {
  maxConnections: 3,
  maxCalls: 12,
  requestTimeoutMs: 2000,
  maxPendingEvents: 16,
  maxWatches: 2,
};
const maxGrowth = 32 << 20;

const identify = methodNamed('PodService.Identify');
const stat = methodNamed('PodService.Stat');
const watch = methodNamed('PodService.Watch');
const getHelper = methodNamed('InspectService.GetHelper');

describe.runIf(process.getuid?.() === 0)('an agent that asks for too much', () => {
  let world: World;

  beforeAll(async () => {
    world = await World.create(limits);
  });
  afterAll(async () => {
    await world?.destroy();
  });
  beforeEach(async () => {
    await world.remember();
  });
  afterEach(async () => {
    await world.expectUnchanged();
    await world.expectHealthy();
  });

  /** What the helper says of its own use, by the operators' socket, which the agent cannot fill. */
  async function usage(name: string): Promise<number> {
    const { message, text } = await world.callFor(getHelper, world.bystander);
    if (message === undefined) throw new Error(text);
    const found = fromBinary(GetHelperResponseSchema, message).usage.find((each) => each.name === name);
    return found?.used ?? -1;
  }

  const isTooMany = ({ reset }: Answer) => reset === constants.NGHTTP2_ENHANCE_YOUR_CALM;

  /** Memory after rounds of something that it was after as many rounds before. */
  async function expectNoGrowth(round: () => Promise<void>): Promise<void> {
    for (let i = 0; i < 3; i++) await round();
    const before = memoryOf(world.helper.pid);
    for (let i = 0; i < 3; i++) await round();
    expect(memoryOf(world.helper.pid) - before).toBeLessThan(maxGrowth);
  }

  it('answers or refuses each of 5,000 calls at a time, and counts every refusal', async () => {
    const bytes = stat.encode(world.bystander.target);
    await expectNoGrowth(async () => {
      const start = world.helper.audit().length;
      const wires = Array.from(
        { length: limits.maxConnections },
        () => new Wire(world.helper, 'helper.sock'),
      );
      const answers = await Promise.all(
        Array.from({ length: 5000 }, (_, i) => wires[i % wires.length]?.call(stat.method, bytes)),
      );
      const refused = answers.filter((answer) => answer !== undefined && isTooMany(answer)).length;
      const served = answers.filter((answer) => answer?.message !== undefined).length;
      expect(served).toBeGreaterThan(0);
      expect(served + refused).toBe(5000);
      await Promise.all(wires.map((wire) => wire.close()));
      await world.expectRefusals(refused, start);
      await world.disconnect();
    });
  });

  it('keeps nothing of messages of 1 MiB that are full of fields that nobody knows', async () => {
    const unknown = Buffer.concat(Array.from({ length: 250_000 }, () => Buffer.from([0xf8, 0x7f, 0x01])));
    const bytes = Buffer.concat([stat.encode(world.bystander.target), unknown]);
    await expectNoGrowth(async () => {
      for (let i = 0; i < 3; i++) {
        const answers = await Promise.all(Array.from({ length: 10 }, () => world.call(stat, bytes)));
        expect(answers.map(({ code }) => code)).toEqual(Array.from({ length: 10 }, () => ''));
      }
    });
  });

  it('takes no more connections than policy allows, and audits the others', async () => {
    const start = world.helper.audit().length;
    const taken: Socket[] = [];
    const closed = new Set<Socket>();
    const connected = () => usage('connections of the agent');
    const dialMore = (count: number) => {
      for (let i = 0; i < count; i++) {
        const socket = dial(world.helper, 'helper.sock');
        taken.push(socket.resume().on('close', () => closed.add(socket)));
      }
    };
    dialMore(limits.maxConnections);
    await waitFor('connections', deadlineMs, async () => (await connected()) === limits.maxConnections);
    // Fewer at once than the socket has room for: the kernel would turn the others away by itself.
    for (const refused of [5, 10, 15, 20]) {
      dialMore(5);
      await waitFor('connections to be closed', deadlineMs, () => closed.size === refused);
    }
    expect(await connected()).toBe(limits.maxConnections);
    for (const socket of taken) socket.destroy();
    await waitFor('connections to end', deadlineMs, async () => (await connected()) === 0);
    await world.expectRefusals(20, start);
  });

  it.each([identify, watch])(
    'cuts off a request of $name that comes byte by byte, and one that never ends',
    async (hostile) => {
      const start = world.helper.audit().length;
      const wire = world.wire('helper.sock');
      const streams = Array.from({ length: 10 }, (_, i) => {
        const stream = wire.open(hostile.method);
        // What has come may be a whole message: it is none before its end.
        if (i % 2 === 0) stream.write(hostile.encode(world.bystander.target));
        const timer = i < 2 ? undefined : setInterval(() => stream.write(Buffer.from([0])), 50);
        return new Promise<number>((resolve) => {
          stream.resume().on('close', () => {
            clearInterval(timer);
            resolve(stream.rstCode ?? 0);
          });
        });
      });
      expect(await Promise.all(streams)).toEqual(streams.map(() => constants.NGHTTP2_CANCEL));
      await world.expectRefusals(10, start);
      expect(await usage('calls of the agent')).toBe(0);
    },
  );

  it('holds little for a reader that does not read, and serves operators while answers are not taken', async () => {
    const session = connectHttp2('http://helper', {
      createConnection: () => dial(world.helper, 'helper.sock'),
      settings: { initialWindowSize: 0 },
    });
    session.on('error', () => undefined);
    const open = (path: string, type: string) => {
      const stream = session.request({ ':method': 'POST', ':path': path, 'content-type': type });
      return stream.on('error', () => undefined);
    };
    const pods: TestPod[] = [];
    try {
      open(pathOf(watch.method), 'application/connect+proto').resume().end(Buffer.alloc(5));
      for (let i = 1; i < limits.maxCalls; i++) {
        open(pathOf(stat.method), 'application/proto').end(stat.encode(world.bystander.target));
      }
      const all = async () => (await usage('calls of the agent')) === limits.maxCalls;
      await waitFor('calls to be open', deadlineMs, all);
      const known = await usage('pods watched');
      const many = 40;
      for (let i = 0; i < many; i++) pods.push(new TestPod(world.helper));
      const seen = async () => (await usage('pods watched')) === known + many;
      await waitFor('pods to be seen', deadlineMs, seen);
      // More than what streams and sockets hold by themselves.
      for (let i = 0; i < 30; i++) {
        for (const pod of pods) {
          const marker = join(pod.volume('sockets'), 'launcher-unresponsive');
          if (i % 2 === 0) writeFileSync(marker, '');
          else unlinkSync(marker);
        }
        await usage('watches');
      }
      // It has not taken a byte so far, and is told so when it does.
      session.settings({ initialWindowSize: 65_535 });
      await world.helper.audited(
        'reader that lags behind',
        ({ method, message }) => method === watch.name && String(message).includes('changes behind'),
      );
    } finally {
      session.destroy();
      await Promise.all(pods.map((pod) => pod.destroy()));
    }
    const none = async () => (await usage('calls of the agent')) === 0;
    await waitFor('calls to end', deadlineMs, none);
  });

  it('runs no more calls than policy allows when their streams are reset', async () => {
    const pod = await world.pod();
    await pod.launcher.listen('sockets/small', 'echo', 1);
    pod.moveListener('sockets/small');
    const letGo = await pod.fillBacklog();
    const start = world.helper.audit().length;
    const wire = world.wire('helper.sock');
    for (let i = 0; i < 60; i++) {
      const stream = wire.open(identify.method);
      await new Promise<void>((resolve) => {
        stream.on('close', () => resolve()).resume();
        stream.end(identify.encode(pod.target), () => stream.close(constants.NGHTTP2_CANCEL));
      });
    }
    const [running, ended] = [new Set<unknown>(), new Set<unknown>()];
    await waitFor('calls to end', deadlineMs, async () => (await usage('calls of the agent')) === 0);
    let most = 0;
    for (const { event, call, method } of world.helper.audit().slice(start)) {
      if (method !== identify.name) continue;
      if (event === 'begin') running.add(call);
      if (event === 'end' && running.delete(call)) ended.add(call);
      most = Math.max(most, running.size);
    }
    expect(ended.size).toBeGreaterThan(0);
    expect(most).toBeLessThanOrEqual(limits.maxCalls);
    await letGo();
  });

  const pings = Buffer.concat(
    Array.from({ length: 500 }, () => frame(frameType.ping, 0, 0, Buffer.alloc(8))),
  );
  const settings = Buffer.concat(Array.from({ length: 500 }, () => frame(frameType.settings, 0, 0)));
  const more = Buffer.concat(Array.from({ length: 100 }, (_, i) => field(`x-${i}`, 'a'.repeat(100))));
  const empty = frame(frameType.continuation, 0, 1);

  it.each<[string, (i: number) => Buffer]>([
    ['pings', () => pings],
    ['settings', () => settings],
    [
      'headers of one request',
      (i) => (i === 0 ? frame(frameType.headers, 0, 1, more) : frame(frameType.continuation, 0, 1, more)),
    ],
    [
      'empty continuations',
      (i) =>
        i === 0 ? frame(frameType.headers, 0, 1) : Buffer.concat(Array.from({ length: 500 }, () => empty)),
    ],
    [
      'streams that are reset at once',
      (i) =>
        Buffer.concat(
          Array.from({ length: 100 }, (_, j) => {
            const stream = 2 * (100 * i + j) + 1;
            const head = field(':method', 'POST');
            return Buffer.concat([
              frame(frameType.headers, 4, stream, head),
              frame(frameType.reset, 0, stream, Buffer.alloc(4)),
            ]);
          }),
        ),
    ],
  ])('closes a connection that floods it with %s', async (_what, chunk) => {
    await expectNoGrowth(async () => {
      const socket = dial(world.helper, 'helper.sock');
      socket.write(opening);
      expect(await pour(socket, chunk, 20_000)).toBe(true);
      await usage('calls of the agent');
    });
  });
});
