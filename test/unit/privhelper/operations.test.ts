import { create } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { describe, expect, it, vi } from 'vitest';
import { ClaimOutcome } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { Device } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { ApplyRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { ListenRequestSchema, PodListener } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { ContainerDiskState } from '../../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import type {
  ClaimOutcome as ClaimedOutcome,
  Native,
  ContainerDiskState as NativeState,
  WriteOutcome,
} from '../../../native/binding.js';
import { declaredBy } from '../../../privhelper/declarations.js';
import { Tickets } from '../../../privhelper/descriptors/tickets.js';
import { toFailure } from '../../../privhelper/failure.js';
import type { Helper } from '../../../privhelper/helper.js';
import { claim } from '../../../privhelper/operations/device.js';
import { apply } from '../../../privhelper/operations/network.js';
import { release } from '../../../privhelper/operations/pod.js';
import {
  closeListener,
  connect,
  connectAttachment,
  listen,
  listenVsock,
} from '../../../privhelper/operations/socket.js';
import {
  mountContainerDisks,
  statContainerDisks,
  unmountContainerDisks,
} from '../../../privhelper/operations/storage.js';
import type { MountRecords } from '../../../privhelper/pods/records.js';
import { PodRegistry } from '../../../privhelper/pods/registry.js';
import { apply as applyCheck } from '../../../privhelper/policy/network.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { listener as listenerCheck } from '../../../privhelper/policy/sockets.js';
import type { SelinuxMode } from '../../../privhelper/selinux.js';
import { FakeLaunchers, fakeNative, invocation, nativeError, podA, podB, refA, vmiA } from './fakes.js';

function setUp(methods: Partial<Native>, mode: SelinuxMode = 'disabled') {
  const launchers = new FakeLaunchers();
  const native = fakeNative({ ...launchers.methods, ...methods });
  const policy = createPolicy();
  const steps: string[] = [];
  const recorded = new Set<string>();
  const records: Pick<MountRecords, 'add' | 'names' | 'remove'> = {
    add: (pod, indexes) => {
      steps.push(`record ${indexes.map((index) => index ?? 'kernel-boot')}`);
      recorded.add(pod.podUid);
    },
    names: (pod) => recorded.has(pod.podUid),
    remove: (pod) => recorded.delete(pod.podUid),
  };
  const tickets = new Tickets({
    limit: 4,
    ttlMs: 5000,
    close: (fd) => native.close(fd),
    random: (n) => new Uint8Array(n).fill(tickets.size),
  });
  const identify = declaredBy(PodService.method.identify);
  const pods = new PodRegistry({ native, podsDir: 3, policy, identify, onExit: () => undefined });
  const selinux = { mode: () => mode };
  const helper = { native, policy, podsDir: 3, pods, tickets, records, forbiddenNetworks: [], selinux };
  return { helper: helper as unknown as Helper, launchers, steps, recorded, tickets };
}

/** The checked request about a listener. */
const named = (listener: PodListener) =>
  listenerCheck.parse(createPolicy(), create(ListenRequestSchema, { pod: refA, listener }));
const notify = named(PodListener.NOTIFY);

