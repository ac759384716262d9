import { create } from '@bufbuild/protobuf';
import { describe, expect, it, vi } from 'vitest';
import { ClaimOutcome, Device } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { ApplyRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { Native } from '../../../native/binding.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { Tickets } from '../../../privhelper/descriptors/tickets.js';
import type { Helper } from '../../../privhelper/helper.js';
import { claim } from '../../../privhelper/operations/device.js';
import { apply } from '../../../privhelper/operations/network.js';
import { release } from '../../../privhelper/operations/pod.js';
import { closeNotify, connect, listenNotify } from '../../../privhelper/operations/socket.js';
import { mountContainerDisk, unmountContainerDisks } from '../../../privhelper/operations/storage.js';
import type { MountRecords } from '../../../privhelper/pods/records.js';
import { PodRegistry } from '../../../privhelper/pods/registry.js';
import { apply as applyCheck } from '../../../privhelper/policy/network.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { FakeLaunchers, fakeNative, invocation, nativeError, podA, refA } from './fakes.js';

function setUp(methods: Partial<Native>) {
  const launchers = new FakeLaunchers();
  const native = fakeNative({ ...launchers.methods, ...methods });
  const policy = createPolicy();
  const steps: string[] = [];
  const recorded = new Set<string>();
  const records: Pick<MountRecords, 'add' | 'names' | 'remove'> = {
    add: (pod) => {
      steps.push('record');
      recorded.add(pod.podUid);
    },
    names: (pod) => recorded.has(pod.podUid),
    remove: (pod) => recorded.delete(pod.podUid),
  };
  const tickets = new Tickets({
    limit: 4,
    ttlMs: 5000,
    close: (fd) => native.close(fd),
    random: (n) => new Uint8Array(n),
  });
  const identify = declaredBy(PodService.method.identify);
  const pods = new PodRegistry({ native, podsDir: 3, policy, identify, onExit: () => undefined });
  const helper = { native, policy, podsDir: 3, pods, tickets, records, forbiddenNetworks: [] };
  return { helper: helper as unknown as Helper, launchers, steps, recorded, tickets };
}

describe('sockets', () => {
  it('answers a connected socket as a ticket for the caller', async () => {
    const connectSocket = vi.fn(async () => 55);
    const { helper, tickets } = setUp({ connectSocket });
    const caller = invocation();
    const { ticket } = await connect(helper, caller, { ...refA, volume: 'sockets', name: 'launcher-sock' });
    expect(tickets.redeem(ticket?.value ?? new Uint8Array(), caller.peer).fd).toBe(55);
    expect(connectSocket).toHaveBeenCalledWith(
      expect.anything(),
      3,
      podA,
      'sockets',
      'launcher-sock',
      expect.objectContaining({ pidfd: 100 }),
    );
  });

  it.each([
    [107, 107],
    [0, 0],
  ])('WIRE-008 gives the notify socket of a launcher of uid %i to uid %i', async (launcherUid, owner) => {
    const listenSocket = vi.fn(async () => ({ fd: 60, dev: 1n, ino: 2n }));
    const { helper, launchers } = setUp({ listenSocket });
    launchers.uid = launcherUid;
    await listenNotify(helper, invocation(), refA);
    expect(listenSocket).toHaveBeenCalledWith(
      expect.anything(),
      3,
      podA,
      'public',
      'domain-notify-pipe.sock',
      owner,
      owner,
    );
  });

  it('WIRE-009 unlinks only the notify socket that it made, and closing twice is harmless', async () => {
    const unlinkSocket = vi.fn(async () => true);
    const { helper } = setUp({ listenSocket: async () => ({ fd: 60, dev: 1n, ino: 2n }), unlinkSocket });
    expect(await closeNotify(helper, invocation(), refA)).toEqual({ changed: false });
    await listenNotify(helper, invocation(), refA);
    expect(await closeNotify(helper, invocation(), refA)).toEqual({ changed: true });
    expect(await closeNotify(helper, invocation(), refA)).toEqual({ changed: false });
    expect(unlinkSocket).toHaveBeenCalledExactlyOnceWith(
      expect.anything(),
      3,
      podA,
      'public',
      'domain-notify-pipe.sock',
      { dev: 1n, ino: 2n },
    );
  });

  it('releases everything of a pod, also when its directory is gone', async () => {
    const { helper, tickets, launchers } = setUp({
      listenSocket: async () => ({ fd: 60, dev: 1n, ino: 2n }),
      unlinkSocket: () => Promise.reject(nativeError('ENOENT')),
    });
    await listenNotify(helper, invocation(), refA);
    expect(await release(helper, invocation(), refA)).toEqual({ changed: true });
    expect(tickets.size).toBe(0);
    expect(launchers.closed).toEqual([60, 101, 102]);
    expect(await release(helper, invocation(), refA)).toEqual({ changed: false });
  });
});

describe('container disks', () => {
  it('STO-008 writes the record before the mount', async () => {
    const { helper, steps } = setUp({
      mountContainerDisk: async () => {
        steps.push('mount');
        return true;
      },
    });
    const mount = { ...refA, volumeIndex: 1, imagePath: '' };
    expect(await mountContainerDisk(helper, invocation(), mount)).toEqual({ changed: true });
    expect(steps).toEqual(['record', 'mount']);
  });

  it('unmounts without a launcher what the record names, and touches nothing else', async () => {
    const unmount = vi.fn(async () => true);
    const { helper, launchers, recorded } = setUp({ unmountContainerDisks: unmount });
    launchers.pin = () => Promise.reject(nativeError('ENOENT'));
    expect(await unmountContainerDisks(helper, invocation(), refA)).toEqual({ changed: false });
    expect(unmount).not.toHaveBeenCalled();
    recorded.add(podA);
    expect(await unmountContainerDisks(helper, invocation(), refA)).toEqual({ changed: true });
    expect(unmount).toHaveBeenCalledExactlyOnceWith(expect.anything(), 3, podA, null);
    expect(recorded.size).toBe(0);
  });

  it('keeps the record when the unmount fails', async () => {
    const { helper, recorded } = setUp({ unmountContainerDisks: () => Promise.reject(nativeError('EBUSY')) });
    recorded.add(podA);
    await expect(unmountContainerDisks(helper, invocation(), refA)).rejects.toThrow('EBUSY');
    expect(recorded.size).toBe(1);
  });
});

describe('network', () => {
  const setup = applyCheck.parse(
    createPolicy(),
    create(ApplyRequestSchema, {
      pod: refA,
      attachments: [
        {
          network: 'n',
          podInterface: 'eth0',
          primary: true,
          binding: { case: 'bridge', value: { dhcp: { ipamDisabled: true } } },
        },
      ],
    }),
  );

  it.each([
    [107, 107],
    [0, 0],
  ])('makes taps of a launcher of uid %i for uid %i', async (launcherUid, owner) => {
    const applyNetwork = vi.fn(async () => false);
    const writeVolumeFile = vi.fn(async () => true);
    const { helper, launchers } = setUp({ applyNetwork, writeVolumeFile });
    launchers.uid = launcherUid;
    expect(await apply(helper, invocation(), setup)).toEqual({ changed: true });
    expect(applyNetwork).toHaveBeenCalledWith(
      expect.anything(),
      expect.anything(),
      [],
      expect.objectContaining({ uid: owner, gid: owner }),
    );
    expect(writeVolumeFile).toHaveBeenCalledWith(
      expect.anything(),
      3,
      podA,
      'private',
      'vif-cache-eth0.json',
      expect.any(Uint8Array),
      { uid: 107, gid: 107, mode: 0o604 },
    );
  });
});

describe('devices', () => {
  it('answers one outcome for each device, in order', async () => {
    const claimDevices = vi.fn(async () => ['claimed' as const, 'missing' as const]);
    const { helper } = setUp({ claimDevices });
    const requested = [Device.TUN, Device.KVM];
    const answer = await claim(helper, invocation(), { ...refA, requested, devices: ['tun', 'kvm'] });
    expect(answer.results).toEqual([
      { device: Device.TUN, outcome: ClaimOutcome.CLAIMED },
      { device: Device.KVM, outcome: ClaimOutcome.MISSING },
    ]);
    expect(claimDevices).toHaveBeenCalledWith(expect.anything(), expect.anything(), ['tun', 'kvm'], 107, 107);
  });
});
