/** Images of host disks and the directories of claims, on file systems of their own and on the node's. */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { replacePvcByHostDisk } from '../../agent/reconcile/pvc-hostdisk.js';
import { imageName } from '../../agent/storage/host-disks.js';
import {
  HostDiskOutcome,
  StorageService,
  VolumeClaimOutcome,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { loadVectors } from '../vectors/load.js';
import { type JsonObject, vmiOf } from '../vectors/objects.js';
import { content, facts, owner, ownershipOf } from './ownership-fixture.js';
import { failureOf, HelperProcess, helperUser, qemuUser } from './privhelper-fixture.js';

const mib = 1024 * 1024;
const qemu = `${qemuUser}:${qemuUser}`;

describe.runIf(process.getuid?.() === 0)('host disks', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let address = 5;

  beforeAll(async () => {
    node = await createNode();
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
  });

  const createPod = (): Promise<Pod> => {
    const vmiUid = crypto.randomUUID();
    return node.createPod({ name: 'virt-launcher-vm-abcde', vmiUid, podIP: `10.244.2.${address++}` });
  };
  const launch = async (pod: Pod): Promise<number> => {
    const { pid } = await startLauncher(pod, {
      namespace: 'default',
      name: 'vm',
      vmiUid: pod.vmiUid,
      machine: 'fake',
    });
    return pid;
  };
  const ref = (pod: Pod) => ({ podUid: pod.uid, vmiUid: pod.vmiUid });
  const client = () => helper.client(StorageService);
  /** A VMI without network whose launcher is not root's. */
  const vmi = (volumes: JsonObject[], status: JsonObject = {}) =>
    vmiOf({
      metadata: { name: 'vm', namespace: 'default', uid: 'u' },
      spec: { domain: { devices: { autoattachPodInterface: false } }, volumes },
      status: { runtimeUser: qemuUser, ...status },
    });
  const nodeDirectory = (name: string): string => {
    const directory = join(node.root, name);
    mkdirSync(directory, { recursive: true });
    return directory;
  };
  const makeFileSystem = async (type: 'ext4' | 'xfs', bytes: number): Promise<string> => {
    const image = join(node.root, `${type}.fs`);
    writeFileSync(image, '');
    truncateSync(image, bytes);
    await run(`mkfs.${type}`, ['-q', image]);
    return image;
  };

  interface TreeInput {
    capacity: string;
    path: string;
    type: string;
    launcherTree?: Record<string, string>;
  }
  interface TreeExpected {
    error: boolean;
    dirEntries: string[];
    size?: number;
  }

  it('STO-025 hostdisk-create: the cases with a tree', async () => {
    const cases = loadVectors<TreeInput, TreeExpected>('storage', 'hostdisk-create').filter(
      ({ input }) => input.launcherTree !== undefined,
    );
    const below = /^run\/kubevirt-private\/vmi-disks\/vol(?:\/(.+))?$/;
    const trees = nodeDirectory('trees');
    const pod = await createPod();
    for (const [i, { input }] of cases.entries()) {
      for (const [path, what] of Object.entries(input.launcherTree ?? {})) {
        const match = below.exec(path);
        if (match === null) continue;
        const place = join(trees, `v${i}`, match[1] ?? '');
        if (what === 'dir') mkdirSync(place, { recursive: true });
        if (what.startsWith('file:')) writeFileSync(place, what.slice(5));
        if (what.startsWith('link:')) symlinkSync(what.slice(5), place);
      }
      if (existsSync(join(trees, `v${i}`))) pod.addHostPath(`v${i}`, join(trees, `v${i}`));
    }
    await launch(pod);
    const { ownership } = ownershipOf(helper, pod);
    for (const [i, { name, input, expected }] of cases.entries()) {
      const { path, type, capacity } = input;
      const asked = vmiOf({ spec: { volumes: [{ name: `v${i}`, hostDisk: { path, type, capacity } }] } });
      const failed = await ownership.claim(asked, 0).then(
        () => false,
        () => true,
      );
      expect(failed, name).toBe(expected.error);
      const directory = join(trees, `v${i}`);
      const entries = existsSync(directory) ? readdirSync(directory) : [];
      const kinds = entries.map((entry) => {
        const stat = lstatSync(join(directory, entry));
        return `${stat.isSymbolicLink() ? 'symlink' : stat.isFile() ? 'file' : 'other'} ${entry}`;
      });
      expect(kinds, name).toEqual(expected.dirEntries);
      if (expected.size === undefined) continue;
      const image = statSync(join(directory, imageName(path)));
      expect(image.size, name).toBe(expected.size);
      expect(image.uid, name).toBe(entries.length > 0 && expected.size === 3 ? 0 : qemuUser);
    }
    rmSync(trees, { recursive: true });
  });

  it.each([
    ['ext4', 16 * mib],
    ['xfs', 300 * mib],
  ] as const)(
    'STO-025 the space of a claim on %s decides about size, event and error',
    async (type, bytes) => {
      const image = await makeFileSystem(type, bytes);
      const pod = await createPod();
      const directory = await pod.addClaim('data', ['-o', 'loop', image]);
      await launch(pod);
      const reserve = 131072n;
      const available = () => {
        const { bavail, bsize } = statfsSync(directory, { bigint: true });
        return bavail * bsize - reserve;
      };
      const ensure = async (name: string, capacity: bigint) => {
        const { ownership, events } = ownershipOf(helper, pod);
        const path = `/x/${name}`;
        const hostDisk = { path, type: 'DiskOrCreate', capacity: String(capacity) };
        await ownership.claim(vmiOf({ spec: { volumes: [{ name: 'data', hostDisk }] } }), 0);
        const made = statSync(join(directory, name), { bigint: true });
        expect(made.mode & 0o7777n).toBe(0o644n);
        expect([made.uid, made.gid, made.blocks]).toEqual([107n, 107n, 0n]);
        return { size: made.size, events };
      };
      const exact = available();
      expect(await ensure('exact.img', exact)).toEqual({ size: exact, events: [] });
      const less = available();
      expect(await ensure('tolerated.img', less + 1n)).toEqual({
        size: less,
        events: [
          `Normal ToleratedSmallPV PV size too small: expected ${less + 1n} B, found ${less} B. Using it anyway, it is within 10 % toleration`,
        ],
      });
      const free = available();
      const tooMuch = (free * 100n) / 90n + 2n;
      await expect(ensure('none.img', tooMuch)).rejects.toThrow(
        `preparing host-disks failed: unable to create /x/none.img, not enough space, demanded size ${tooMuch} B is bigger than available space ${free} B, also after taking 10 % toleration into account`,
      );
      expect(existsSync(join(directory, 'none.img'))).toBe(false);
      await pod.destroy();
      rmSync(image);
    },
  );

  it('AFT-010 STO-026 a host disk of the node keeps directory and image, a claim becomes the user’s', async () => {
    const claimImage = await makeFileSystem('ext4', 8 * mib);
    const data = nodeDirectory('data/vm');
    chmodSync(data, 0o755);
    writeFileSync(join(data, 'old.img'), 'old');
    const pod = await createPod();
    const claim = await pod.addClaim('claim', ['-o', 'loop', claimImage]);
    pod.addHostPath('old', data);
    pod.addHostPath('new', data);
    // As kubelet has volumes of type hostPath: nowhere in its own directory.
    const backing = nodeDirectory('pv');
    pod.addHostPath('hostpath-pv', backing);
    await launch(pod);
    const asked = vmi(
      [
        { name: 'old', hostDisk: { path: '/data/vm/old.img', type: 'DiskOrCreate', capacity: '1Mi' } },
        { name: 'new', hostDisk: { path: '/data/vm/new.img', type: 'DiskOrCreate', capacity: '2Mi' } },
        { name: 'claim', persistentVolumeClaim: { claimName: 'c' } },
        { name: 'hostpath-pv', persistentVolumeClaim: { claimName: 'h' } },
      ],
      {
        volumeStatus: ['claim', 'hostpath-pv'].map((name) => ({
          name,
          target: '',
          persistentVolumeClaimInfo: { volumeMode: 'Filesystem', capacity: { storage: '1Mi' } },
        })),
      },
    );
    const old = facts(join(data, 'old.img'));
    const before = statSync(data);
    const { ownership, lines } = ownershipOf(helper, pod);
    const launcherVmi = replacePvcByHostDisk(asked);
    expect(await ownership.claim(launcherVmi, 0)).toBe(true);

    expect(facts(join(data, 'old.img'))).toEqual(old);
    expect(content(join(data, 'old.img'))).toBe('old');
    const after = statSync(data);
    expect([after.uid, after.gid, after.mode]).toEqual([before.uid, before.gid, before.mode]);
    expect([owner(join(data, 'new.img')), statSync(join(data, 'new.img')).size]).toEqual([qemu, 2 * mib]);
    expect([owner(claim), owner(join(claim, 'disk.img'))]).toEqual([qemu, qemu]);
    expect([owner(backing), owner(join(backing, 'disk.img'))]).toEqual(['0:0', qemu]);
    expect(lines.at(-1)).toContain('the directory of volume hostpath-pv keeps its owner');
    // A hostile agent asks by name.
    for (const volume of ['old', 'new']) {
      expect(await client().claimVolumeDirectory({ pod: ref(pod), volume })).toMatchObject({
        outcome: VolumeClaimOutcome.LEFT_ALONE,
      });
    }
    expect(owner(data)).toBe('0:0');

    const everything = [data, join(data, 'old.img'), join(data, 'new.img'), claim, join(claim, 'disk.img')];
    const seen = everything.map(facts);
    expect(await ownership.claim(launcherVmi, 0)).toBe(true);
    expect(everything.map(facts)).toEqual(seen);
    await pod.destroy();
    rmSync(claimImage);
  });

  it('AFT-009 what is no regular file of the volume is refused, and nothing else is touched', async () => {
    const secret = join(node.root, 'canary');
    writeFileSync(secret, 'canary', { mode: 0o600 });
    const volume = nodeDirectory('hostile');
    const good = nodeDirectory('good');
    const pod = await createPod();
    pod.addHostPath('bad', volume);
    pod.addHostPath('good', good);
    const pid = await launch(pod);
    const before = facts(secret);
    const place = join(volume, 'disk.img');
    const ensure = (name = 'bad', fileName = 'disk.img') =>
      client().ensureHostDisk({ pod: ref(pod), volume: name, fileName, capacityBytes: 4096n });
    const attacks: [() => void, string][] = [
      [() => symlinkSync(secret, place), 'ELOOP'],
      [() => symlinkSync('/dev/zero', place), 'ELOOP'],
      [() => symlinkSync('none', place), 'ELOOP'],
      [() => mkdirSync(place), 'EINVAL'],
      [() => execFileSync('mkfifo', [place]), 'EINVAL'],
      [() => execFileSync('mknod', [place, 'c', '1', '5']), 'EINVAL'],
    ];
    for (const [attack, errnoName] of attacks) {
      attack();
      const seen = facts(place);
      expect(await failureOf(ensure())).toMatchObject({ errnoName, refused: true, unchanged: true });
      expect(facts(place)).toEqual(seen);
      rmSync(place, { recursive: true });
    }
    const audited = helper
      .audit()
      .filter((line) => line['pod'] === pod.uid && line['decision'] === 'refused');
    expect(audited.map(({ method }) => method)).toEqual(attacks.map(() => 'StorageService.EnsureHostDisk'));

    // The disk before it in the VMI is made, the one after it is not.
    symlinkSync(secret, place);
    const disk = (name: string, path: string) => ({
      name,
      hostDisk: { path, type: 'DiskOrCreate', capacity: '4k' },
    });
    const asked = vmi([disk('good', '/a/1.img'), disk('bad', '/b/disk.img'), disk('good', '/a/2.img')]);
    await expect(ownershipOf(helper, pod).ownership.claim(asked, 0)).rejects.toThrow(
      'preparing host-disks failed: ',
    );
    expect(readdirSync(good)).toEqual(['1.img']);
    rmSync(place);

    // A directory of the launcher's own, and a link to a volume, are no volumes.
    const own = join(pod.emptyDir('private'), 'vmi-disks');
    mkdirSync(join(own, 'plain'));
    symlinkSync('good', join(own, 'linked'));
    expect(await failureOf(ensure('plain'))).toMatchObject({ errnoName: 'EPERM', refused: true });
    expect(await failureOf(ensure('linked'))).toMatchObject({ errnoName: 'ELOOP', refused: true });
    for (const name of ['plain', 'linked']) {
      const failure = await failureOf(client().claimVolumeDirectory({ pod: ref(pod), volume: name }));
      expect(failure).toMatchObject({ refused: true, unchanged: true });
    }
    expect(await failureOf(ensure('none'))).toMatchObject({ errnoName: 'ENOENT', unchanged: true });
    expect(facts(secret)).toEqual(before);
    expect(existsSync(`/proc/${pid}/root/run/kubevirt-private/vmi-disks/bad/disk.img`)).toBe(false);
  });

  it('completes an image that a helper did not live to give away, and only such a one', async () => {
    const volume = nodeDirectory('unfinished');
    const pod = await createPod();
    pod.addHostPath('data', volume);
    await launch(pod);
    const ensure = (fileName: string) =>
      client().ensureHostDisk({ pod: ref(pod), volume: 'data', fileName, capacityBytes: 8192n });
    const left = (name: string, text: string) => {
      const path = join(volume, name);
      writeFileSync(path, text);
      chownSync(path, helperUser, helperUser);
      return path;
    };
    const empty = left('empty.img', '');
    expect(await ensure('empty.img')).toMatchObject({ outcome: HostDiskOutcome.CREATED, sizeBytes: 8192n });
    expect([owner(empty), statSync(empty).size]).toEqual([qemu, 8192]);
    const full = left('full.img', 'data');
    const seen = facts(full);
    expect(await ensure('full.img')).toMatchObject({ outcome: HostDiskOutcome.EXISTED });
    expect(facts(full)).toEqual(seen);
  });
});
