/** Container disks whose images lie on all kinds of file systems, and kubelet directories in all kinds of places. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { HotplugService, PlugKind } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createAttachment } from '../harness/pods/attachment.js';
import { unmountBelow } from '../harness/pods/mounts.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run, succeeds } from '../harness/pods/run.js';
import { HelperProcess } from './privhelper-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '2f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f22' };

/** A place for the roots of images; undefined where it cannot be made here. */
type Place = (base: string) => Promise<string | undefined>;

async function onLoop(
  base: string,
  name: string,
  megabytes: number,
  mkfs: string[],
): Promise<string | undefined> {
  const [command = '', ...options] = mkfs;
  if (!(await succeeds('sh', ['-c', `command -v ${command}`]))) {
    process.stderr.write(`${name} is not tried: ${command} is missing\n`);
    return undefined;
  }
  const file = join(base, `${name}.img`);
  writeFileSync(file, '');
  truncateSync(file, megabytes << 20);
  await run(command, [...options, file]);
  const mounted = join(base, name);
  mkdirSync(mounted);
  await run('mount', ['-o', 'loop', file, mounted]);
  return mounted;
}

const ext4: Place = (base) => onLoop(base, 'ext4', 32, ['mkfs.ext4', '-q']);

const places: readonly (readonly [name: string, place: Place])[] = [
  ['ext4', async (base) => withImage(await ext4(base), 'root')],
  ['xfs', async (base) => withImage(await onLoop(base, 'xfs', 300, ['mkfs.xfs', '-q']), 'root')],
  [
    'a btrfs subvolume',
    async (base) => {
      const top = await onLoop(base, 'btrfs', 110, ['mkfs.btrfs', '-q']);
      if (top === undefined) return undefined;
      for (const name of ['image', 'image2'])
        await run('btrfs', ['-q', 'subvolume', 'create', join(top, name)]);
      withImage(top, 'image2', 'another subvolume');
      withImage(top, 'image');
      const mounted = join(base, 'subvolume');
      mkdirSync(mounted);
      await run('mount', ['-o', 'loop,subvol=image', join(base, 'btrfs.img'), mounted]);
      return mounted;
    },
  ],
  [
    'an overlay on ext4',
    async (base) => {
      const disk = join(base, 'ext4');
      const lower = withImage(disk, 'lower');
      for (const name of ['upper', 'work', 'merged']) mkdirSync(join(disk, name));
      const options = `lowerdir=${lower},upperdir=${join(disk, 'upper')},workdir=${join(disk, 'work')}`;
      await run('mount', ['-t', 'overlay', 'overlay', '-o', options, join(disk, 'merged')]);
      return join(disk, 'merged');
    },
  ],
  [
    'a directory that is mounted, with a sibling whose name begins the same',
    async (base) => {
      const disk = join(base, 'ext4');
      withImage(disk, 'vol10', 'the sibling');
      withImage(disk, 'vol1');
      const mounted = join(base, 'vol');
      for (const name of ['vol10', 'vol1']) {
        mkdirSync(join(base, `mounted-${name}`));
        await run('mount', ['--bind', join(disk, name), join(base, `mounted-${name}`)]);
      }
      symlinkSync(join(base, 'mounted-vol1'), mounted);
      return join(base, 'mounted-vol1');
    },
  ],
];

const content = (path: string) => `image at ${path}`;

/** Puts an image into a directory that becomes a container's root. */
function withImage(top: string, name: string, text?: string): string;
function withImage(top: string | undefined, name: string, text?: string): string | undefined;
function withImage(top: string | undefined, name: string, text?: string): string | undefined {
  if (top === undefined) return undefined;
  const root = join(top, name);
  mkdirSync(join(root, 'disk'), { recursive: true });
  writeFileSync(join(root, 'disk/disk.raw'), text ?? content(root), { mode: 0o444 });
  return root;
}

