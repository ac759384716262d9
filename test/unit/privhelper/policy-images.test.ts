import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  MountContainerDisksRequestSchema,
  OpenContainerDiskRequestSchema,
  StatContainerDisksRequestSchema,
  StatIsoRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import {
  mountContainerDisks,
  openContainerDisk,
  statContainerDisks,
  statIso,
} from '../../../privhelper/policy/images.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { entryText } from '../../../privhelper/policy/sockets.js';
import { refA, refusedField } from './fakes.js';

const policy = createPolicy();

describe('container-disk images', () => {
  const parse = (more: MessageInitShape<typeof OpenContainerDiskRequestSchema>) =>
    openContainerDisk.parse(
      policy,
      create(OpenContainerDiskRequestSchema, { ...more, pod: refA } as typeof more),
    );
  const volume = (value: number) => ({ case: 'volumeIndex', value }) as const;
  const kernelBoot = { case: 'kernelBoot', value: {} } as const;

  it('are those of a volume or of the kernel-boot container', () => {
    expect(parse({ container: volume(0) })).toEqual({ ...refA, volumeIndex: 0, imagePath: '' });
    const kernel = parse({ container: kernelBoot, imagePath: '/boot/vmlinuz' });
    expect(kernel).toEqual({ ...refA, volumeIndex: null, imagePath: '/boot/vmlinuz' });
    expect(openContainerDisk.audited(kernel)).toEqual({
      container: 'kernel-boot',
      imagePath: '/boot/vmlinuz',
    });
  });

  it('are bounded in index and path', () => {
    const field = (more: MessageInitShape<typeof OpenContainerDiskRequestSchema>) =>
      refusedField(() => parse(more));
    expect(field({})).toBe('container');
    expect(field({ container: volume(1000) })).toBe('volume_index');
    expect(field({ container: kernelBoot })).toBe('image_path');
    expect(field({ container: volume(0), imagePath: 'a\0b' })).toBe('image_path');
    expect(field({ container: volume(0), imagePath: 'a'.repeat(4097) })).toBe('image_path');
    expect(field({ container: volume(0), imagePath: `/disk/${'a'.repeat(256)}` })).toBe('image_path');
  });
});

describe('containers that are looked at', () => {
  type Init = MessageInitShape<typeof StatContainerDisksRequestSchema>;
  const parse = (more: Init) =>
    statContainerDisks.parse(policy, create(StatContainerDisksRequestSchema, { ...more, pod: refA } as Init));

  it('are volumes in the order of the request, then the kernel-boot container', () => {
    const checked = parse({ volumeIndexes: [7, 0], kernelBoot: true });
    expect(checked.containers).toEqual([
      { field: 'volume_indexes[0]', volumeIndex: 7 },
      { field: 'volume_indexes[1]', volumeIndex: 0 },
      { field: 'kernel_boot', volumeIndex: null },
    ]);
    expect(statContainerDisks.audited(checked)).toEqual({ containers: [7, 0, 'kernel-boot'] });
  });

  it.each<[string, Init, string]>([
    ['none', {}, 'volume_indexes'],
    ['too many', { volumeIndexes: new Array(1001).fill(0) }, 'volume_indexes'],
    ['one twice', { volumeIndexes: [1, 2, 1] }, 'volume_indexes[2]'],
    ['one out of range', { volumeIndexes: [1, 1000] }, 'volume_indexes[1]'],
  ])('are refused: %s', (_, init, field) => {
    expect(refusedField(() => parse(init))).toBe(field);
  });
});

describe('images that are mounted', () => {
  type Init = MessageInitShape<typeof MountContainerDisksRequestSchema>;
  const parse = (more: Init) =>
    mountContainerDisks.parse(
      policy,
      create(MountContainerDisksRequestSchema, { ...more, pod: refA } as Init),
    );
  const disks = (...indexes: number[]) => indexes.map((volumeIndex) => ({ volumeIndex }));

  it('are disks and kernel artifacts in the order of the request', () => {
    const checked = parse({
      disks: [{ volumeIndex: 999, imagePath: '/disk/a.img' }, { volumeIndex: 0 }],
      kernelArtifacts: ['/boot/initrd', 'vmlinuz'],
    });
    expect(checked).toEqual({
      ...refA,
      images: [
        { field: 'disks[0]', index: 999, imagePath: '/disk/a.img', name: '' },
        { field: 'disks[1]', index: 0, imagePath: '', name: '' },
        { field: 'kernel_artifacts[0]', index: null, imagePath: '/boot/initrd', name: 'initrd' },
        { field: 'kernel_artifacts[1]', index: null, imagePath: 'vmlinuz', name: 'vmlinuz' },
      ],
    });
    expect(mountContainerDisks.audited(checked)).toMatchObject({
      images: [{ container: 999, imagePath: '/disk/a.img' }, {}, { container: 'kernel-boot' }, {}],
    });
  });

  it.each<[string, Init, string]>([
    ['none', {}, 'disks'],
    ['too many disks', { disks: disks(...Array.from({ length: 257 }, (_, i) => i)) }, 'disks'],
    ['too many artifacts', { kernelArtifacts: ['a', 'b', 'c'] }, 'kernel_artifacts'],
    ['a volume twice', { disks: disks(3, 4, 3) }, 'disks[2].volume_index'],
    ['a mount point twice', { kernelArtifacts: ['/a/vmlinuz', '/b/vmlinuz'] }, 'kernel_artifacts[1]'],
    ['an index out of range', { disks: disks(0, 1000) }, 'disks[1].volume_index'],
    ['a path with NUL', { disks: [{ imagePath: 'a\0b' }] }, 'disks[0].image_path'],
    ['a long path', { disks: [{ imagePath: 'ä'.repeat(2049) }] }, 'disks[0].image_path'],
    ['a long name', { disks: [{ imagePath: `/disk/${'a'.repeat(256)}` }] }, 'disks[0].image_path'],
  ])('are refused: %s', (_, init, field) => {
    expect(refusedField(() => parse(init))).toBe(field);
  });

  it('may have paths of 4096 bytes', () => {
    expect(refusedField(() => parse({ disks: [{ imagePath: 'a/'.repeat(2048) }] }))).toBeUndefined();
  });
});

