import { describe, expect, it } from 'vitest';
import { Notify } from '../../../gen/kubevirt/notify/v1/notify_pb.js';
import { Capability } from '../../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import { HelperService } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { StorageService } from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { declaredBy, methodName, services } from '../../../privhelper/declarations.js';
import { assertComplete, inspection, table } from '../../../privhelper/dispatch.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { declareAll, describeAll } from '../../../privhelper/server/routes.js';

describe('dispatch table', () => {
  it('has every method of the services exactly once', () => {
    const all = [...table, ...inspection];
    expect(() => assertComplete(all, services)).not.toThrow();
    expect(all).toHaveLength(services.flatMap((service) => service.methods).length);
  });

  it('keeps the helper from starting when a method is missing, foreign or twice there', () => {
    expect(() => assertComplete(table.slice(1), services)).toThrow(/Health is not in the dispatch table/);
    expect(() => assertComplete([...table, ...inspection, table[0]], services)).toThrow(/Health .* twice/);
    const foreign = { method: Notify.method.handleDomainEvent };
    expect(() => assertComplete([...table, ...inspection, foreign], services)).toThrow(
      /not a method of the services/,
    );
  });

  it('keeps the helper from starting when a method has no declaration', () => {
    expect(() => declaredBy(Notify.method.handleDomainEvent)).toThrow(/has no declaration/);
  });

  it('keeps the helper from starting when a method about a launcher does not declare how it is identified', () => {
    const [stat] = table.filter(({ method }) => method === PodService.method.stat);
    if (stat === undefined) throw new Error('Stat is not in the table');
    expect(() => declareAll([stat])).not.toThrow();
    expect(() => declareAll([{ ...stat, subject: 'launcher' }])).toThrow(
      /PodService.Stat is about a launcher/,
    );
  });

  it('turns declarations into masks of kernel capability numbers', () => {
    expect(declaredBy(HelperService.method.health)).toMatchObject({ caps: 0n, deadlineMs: 1000 });
    expect(declaredBy(PodService.method.identify).caps).toBe((1n << 1n) | (1n << 19n));
    expect(declaredBy(PodService.method.watch)).toMatchObject({ caps: 1n << 2n, deadlineMs: 0 });
    expect(declaredBy(StorageService.method.mountContainerDisks).caps).toBe(
      (1n << 0n) | (1n << 1n) | (1n << 21n) | (1n << 18n) | (1n << 19n),
    );
    expect(Object.values(Capability).filter((value) => typeof value === 'number')).toHaveLength(14);
  });

  it('describes checks with the limits of the policy in force', () => {
    const limits = {
      maxDevices: 3,
      maxBlockVolumes: 5,
      maxAttachments: 7,
      maxInterfaceIndex: 11,
      maxQueues: 13,
      maxForwardedPorts: 17,
      maxVolumeIndex: 19,
      maxMountsPerVmi: 23,
      maxImagePathBytes: 29,
    };
    const entries = declareAll([...table, ...inspection]);
    const textOf = (overrides: Partial<typeof limits>) => {
      const described = describeAll(entries, createPolicy(overrides));
      return new Map(described.map(({ method, checks }) => [method.split('.').at(-1), checks.join('; ')]));
    };
    const lowered = textOf(limits);
    expect(lowered.get('Claim')).toMatch(/at most 3 devices.*at most 5 block volumes/);
    expect(lowered.get('SetPolicy')).toContain('at most 5 block volumes');
    expect(lowered.get('Apply')).toMatch(
      /at most 7 attachments and 7 det.*index at most 11, queues at most 13/,
    );
    expect(lowered.get('Apply')).toContain('at most 17 forwarded ports');
    expect(lowered.get('Connect')).toContain('a volume index up to 19');
    expect(lowered.get('StatContainerDisks')).toContain('at most 20 volume_indexes, each at most 19');
    expect(lowered.get('MountContainerDisks')).toMatch(
      /at most 23 disks.*index is at most 19.*at most 29 bytes/,
    );
    expect(lowered.get('OpenContainerDisk')).toMatch(/index is at most 19.*at most 29 bytes/);
  });

  it('describes each method with its declaration and checks', () => {
    const described = describeAll(declareAll(table), createPolicy());
    const identify = described.find(({ method }) => method.endsWith('PodService.Identify'));
    expect(identify?.method).toBe('virtprivsep.privhelper.v1.PodService.Identify');
    expect(identify?.declaration?.deadlineMs).toBe(5000);
    expect(identify?.checks).toEqual([
      'pod_uid and vmi_uid are canonical UUIDs',
      expect.stringContaining('stays with the VMI'),
      expect.stringContaining('listens on launcher-sock lives'),
    ]);
    expect(methodName(PodService.method.identify)).toBe('PodService.Identify');
  });
});