describe('sockets', () => {
  it('answers a connected socket as a ticket for the caller', async () => {
    const connectSocket = vi.fn(async () => 55);
    const { helper, tickets } = setUp({ connectSocket });
    const caller = invocation();
    const entry = { volume: 'sockets', path: ['launcher-sock'] } as const;
    const { ticket } = await connect(helper, caller, { ...refA, entry, listener: 'launcher' });
    expect(tickets.redeem(ticket?.value ?? new Uint8Array(), caller.peer).fd).toBe(55);
    const launcher = expect.objectContaining({ pidfd: 100 });
    expect(connectSocket).toHaveBeenLastCalledWith(expect.anything(), 3, podA, entry, launcher);
    await connect(helper, caller, { ...refA, entry, listener: 'pod' });
    expect(connectSocket).toHaveBeenLastCalledWith(expect.anything(), 3, podA, entry, null);
  });

  it('NET-030 answers the socket of the VSOCK service as a ticket that is of no pod, and closes what it cannot issue', async () => {
    let fd = 70;
    const close = vi.fn();
    const { helper, tickets } = setUp({ listenVsock: async () => fd++, close });
    const caller = invocation();
    const { ticket } = await listenVsock(helper, caller);
    for (let i = 1; i < 4; i++) await listenVsock(helper, caller);
    await expect(listenVsock(helper, caller)).rejects.toThrow('unclaimed');
    expect(close.mock.calls).toEqual([[74]]);
    const claimed = tickets.redeem(ticket?.value ?? new Uint8Array(), caller.peer);
    expect(claimed).toMatchObject({ fd: 70, owner: { podUid: undefined, vmiUid: undefined } });
  });

  it('keeps an attachment pod with its launcher pod only once it has answered', async () => {
    const connectNow = vi.fn(async () => 56);
    const { helper } = setUp({ connectAttachment: connectNow });
    const attachment = { ...refA, attachmentPodUid: 'at' };
    connectNow.mockRejectedValueOnce(nativeError('ENOENT'));
    await expect(connectAttachment(helper, invocation(), attachment)).rejects.toThrow('ENOENT');
    expect(() => helper.pods.checkAttachment(podB, 'at')).not.toThrow();
    const { ticket } = await connectAttachment(helper, invocation(), attachment);
    expect(helper.tickets.redeem(ticket?.value ?? new Uint8Array(), invocation().peer)).toMatchObject({
      fd: 56,
      owner: { podUid: podA },
    });
    expect(connectNow).toHaveBeenLastCalledWith(expect.anything(), 3, 'at');
    expect(() => helper.pods.checkAttachment(podB, 'at')).toThrow('another launcher pod');
  });

  it.each([
    [107, 107],
    [0, 0],
  ])('WIRE-008 gives the notify socket of a launcher of uid %i to uid %i', async (launcherUid, owner) => {
    const listenSocket = vi.fn(async () => ({ fd: 60, dev: 1n, ino: 2n }));
    const { helper, launchers } = setUp({ listenSocket });
    launchers.uid = launcherUid;
    await listen(helper, invocation(), notify);
    expect(listenSocket).toHaveBeenCalledWith(
      expect.anything(),
      3,
      podA,
      { volume: 'public', path: ['domain-notify-pipe.sock'] },
      owner,
      owner,
    );
  });

  it('gives migration sockets to the user of QEMU also where the launcher is root', async () => {
    const listenSocket = vi.fn(async () => ({ fd: 60, dev: 1n, ino: 2n }));
    const { helper, launchers } = setUp({ listenSocket });
    launchers.uid = 0;
    await listen(helper, invocation(), named(PodListener.MIGRATION_MEMORY));
    const path = ['migrationproxy', `${vmiA}-49152-source.sock`];
    const entry = { volume: 'public', path };
    expect(listenSocket).toHaveBeenCalledWith(expect.anything(), 3, podA, entry, 107, 107);
  });

  it('WIRE-009 unlinks only the notify socket that it made, and closing twice is harmless', async () => {
    const unlinkSocket = vi.fn(async () => true);
    const { helper } = setUp({ listenSocket: async () => ({ fd: 60, dev: 1n, ino: 2n }), unlinkSocket });
    expect(await closeListener(helper, invocation(), notify)).toEqual({ changed: false });
    await listen(helper, invocation(), notify);
    expect(await closeListener(helper, invocation(), notify)).toEqual({ changed: true });
    expect(await closeListener(helper, invocation(), notify)).toEqual({ changed: false });
    expect(unlinkSocket).toHaveBeenCalledExactlyOnceWith(
      expect.anything(),
      3,
      podA,
      { volume: 'public', path: ['domain-notify-pipe.sock'] },
      expect.objectContaining({ dev: 1n, ino: 2n }),
    );
  });

  it('releases everything of a pod, also when its directory is gone', async () => {
    const { helper, tickets, launchers } = setUp({
      listenSocket: async () => ({ fd: 60, dev: 1n, ino: 2n }),
      unlinkSocket: () => Promise.reject(nativeError('ENOENT')),
    });
    await listen(helper, invocation(), notify);
    await listen(helper, invocation(), named(PodListener.MIGRATION_CONTROL));
    expect(helper.pods.listeners(podA)).toHaveLength(2);
    expect(await release(helper, invocation(), refA)).toEqual({ changed: true });
    expect(helper.pods.listeners(podA)).toEqual([]);
    expect(tickets.size).toBe(0);
    expect(launchers.closed).toEqual([60, 60, 101, 102]);
    expect(await release(helper, invocation(), refA)).toEqual({ changed: false });
  });
});

