import { Client, credentials } from '@grpc/grpc-js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Notify } from '../../gen/kubevirt/notify/v1/notify_pb.js';
import { callUnary } from '../harness/launcher/grpc.js';
import { atStep } from '../harness/system/steps.js';
import { System, type Vm } from '../harness/system/system.js';

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

const reasons: Readonly<Record<string, string>> = { Crashed: 'Panicked', Paused: 'User' };

/** What a launcher that lies can send: it speaks over the notify pipe of its own pod. */
class Liar {
  readonly #client: Client;

  constructor(own: Vm) {
    const pipe = `/proc/${own.launcher.pid}/root/run/kubevirt/domain-notify-pipe.sock`;
    this.#client = new Client(`unix:${pipe}`, credentials.createInsecure());
  }

  async domain(eventType: string, about: Vm, status: string): Promise<{ success: boolean; message: string }> {
    const { namespace, name, uid } = about;
    const document = {
      ObjectMeta: {
        namespace,
        name,
        uid,
        ...(status === '' ? { deletionTimestamp: '2026-01-01T00:00:00Z' } : {}),
      },
      Spec: { Name: `${namespace}_${name}`, Metadata: { KubeVirt: { UID: uid } } },
      Status: { Status: status, Reason: reasons[status] ?? '' },
    };
    const request = { eventType, domainJSON: Buffer.from(JSON.stringify(document)) };
    return callUnary(this.#client, Notify.method.handleDomainEvent, request, 10_000);
  }

  async event({ namespace, name, uid }: Vm): Promise<{ success: boolean; message: string }> {
    const event = {
      involvedObject: { kind: 'VirtualMachineInstance', namespace, name, uid },
      type: 'Warning',
      reason: 'IOerror',
      message: 'a lie',
    };
    const request = { eventJSON: Buffer.from(JSON.stringify(event)) };
    return callUnary(this.#client, Notify.method.handleK8sEvent, request, 10_000);
  }

  close(): void {
    this.#client.close();
  }
}

describe('a launcher that lies', () => {
  it('AFT-001 what it says of another VM changes nothing there and is refused and written down', async () => {
    const [own, other] = await Promise.all([
      system.createVm({ name: 'own', machine: 'fake' }),
      system.createVm({ name: 'other', namespace: 'kube-system', machine: 'fake' }),
    ]);
    await Promise.all([own, other].map((vm) => system.waitForPhase(vm, 'Running')));
    const liar = new Liar(own);
    try {
      const before = system.vmi(other);
      const lies = [
        await liar.domain('MODIFIED', other, 'Crashed'),
        await liar.domain('MODIFIED', other, ''),
        await liar.domain('DELETED', other, 'Shutoff'),
        await liar.domain('ADDED', { ...other, uid: own.uid }, 'Shutoff'),
        await liar.domain('MODIFIED', { ...own, uid: other.uid }, 'Crashed'),
        await liar.event(other),
      ];
      expect(lies.map(({ success }) => success)).toEqual(lies.map(() => false));
      for (const { message } of lies) expect(message).toContain('mismatch');
      // Of its own VM it may say what it likes, and by then the lies have had their effect, had they any.
      expect((await liar.domain('MODIFIED', own, 'Paused')).success).toBe(true);
      await atStatus(own, 'Paused');

      expect(system.vmi(other)).toEqual(before);
      expect(other.launcher.stopCommands()).toEqual([]);
      const events = system.api.store.list('events', 'kube-system') as { message?: string }[];
      expect(events.filter(({ message }) => message?.includes('lie'))).toEqual([]);
      const refusals = system
        .log('agent')
        .split('\n')
        .filter((line) => line.includes('"audit":"notify"'));
      expect(refusals.join('\n')).toContain(own.pod.uid);
    } finally {
      liar.close();
    }
    for (const vm of [own, other]) system.deleteVmi(vm);
    for (const vm of [own, other]) {
      await atStep(system, vm.uid, 'cleaned', () => {});
      await system.finishDeletion(vm);
    }
    expect(await system.node.leftovers()).toEqual([]);
  });
});

async function atStatus(vm: Vm, condition: string): Promise<void> {
  await system.waitForVmi(vm, `condition ${condition}`, ({ status }) =>
    (status.conditions ?? []).some(({ type, status: value }) => type === condition && value === 'True'),
  );
}
