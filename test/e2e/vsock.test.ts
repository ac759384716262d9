/** The feature gate VSOCK on a node with both processes. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { waitFor } from '../harness/pods/run.js';
import { System } from '../harness/system/system.js';

const waitMs = 30_000;

describe.runIf(process.getuid?.() === 0)('the gate VSOCK', () => {
  let system: System;
  beforeAll(async () => {
    system = await System.create();
    await system.startProduct();
  });
  afterAll(async () => {
    await system?.stop();
    expect(await system?.node.leftovers()).toEqual([]);
  });

  const gates = (...featureGates: string[]) =>
    system.api.store.put('kubevirts', {
      apiVersion: 'kubevirt.io/v1',
      kind: 'KubeVirt',
      metadata: { namespace: 'kubevirt', name: 'kubevirt' },
      spec: { configuration: { developerConfiguration: { useEmulation: true, featureGates } } },
    });
  const calls = () =>
    system.audit().filter(({ event, method }) => event === 'end' && method === 'SocketService.ListenVsock');
  const logged = (text: string) => system.log('agent').split(text).length - 1;

  it('NET-030 starts and stops the service of the agent that runs, and of one that is started with it', async () => {
    expect(calls()).toEqual([]);
    gates('VSOCK');
    await waitFor('the helper to be asked', waitMs, () => calls().length > 0);
    if (calls()[0]?.['decision'] === 'allowed') {
      await waitFor('the service', waitMs, () => logged('guests can ask') === 1);
    } else {
      // The kernel has no such address: tried again and again, and said once.
      process.stderr.write(`no service here: ${JSON.stringify(calls()[0])}\n`);
      await waitFor('the third try', waitMs, () => calls().length > 2);
      expect(logged('no VSOCK service')).toBe(1);
    }
    gates();
    await waitFor('it to be switched off', waitMs, () => logged('switched off') === 1);
    const before = calls().length;
    gates('VSOCK');
    await waitFor('it to be switched on again', waitMs, () => calls().length > before);
    await system.terminate('agent');
    const ended = calls().length;
    await system.startAgent();
    await waitFor('the new agent to ask', waitMs, () => calls().length > ended);
  });
});
