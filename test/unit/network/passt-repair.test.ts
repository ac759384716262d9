import { describe, expect, it } from 'vitest';
import type { PodRef } from '../../../agent/api/pod-ref.js';
import type { Vmi } from '../../../agent/api/vmi.js';
import { PasstRepair } from '../../../agent/network/passt-repair.js';
import { MigrationSide } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { testLogger } from '../kube/test-logger.js';

function vmi(uid: string, passt = true): Vmi {
  const iface = { name: 'default', ...(passt ? { passtBinding: {} } : { masquerade: {} }) };
  return {
    metadata: { namespace: 'ns', name: 'vm', uid },
    spec: { domain: { devices: { interfaces: [iface] } } },
    status: {},
  } as unknown as Vmi;
}

/** A helper whose calls end when the test says so. */
function setUp(enabled = true) {
  const calls: { pod: PodRef; side: MigrationSide; end: (error?: Error) => void }[] = [];
  const helper = {
    repairPasst: (pod: PodRef, side: MigrationSide) =>
      new Promise<bigint>((resolve, reject) => {
        calls.push({ pod, side, end: (error) => (error === undefined ? resolve(2n) : reject(error)) });
      }),
  };
  const lines: string[] = [];
  const log = testLogger(lines);
  return { repair: new PasstRepair({ helper, enabled: () => enabled, log }), calls, lines };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

describe("repair of passt's connections", () => {
  it('NET-028 is asked for on either side, for the pod of the VMI', () => {
    const { repair, calls } = setUp();
    repair.startSource(vmi('a'), 'p1');
    repair.startTarget(vmi('b'), 'p2');
    expect(calls.map(({ pod, side }) => [pod, side])).toEqual([
      [{ podUid: 'p1', vmiUid: 'a' }, MigrationSide.SOURCE],
      [{ podUid: 'p2', vmiUid: 'b' }, MigrationSide.TARGET],
    ]);
  });

  it('NET-028 runs once at a time for a VMI, and again once it has ended, however it ended', async () => {
    const { repair, calls, lines } = setUp();
    repair.startSource(vmi('a'), 'p1');
    repair.startSource(vmi('a'), 'p1');
    repair.startTarget(vmi('a'), 'p1');
    expect(calls).toHaveLength(1);
    calls[0]?.end(new Error('no socket there'));
    await settled();
    repair.startSource(vmi('a'), 'p1');
    calls[1]?.end();
    await settled();
    repair.startTarget(vmi('a'), 'p1');
    expect(calls).toHaveLength(3);
    // A migration goes on without it, so its failure is a warning.
    expect(lines.map((line) => JSON.parse(line).level)).toEqual(['warning', 'info']);
  });

  it('NET-028 is not for other bindings, and not without the feature gate', () => {
    const on = setUp();
    on.repair.startSource(vmi('a', false), 'p1');
    const off = setUp(false);
    off.repair.startTarget(vmi('a'), 'p1');
    expect([...on.calls, ...off.calls]).toEqual([]);
  });
});
