import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  MountKernelArtifactRequestSchema,
  OpenContainerDiskRequestSchema,
  StatIsoRequestSchema,
} from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { mountKernelArtifact, openContainerDisk, statIso } from '../../../privhelper/policy/images.js';
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

describe('kernel artifacts', () => {
  const parse = (imagePath: string) =>
    mountKernelArtifact.parse(policy, create(MountKernelArtifactRequestSchema, { pod: refA, imagePath }));

  it.each([
    ['/boot/vmlinuz', 'vmlinuz'],
    ['initrd.img', 'initrd.img'],
    ['../../x/..a', '..a'],
  ])('%s is mounted at %s', (imagePath, name) => {
    expect(parse(imagePath)).toEqual({ ...refA, imagePath, name });
  });

  it.each(['', '/', '/boot/', '.', '/boot/..', 'a\0b', `/boot/${'a'.repeat(256)}`, '/a'.repeat(2049)])(
    '%j names no file that could be mounted',
    (imagePath) => {
      expect(refusedField(() => parse(imagePath))).toBe('image_path');
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
