import { randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { TestPod } from '../../integration/privhelper-fixture.js';
import type { Target } from './line.js';
import { type HostileMethod, methods, uncovered } from './methods.js';
import { unknownFields, variations } from './variations.js';
import type { Answer } from './wire.js';
import { World } from './world.js';

const isRoot = process.getuid?.() === 0;

it('knows every method of the dispatch tables and no other', () => {
  expect(uncovered()).toEqual([]);
});

describe.runIf(isRoot)('requests that a hostile agent makes up', () => {
  let world: World;

  beforeAll(async () => {
    world = await World.create();
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

  const nowhere = (): Target => ({
    podUid: randomUUID(),
    vmiUid: randomUUID(),
    attachmentPodUid: randomUUID(),
    image: '/disk.img',
  });

  /** Named by the helper itself, or by the library for the one method that is a stream. */
  function expectRefused(answer: Answer, { kind }: HostileMethod, field: string, what: string): void {
    if (kind === 'stream') {
      expect(answer.code, what).not.toBe('');
      return;
    }
    expect(answer, `${what}: ${answer.text}`).toMatchObject({
      code: 'invalid_argument',
      failure: { field, refused: true, unchanged: true },
    });
    if (field === '') expect(answer.failure?.operation, what).toBe('read request');
  }

  it.each(methods)(
    'NET-031 REC-051 STO-033 WIRE-022 refuses and audits each wrong field of $name',
    async (hostile) => {
      const start = world.helper.audit().length;
      let count = 0;
      for (const { what, bytes, field } of variations(hostile, nowhere())) {
        expectRefused(await world.call(hostile, bytes), hostile, field, `${hostile.name} ${what}`);
        count += 1;
      }
      await world.expectRefusals(count, start);
    },
  );

  it.each(methods)('reads $name past fields that it does not know', async (hostile) => {
    const right = hostile.encode(nowhere());
    const [plain, more] = [
      await world.call(hostile, right),
      await world.call(hostile, Buffer.concat([right, unknownFields])),
    ];
    // The port may be that of the answer before, until its ticket is over.
    const taken = [plain, more].some(({ failure }) => failure?.errnoName === 'EADDRINUSE');
    if (taken && hostile.name === 'SocketService.ListenVsock') return;
    expect([more.status, more.code, more.text]).toEqual([plain.status, plain.code, plain.text]);
  });

  /** Fails, or says that it changed nothing; never as a fault of the helper's own. */
  async function expectNothingDone(hostile: HostileMethod, target: Target, what: string): Promise<void> {
    const answer = await world.call(hostile, hostile.encode(target));
    const told = `${hostile.name} ${what}: ${answer.code} ${answer.text}`;
    expect(['internal', 'unknown'], told).not.toContain(answer.code);
    if (hostile.subject.endsWith('launcher')) expect(answer.failure, told).toMatchObject({ unchanged: true });
    else if (answer.message !== undefined && hostile.subject !== 'helper') {
      expect([...answer.message], `${told}: changed`).not.toEqual([0x08, 0x01]);
    }
  }

  it('AFT-012 REC-051 does nothing for a pod that is not there, no launcher’s, or without a listener', async () => {
    const bare = nowhere();
    mkdirSync(join(world.helper.podsDir, bare.podUid, 'volumes'), { recursive: true });
    const silent = new TestPod(world.helper);
    for (const hostile of methods) {
      await expectNothingDone(hostile, nowhere(), 'for a pod that is not there');
      await expectNothingDone(hostile, bare, 'for a pod without a launcher’s volumes');
      // What is dead may be marked.
      if (hostile.name === 'PodService.MarkUnresponsive') continue;
      await expectNothingDone(
        hostile,
        { ...silent.ref, attachmentPodUid: randomUUID(), image: '' },
        'for a pod without a listener',
      );
    }
    await silent.destroy();
  });

  it.each(methods.filter(({ method }) => method.input.fields.some(({ name }) => name === 'pod')))(
    'REC-051 refuses $name of a pod for the VMI of another',
    async (hostile) => {
      const { vmiUid } = nowhere();
      const answer = await world.call(hostile, hostile.encode({ ...world.bystander.target, vmiUid }));
      expect(answer).toMatchObject({
        code: 'permission_denied',
        failure: { field: 'pod.vmi_uid', refused: true, unchanged: true },
      });
      const line = world.helper.audit().findLast(({ vmi }) => vmi === vmiUid);
      expect(line).toMatchObject({ event: 'end', decision: 'refused', method: hostile.name });
    },
  );
});