describe.runIf(process.getuid?.() === 0)('container disks', () => {
  let node: HarnessNode;
  let base: string;
  /** Roots of images that could be made, by what they are. */
  let roots: Map<string, string>;

  const recordOf = (helper: HelperProcess) => join(helper.stateDir, vmi.vmiUid);
  async function startPod(rootfs: readonly string[], withoutPropagation: boolean): Promise<[Pod, number]> {
    const pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.7',
      containerDisks: rootfs.map((each, index) => ({ index, rootfs: each })),
      withoutPropagation,
    });
    return [pod, (await startLauncher(pod, { ...vmi, machine: 'fake' })).pid];
  }

  /** Mounts each disk, finds the right bytes in the launcher's view, and takes everything away again. */
  async function expectDisks(
    helper: HelperProcess,
    pod: Pod,
    launcherPid: number,
    rootfs: readonly string[],
  ) {
    const client = helper.client(StorageService);
    const ref = { podUid: pod.uid, vmiUid: vmi.vmiUid };
    for (const [volumeIndex, root] of rootfs.entries()) {
      const source = join(root, 'disk/disk.raw');
      const seen = `/proc/${launcherPid}/root/run/kubevirt/container-disks/disk_${volumeIndex}.img`;
      for (const changed of [true, false]) {
        expect(await client.mountContainerDisks({ pod: ref, disks: [{ volumeIndex }] })).toMatchObject({
          changed,
        });
      }
      expect(readFileSync(seen, 'utf8')).toBe(readFileSync(source, 'utf8'));
      expect(() => writeFileSync(seen, 'x')).toThrow(/EROFS/);
    }
    const { mountTargetEntries } = JSON.parse(readFileSync(recordOf(helper), 'utf8'));
    const { mounts } = await helper.operator(InspectService).listMounts({ podUid: pod.uid });
    expect(await client.unmountContainerDisks({ pod: ref })).toMatchObject({ changed: true });
    expect(readFileSync(`/proc/${launcherPid}/mountinfo`, 'utf8')).not.toContain('/container-disks/disk_');
    return {
      targets: mountTargetEntries.map(({ targetFile }: { targetFile: string }) => targetFile),
      nodePaths: mounts.flatMap(({ containerDisk, nodePath }) =>
        containerDisk === undefined ? [] : nodePath,
      ),
    };
  }

  beforeAll(async () => {
    base = mkdtempSync(join(tmpdir(), 'vp-fs-'));
    node = await createNode();
    roots = new Map();
    for (const [name, place] of places) {
      const root = await place(base);
      if (root !== undefined) roots.set(name, root);
    }
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });
  afterAll(async () => {
    await node?.destroy();
    await unmountBelow(base);
    expect(await run('losetup', ['--list', '--noheadings', '--output', 'BACK-FILE'])).not.toContain(base);
    rmSync(base, { recursive: true, force: true });
  });

  it.each([
    ['with', false],
    ['without', true],
  ])(
    'AFT-038 on ext4, xfs, btrfs, overlays and mounted directories are the right ones, %s host propagation',
    async (_, withoutPropagation) => {
      const rootfs = [...roots.values()];
      for (const [name, root] of roots) {
        expect([name, readFileSync(join(root, 'disk/disk.raw'), 'utf8')]).toEqual([
          name,
          expect.stringContaining('image at '),
        ]);
      }
      const [pod, launcherPid] = await startPod(rootfs, withoutPropagation);
      const helper = new HelperProcess(node.podsDir);
      try {
        await helper.start();
        const { nodePaths } = await expectDisks(helper, pod, launcherPid, rootfs);
        // Process 1 may be in a mount namespace where these images are not.
        if (!readFileSync('/proc/1/mountinfo', 'utf8').includes(base)) {
          process.stderr.write(
            'paths on the node are not compared: process 1 has not the mounts of this test\n',
          );
          return;
        }
        const bytes = nodePaths.map((path) => readFileSync(path, 'utf8'));
        expect(bytes).toEqual(rootfs.map((root) => readFileSync(join(root, 'disk/disk.raw'), 'utf8')));
      } finally {
        await helper.destroy();
      }
    },
  );

  /** A claim with a file system and a device are plugged and unplugged. `recorded`: the pod's directory for the record. */
  async function expectPlugs(
    helper: HelperProcess,
    pod: Pod,
    launcherPid: number,
    recorded: string,
  ): Promise<void> {
    const claim = join(base, 'claim');
    mkdirSync(claim, { recursive: true });
    writeFileSync(join(claim, 'disk.img'), 'claim');
    const attachment = await createAttachment(node, {
      podIP: '10.244.2.77',
      // A RAM disk's numbers: nothing of the host is behind them.
      claims: [
        { name: 'data', directory: claim },
        { name: 'block', device: { major: 1, minor: 15 } },
      ],
    });
    const ref = { podUid: pod.uid, vmiUid: vmi.vmiUid };
    const from = { pod: ref, attachmentPodUid: attachment.uid };
    const hotplug = helper.client(HotplugService);
    const shown = `/proc/${launcherPid}/root/run/kubevirt/hotplug-disks`;
    const record = join(helper.hotplugStateDir, vmi.vmiUid);

    await hotplug.plugFilesystem({ ...from, volume: 'data', kind: PlugKind.DISK });
    await hotplug.plugBlock({ ...from, volume: 'block' });
    expect(readFileSync(join(shown, 'data.img'), 'utf8')).toBe('claim');
    expect(statSync(join(shown, 'block')).isBlockDevice()).toBe(true);
    const entries: { targetFile: string }[] = JSON.parse(readFileSync(record, 'utf8')).mountTargetEntries;
    const volume = join(recorded, 'volumes/kubernetes.io~empty-dir/hotplug-disks');
    expect(entries.map(({ targetFile }) => targetFile)).toEqual([
      join(volume, 'data.img'),
      join(volume, 'block'),
    ]);

    await attachment.destroy();
    await hotplug.unplug({ pod: ref, volume: 'data', kind: PlugKind.DISK });
    // The node, then the record.
    for (let i = 0; i < 2; i++) await hotplug.unplug({ pod: ref, volume: 'block', kind: PlugKind.BLOCK });
    expect(readdirSync(shown)).toEqual([]);
    expect(existsSync(record)).toBe(false);
  }

  it.each(['elsewhere', 'behind a link', 'seen at another path'] as const)(
    'AFT-037 work with a kubelet directory that is %s',
    async (where) => {
      const [root = ''] = roots.values();
      const [pod, launcherPid] = await startPod([root], false);
      const link = join(base, 'var-lib-kubelet');
      const view = join(base, 'view');
      const flags: Readonly<Record<string, string>> = {
        elsewhere: { '--kubelet-pods-dir': node.podsDir },
        'behind a link': { '--kubelet-pods-dir': join(link, 'pods') },
        'seen at another path': { '--kubelet-pods-dir': node.podsDir, '--kubelet-pods-mount': view },
      }[where];
      rmSync(link, { force: true });
      symlinkSync(node.kubeletRoot, link);
      mkdirSync(view, { recursive: true });
      // The host's own path is not there for the helper.
      const hidden = `mount --bind ${node.podsDir} ${view} && mount -t tmpfs none ${node.kubeletRoot} && exec "$@"`;
      const helper = new HelperProcess(node.podsDir, {
        flags,
        ...(where === 'seen at another path' && {
          prefix: ['unshare', '--mount', '--propagation', 'slave', '--', 'sh', '-c', hidden, 'sh'],
        }),
      });
      try {
        await helper.start();
        const { targets } = await expectDisks(helper, pod, launcherPid, [root]);
        // The record has the path that the host has, as it was configured.
        const volume = 'volumes/kubernetes.io~empty-dir/container-disks/disk_0.img';
        const podsDir = flags['--kubelet-pods-dir'] ?? '';
        expect(targets).toEqual([join(podsDir, pod.uid, volume)]);
        await expectPlugs(helper, pod, launcherPid, join(podsDir, pod.uid));
      } finally {
        await helper.destroy();
      }
    },
  );
});
