import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  ConnectAttachmentRequestSchema,
  ConnectRequestSchema,
  ListenRequestSchema,
  PodListener,
  PodSocket,
} from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { connect, connectAttachment, entryText, listener } from '../../../privhelper/policy/sockets.js';
import { podA, podB, refA, refusedField, vmiA, vmiB } from './fakes.js';

const policy = createPolicy();
const sockets = Object.values(PodSocket).filter((value) => typeof value === 'number');

describe('sockets of a pod', () => {
  const parse = (more: MessageInitShape<typeof ConnectRequestSchema>) =>
    connect.parse(policy, create(ConnectRequestSchema, { ...more, pod: refA } as typeof more));
  const field = (more: MessageInitShape<typeof ConnectRequestSchema>) => refusedField(() => parse(more));

  it.each([
    [PodSocket.LAUNCHER_COMMAND, {}, 'sockets/launcher-sock'],
    [PodSocket.SERIAL_CONSOLE, {}, `private/${vmiA}/virt-serial0`],
    [PodSocket.VNC, {}, `private/${vmiA}/virt-vnc`],
    [PodSocket.USB_REDIRECTION, {}, `private/${vmiA}/virt-usbredir-0`],
    [PodSocket.USB_REDIRECTION, { index: 3 }, `private/${vmiA}/virt-usbredir-3`],
    [PodSocket.VIRTQEMUD, {}, 'libvirt-runtime/virtqemud-sock'],
    [PodSocket.MIGRATION_MEMORY, {}, `public/migrationproxy/${vmiA}-49152-source.sock`],
    [PodSocket.MIGRATION_BLOCK, {}, `public/migrationproxy/${vmiA}-49153-source.sock`],
    [PodSocket.MIGRATION_MEMORY, { sourceVmiUid: vmiB }, `public/migrationproxy/${vmiB}-49152-source.sock`],
    [PodSocket.MIGRATION_BLOCK, { sourceVmiUid: vmiB }, `public/migrationproxy/${vmiB}-49153-source.sock`],
    [PodSocket.DOWNWARD_METRICS, {}, 'private/downwardmetrics-channel/downwardmetrics.sock'],
    [PodSocket.CONTAINER_DISK, { index: 999 }, 'container-disks/disk_999.sock'],
    [PodSocket.KERNEL_BOOT, {}, 'container-disks/kernel-boot.sock'],
  ])('%i with %j are at %s', (socket, more, place) => {
    const checked = parse({ socket, ...more });
    expect(entryText(checked.entry)).toBe(place);
    expect(connect.audited(checked)).toEqual({ socket: place });
    expect(checked.listener).toBe(socket === PodSocket.LAUNCHER_COMMAND ? 'launcher' : 'pod');
  });

  it('MIG-032 are no others', () => {
    expect(field({})).toBe('socket');
    expect(field({ socket: 77 as PodSocket })).toBe('socket');
  });

  it('take an index only where there is more than one', () => {
    expect(field({ socket: PodSocket.USB_REDIRECTION, index: 4 })).toBe('index');
    expect(field({ socket: PodSocket.CONTAINER_DISK, index: 1000 })).toBe('index');
    const indexed = new Set([PodSocket.UNSPECIFIED, PodSocket.USB_REDIRECTION, PodSocket.CONTAINER_DISK]);
    for (const socket of sockets.filter((each) => !indexed.has(each))) {
      expect([socket, field({ socket, index: 1 })]).toEqual([socket, 'index']);
    }
  });

  it('take the source of a migration only for its sockets, as a UUID', () => {
    const migration = new Set([PodSocket.UNSPECIFIED, PodSocket.MIGRATION_MEMORY, PodSocket.MIGRATION_BLOCK]);
    for (const socket of sockets.filter((each) => !migration.has(each))) {
      expect([socket, field({ socket, sourceVmiUid: vmiB })]).toEqual([socket, 'source_vmi_uid']);
    }
    fc.assert(
      fc.property(fc.string({ unit: 'binary', minLength: 1, maxLength: 64 }), (sourceVmiUid) => {
        expect(field({ socket: PodSocket.MIGRATION_MEMORY, sourceVmiUid })).toBe('source_vmi_uid');
      }),
    );
  });
});

describe('attachment pods', () => {
  const parse = (attachmentPodUid: string) =>
    connectAttachment.parse(policy, create(ConnectAttachmentRequestSchema, { pod: refA, attachmentPodUid }));

  it('are named by UUID and are not the launcher pod', () => {
    expect(parse(podB)).toEqual({ ...refA, attachmentPodUid: podB });
    expect(connectAttachment.audited(parse(podB))).toEqual({ attachmentPodUid: podB });
    for (const wrong of ['', '..', `${podB}/`, podA]) {
      expect(refusedField(() => parse(wrong))).toBe('attachment_pod_uid');
    }
  });
});

describe('listeners in a pod', () => {
  const parse = (each: PodListener) =>
    listener.parse(policy, create(ListenRequestSchema, { pod: refA, listener: each }));

  it.each([
    [PodListener.NOTIFY, 'public/domain-notify-pipe.sock', 'launcher'],
    [PodListener.MIGRATION_CONTROL, `public/migrationproxy/${vmiA}-source.sock`, 'qemu'],
    [PodListener.MIGRATION_MEMORY, `public/migrationproxy/${vmiA}-49152-source.sock`, 'qemu'],
    [PodListener.MIGRATION_BLOCK, `public/migrationproxy/${vmiA}-49153-source.sock`, 'qemu'],
  ])('%i is at %s and belongs to the user of %s', (each, place, owner) => {
    const checked = parse(each);
    expect([entryText(checked.entry), checked.owner]).toEqual([place, owner]);
    expect(listener.audited(checked)).toEqual({ listener: place });
  });

  it('MIG-032 are no others', () => {
    expect(refusedField(() => parse(PodListener.UNSPECIFIED))).toBe('listener');
    expect(refusedField(() => parse(9 as PodListener))).toBe('listener');
  });
});