describe('kernel artifacts', () => {
  const parse = (imagePath: string) =>
    mountContainerDisks.parse(
      policy,
      create(MountContainerDisksRequestSchema, { pod: refA, kernelArtifacts: [imagePath] }),
    );

  it.each([
    ['/boot/vmlinuz', 'vmlinuz'],
    ['initrd.img', 'initrd.img'],
    ['../../x/..a', '..a'],
  ])('%s is mounted at %s', (imagePath, name) => {
    expect(parse(imagePath).images).toEqual([{ field: 'kernel_artifacts[0]', index: null, imagePath, name }]);
  });

  it.each(['', '/', '/boot/', '.', '/boot/..', 'a\0b', `/boot/${'a'.repeat(256)}`, '/a'.repeat(2049)])(
    '%j names no file that could be mounted',
    (imagePath) => {
      expect(refusedField(() => parse(imagePath))).toBe('kernel_artifacts[0]');
    },
  );
});

describe('ISO images', () => {
  type Iso = NonNullable<MessageInitShape<typeof StatIsoRequestSchema>['iso']>;
  const parse = (iso?: Iso) =>
    statIso.parse(policy, create(StatIsoRequestSchema, { pod: refA, ...(iso === undefined ? {} : { iso }) }));
  const cloudInit = (namespace: string, vmiName: string): Iso => ({
    case: 'cloudInitNoCloud',
    value: { namespace, vmiName },
  });
  const volumes = ['configMapVolume', 'downwardApiVolume', 'secretVolume', 'sysprepVolume'] as const;

  it('are in directories of their kind', () => {
    const place = (iso: Iso) => entryText(parse(iso).entry);
    expect(place(cloudInit('ns', 'vm.one'))).toBe('ephemeral-disks/cloud-init-data/ns/vm.one/noCloud.iso');
    const drive = { case: 'cloudInitConfigDrive', value: { namespace: 'ns', vmiName: 'vm' } } as const;
    expect(place(drive)).toBe('ephemeral-disks/cloud-init-data/ns/vm/configdrive.iso');
    expect(volumes.map((kind) => place({ case: kind, value: 'vol' }))).toEqual([
      'private/config-map-disks/vol.iso',
      'private/downwardapi-disks/vol.iso',
      'private/secret-disks/vol.iso',
      'private/sysprep-disks/vol.iso',
    ]);
    expect(place({ case: 'serviceAccount', value: {} })).toBe(
      'private/service-account-disk/service-account.iso',
    );
    expect(statIso.audited(parse(drive))).toEqual({ iso: place(drive) });
  });

  it('REC-051 are named by DNS names only', () => {
    const field = (iso?: Iso) => refusedField(() => parse(iso));
    expect(field()).toBe('iso');
    expect(field(cloudInit('a.b', 'vm'))).toBe('cloud_init_no_cloud.namespace');
    expect(field(cloudInit('ns', `${'a'.repeat(60)}.`.repeat(4) + 'a'.repeat(10)))).toBe(
      'cloud_init_no_cloud.vmi_name',
    );
    const noLabel = fc
      .string({ unit: 'binary', maxLength: 70 })
      .filter((text) => !/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(text));
    const notPartOfName = fc.string({ unit: fc.constantFrom('..', '/', '\0', '-', 'A', '_', ' ', '\n') });
    fc.assert(
      fc.property(noLabel, notPartOfName, fc.constantFrom(...volumes), (text, wrong, kind) => {
        expect(field({ case: kind, value: text })).toMatch(/_volume$/);
        expect(field(cloudInit(text, 'vm'))).toBe('cloud_init_no_cloud.namespace');
        expect(field(cloudInit('ns', `vm${wrong}/`))).toBe('cloud_init_no_cloud.vmi_name');
      }),
    );
  });
});