describe('container disks', () => {
  const images = [
    { field: 'disks[0]', index: 1, imagePath: '', name: '' },
    { field: 'kernel_artifacts[0]', index: null, imagePath: '/i', name: 'i' },
    { field: 'kernel_artifacts[1]', index: null, imagePath: '/k', name: 'k' },
  ];

  it('STO-008 writes one record before all mounts, which are one call', async () => {
    const mount = vi.fn(async () => {
      steps.push('mount');
      return true;
    });
    const { helper, steps } = setUp({ mountContainerDisks: mount });
    expect(await mountContainerDisks(helper, invocation(), { ...refA, images })).toEqual({ changed: true });
    expect(steps).toEqual(['record 1,kernel-boot', 'mount']);
    expect(mount).toHaveBeenCalledExactlyOnceWith(expect.anything(), 3, podA, expect.anything(), images);
  });

  it('names the field of the image that failed, and none where it was not one', async () => {
    const failure = async (item?: number) => {
      const error = nativeError('ENOENT', { unchanged: false, ...(item !== undefined && { item }) });
      const { helper } = setUp({ mountContainerDisks: () => Promise.reject(error) });
      return toFailure(
        await mountContainerDisks(helper, invocation(), { ...refA, images }).catch(
          (reason: unknown) => reason,
        ),
      );
    };
    expect(await failure(2)).toMatchObject({
      ...{ code: Code.NotFound, errnoName: 'ENOENT', operation: 'fake operation', unchanged: false },
      field: 'kernel_artifacts[1]',
    });
    expect(await failure()).toMatchObject({ errnoName: 'ENOENT', field: '' });
  });

  it('tells the states of containers in order', async () => {
    const states = vi.fn(async (): Promise<NativeState[]> => ['ready', 'not-listening']);
    const { helper } = setUp({ containerDiskStates: states });
    const containers = [4, null, 5].map((volumeIndex, i) => ({ field: `${i}`, volumeIndex }));
    expect(await statContainerDisks(helper, invocation(), { ...refA, containers })).toEqual({
      states: [ContainerDiskState.READY, ContainerDiskState.NOT_LISTENING],
    });
    expect(states).toHaveBeenCalledExactlyOnceWith(expect.anything(), 3, podA, [4, null, 5]);
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
    ['disabled', false],
    ['permissive', false],
    ['enforcing', true],
  ] as const)('NET-014 insists on the label of a tap where SELinux is %s: %s', async (mode, required) => {
    const applyNetwork = vi.fn(async () => false);
    const { helper } = setUp({ applyNetwork, writeVolumeFile: async () => 'created' as const }, mode);
    await apply(helper, invocation(), setup);
    expect(applyNetwork.mock.lastCall?.at(-1)).toBe(required);
  });

  it.each([
    [107, 107],
    [0, 0],
  ])('makes taps of a launcher of uid %i for uid %i', async (launcherUid, owner) => {
    const applyNetwork = vi.fn(async () => false);
    const writeVolumeFile = vi.fn(async () => 'created' as const);
    const { helper, launchers } = setUp({ applyNetwork, writeVolumeFile });
    launchers.uid = launcherUid;
    expect(await apply(helper, invocation(), setup)).toEqual({ changed: true });
    expect(applyNetwork).toHaveBeenCalledWith(
      expect.anything(),
      expect.anything(),
      [],
      expect.objectContaining({ uid: owner, gid: owner }),
      false,
    );
    // Only on request.
    expect(applyNetwork.mock.lastCall).not.toMatchObject([{}, {}, [], { passtGid: expect.anything() }]);
    await apply(helper, invocation(), { ...setup, passt: true });
    expect(applyNetwork).toHaveBeenLastCalledWith(
      expect.anything(),
      expect.anything(),
      [],
      // passt never runs as root.
      expect.objectContaining({ gid: owner, passtGid: 107 }),
      false,
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

describe('a network that is not set up', () => {
  const dhcp = { ipamDisabled: true };
  const setup = applyCheck.parse(
    createPolicy(),
    create(ApplyRequestSchema, {
      pod: refA,
      attachments: ['net1', 'net2'].map((podInterface, i) => ({
        ...{ network: `n${i}`, podInterface, index: i },
        binding: { case: 'bridge' as const, value: { dhcp } },
      })),
    }),
  );
  interface Failing {
    readonly outcomes: readonly WriteOutcome[];
    /** Which record cannot be written; the network fails otherwise. */
    readonly fails?: number;
    readonly removeFails?: boolean;
  }
  const failed = async ({ outcomes, fails, removeFails }: Failing) => {
    const steps: string[] = [];
    const { helper } = setUp({
      writeVolumeFile: async (_call, _pods, _pod, _volume, name) => {
        const position = steps.length;
        steps.push(`write ${name}`);
        if (position === fails) throw nativeError('ENOSPC');
        return outcomes[position] ?? 'equal';
      },
      removeVolumeFile: async (_call, _pods, _pod, _volume, name) => {
        steps.push(`remove ${name}`);
        if (removeFails) throw nativeError('EIO');
        return true;
      },
      applyNetwork: async () => {
        steps.push('links');
        throw nativeError('EBUSY');
      },
    });
    const error = await apply(helper, invocation(), setup).then(
      () => undefined,
      (thrown: unknown) => toFailure(thrown),
    );
    return { steps, error };
  };
  const [first, second] = ['vif-cache-net1.json', 'vif-cache-net2.json'];
  const attempt = [`write ${first}`, `write ${second}`, 'links'];

  it('leaves no record that was made for it', async () => {
    const { steps, error } = await failed({ outcomes: ['created', 'created'] });
    expect(steps).toEqual([...attempt, `remove ${first}`, `remove ${second}`]);
    expect(error).toMatchObject({ errnoName: 'EBUSY', unchanged: true });
  });

  it('leaves a record that was there, and tells of one that was replaced', async () => {
    const equal = await failed({ outcomes: ['equal', 'equal'] });
    expect(equal).toMatchObject({ steps: attempt, error: { errnoName: 'EBUSY', unchanged: true } });
    const replaced = await failed({ outcomes: ['equal', 'replaced'] });
    expect(replaced).toMatchObject({ steps: attempt, error: { errnoName: 'EBUSY', unchanged: false } });
  });

  it('is not begun without its records', async () => {
    const { steps, error } = await failed({ outcomes: ['created'], fails: 1 });
    expect(steps).toEqual([`write ${first}`, `write ${second}`, `remove ${first}`]);
    expect(error).toMatchObject({ errnoName: 'ENOSPC', unchanged: true });
  });

  it('tells which record stayed', async () => {
    const { error } = await failed({ outcomes: ['created', 'equal'], removeFails: true });
    expect(error).toMatchObject({ errnoName: 'EBUSY', unchanged: false });
    expect(error?.message).toContain('undo failed: fake operation: EIO');
  });
});

describe('the end of a network', () => {
  const unplug = applyCheck.parse(
    createPolicy(),
    create(ApplyRequestSchema, { pod: refA, detachments: [{ network: 'n', podInterface: 'net1' }] }),
  );

  it('NET-020 takes its files away once its links are gone, and again if that fails', async () => {
    const files = ['vif-cache-net1.json', 'dhcp_started-net1'].map((name) => `${podA} private/${name}`);
    for (const failing of files) {
      const steps: string[] = [];
      let there = true;
      let fails = true;
      const { helper } = setUp({
        removeVolumeFile: async (_call, _pods, pod, volume, name) => {
          const file = `${pod} ${volume}/${name}`;
          steps.push(file);
          if (fails && file === failing) throw nativeError('EISDIR');
          return false;
        },
        applyNetwork: async () => {
          steps.push('links');
          const changed = there;
          there = false;
          return changed;
        },
      });
      const unplugging = () => apply(helper, invocation(), unplug);
      const failure = async () => toFailure(await unplugging().catch((error: unknown) => error));
      expect(await failure()).toMatchObject({ errnoName: 'EISDIR', unchanged: false });
      expect(await failure()).toMatchObject({ errnoName: 'EISDIR', unchanged: true });
      const tried = ['links', ...files.slice(0, files.indexOf(failing) + 1)];
      expect(steps).toEqual([...tried, ...tried]);
      fails = false;
      expect(await unplugging()).toMatchObject({ changed: false });
      expect(steps).toEqual([...tried, ...tried, 'links', ...files]);
    }
  });

  it('leaves the record while the links are there', async () => {
    const { helper } = setUp({ applyNetwork: () => Promise.reject(nativeError('EBUSY')) });
    await expect(apply(helper, invocation(), unplug)).rejects.toThrow('EBUSY');
  });
});

describe('devices', () => {
  it('answers one outcome for each device, in order', async () => {
    const claimDevices = vi.fn(async () => ['claimed', 'missing', 'already-owned'] as ClaimedOutcome[]);
    const { helper } = setUp({ claimDevices });
    const request = {
      ...refA,
      requested: [Device.TUN, Device.KVM],
      devices: ['tun', 'kvm'],
      blockVolumes: ['b'],
    } as const;
    const answer = await claim(helper, invocation(), request);
    expect(answer.results).toEqual([
      { device: Device.TUN, outcome: ClaimOutcome.CLAIMED },
      { device: Device.KVM, outcome: ClaimOutcome.MISSING },
    ]);
    expect(answer.blockVolumes).toEqual([{ volume: 'b', outcome: ClaimOutcome.ALREADY_OWNED }]);
    const [any, { devices, blockVolumes }] = [expect.anything(), request];
    expect(claimDevices).toHaveBeenCalledWith(any, any, devices, blockVolumes, 107, 107);
  });
});
