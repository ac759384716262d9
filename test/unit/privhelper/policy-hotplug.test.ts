import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import {
  PlugBlockRequestSchema,
  PlugFilesystemRequestSchema,
  PlugKind,
  UnplugRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { plugBlock, plugFilesystem, unplug } from '../../../privhelper/policy/hotplug.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { podA, podB, refA, refusedField } from './fakes.js';

const policy = createPolicy();
const badVolumes = ['', '.', '..', 'a/b', '/data', 'data.img', 'Data', '-a', 'a-', 'a\0', 'a'.repeat(64)];

describe('hot-plugged volumes', () => {
  const right = { pod: refA, attachmentPodUid: podB, volume: 'data', kind: PlugKind.DISK };
  const parse = (more: Partial<typeof right>) =>
    plugFilesystem.parse(policy, create(PlugFilesystemRequestSchema, { ...right, ...more }));
  const field = (more: Partial<typeof right>) => refusedField(() => parse(more));

  it('are disks and directories of an attachment pod', () => {
    const disk = { ...refA, attachmentPodUid: podB, volume: 'data', kind: 'disk' };
    expect(parse({})).toEqual(disk);
    expect(parse({ kind: PlugKind.DIRECTORY })).toEqual({ ...disk, kind: 'directory' });
    expect(plugFilesystem.audited(parse({}))).toEqual({
      attachmentPodUid: podB,
      volume: 'data',
      kind: 'disk',
    });
    for (const kind of [PlugKind.UNSPECIFIED, PlugKind.BLOCK, 99 as PlugKind]) {
      expect(field({ kind })).toBe('kind');
    }
    expect(field({ attachmentPodUid: podA })).toBe('attachment_pod_uid');
    expect(field({ attachmentPodUid: '' })).toBe('attachment_pod_uid');
  });

  it.each(badVolumes)('are not named %j', (volume) => {
    expect(field({ volume })).toBe('volume');
    const request = { pod: refA, volume, kind: PlugKind.DISK };
    const block = { pod: refA, attachmentPodUid: podB, volume };
    expect(refusedField(() => plugBlock.parse(policy, create(PlugBlockRequestSchema, block)))).toBe('volume');
    expect(refusedField(() => unplug.parse(policy, create(UnplugRequestSchema, request)))).toBe('volume');
  });

  it.each(['dev', 'path', 'proc', 'sys'])(
    'are named %j where they are no directory of the container',
    (volume) => {
      expect(field({ volume })).toBe('volume');
      expect(field({ volume, kind: PlugKind.DIRECTORY })).toBe('volume');
      const block = { pod: refA, attachmentPodUid: podB, volume };
      expect(plugBlock.parse(policy, create(PlugBlockRequestSchema, block)).volume).toBe(volume);
      // What another handler has plugged goes in any case.
      for (const kind of [PlugKind.DISK, PlugKind.DIRECTORY, PlugKind.BLOCK]) {
        const request = create(UnplugRequestSchema, { pod: refA, volume, kind });
        expect(unplug.parse(policy, request).volume).toBe(volume);
      }
    },
  );

  it('are block devices of an attachment pod', () => {
    const of = (attachmentPodUid: string) =>
      plugBlock.parse(
        policy,
        create(PlugBlockRequestSchema, { pod: refA, attachmentPodUid, volume: 'data' }),
      );
    expect(of(podB)).toEqual({ ...refA, attachmentPodUid: podB, volume: 'data' });
    expect(plugBlock.audited(of(podB))).toEqual({ attachmentPodUid: podB, volume: 'data' });
    expect(refusedField(() => of(podA))).toBe('attachment_pod_uid');
  });

  it('are unplugged by kind', () => {
    const of = (kind: MessageInitShape<typeof UnplugRequestSchema>['kind']) =>
      unplug.parse(policy, create(UnplugRequestSchema, { pod: refA, volume: 'data', kind: kind ?? 0 }));
    expect(of(PlugKind.BLOCK)).toEqual({ ...refA, volume: 'data', kind: 'block' });
    expect(unplug.audited(of(PlugKind.DISK))).toEqual({ volume: 'data', kind: 'disk' });
    expect(refusedField(() => of(PlugKind.UNSPECIFIED))).toBe('kind');
  });
});
