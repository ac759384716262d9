/** The ownership table on a whole launcher, with a kernel that has SEV, Hyper-V's device and VFIO in the helper's view. */
import {
  chmodSync,
  closeSync,
  mkdirSync,
  openSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ClaimOutcome } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { Device, DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run } from '../harness/pods/run.js';
import { type JsonObject, vmiOf } from '../vectors/objects.js';
import { facts, owner, ownershipOf } from './ownership-fixture.js';
import { failureOf, HelperProcess, qemuUser } from './privhelper-fixture.js';

const qemu = `${qemuUser}:${qemuUser}`;
const sevMinor = 57;
const mshvMinor = 58;
const vfioMajor = 511;
const misc = `234 btrfs-control\n ${sevMinor} sev\n ${mshvMinor} mshv\n232 kvm\n`;
const devices = `Character devices:\n  1 mem\n${vfioMajor} vfio\n\nBlock devices:\n  7 loop\n`;

describe.runIf(process.getuid?.() === 0)('devices of a launcher', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let pod: Pod;
  let dev: string;
  let address = 5;

  beforeAll(async () => {
    node = await createNode();
    for (const [name, text] of Object.entries({ misc, devices })) writeFileSync(join(node.root, name), text);
    const view = `mount --bind ${node.root}/misc /proc/misc && mount --bind ${node.root}/devices /proc/devices && exec "$@"`;
    helper = new HelperProcess(node.podsDir, {
      prefix: ['unshare', '--mount', '--propagation', 'slave', '--', 'sh', '-c', view, 'sh'],
    });
    await helper.start();
  });
  beforeEach(async () => {
    const vmiUid = crypto.randomUUID();
    pod = await node.createPod({ name: 'virt-launcher-vm-abcde', vmiUid, podIP: `10.244.2.${address++}` });
    for (const volume of ['second', 'third']) pod.addBlockDevice(volume, 7, 0);
    const { pid } = await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    dev = `/proc/${pid}/root/dev`;
  });
  afterEach(async () => {
    await node.destroyPods();
    expect(await node.leftovers()).toEqual([]);
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
  });

  const mknod = (name: string, type: string, ...numbers: number[]) =>
    run('mknod', ['-m', '600', join(dev, name), type, ...numbers.map(String)]);
  const vfio = async (groupMajor = vfioMajor) => {
    mkdirSync(join(dev, 'vfio/devices'), { recursive: true });
    await mknod('vfio/vfio', 'c', 10, 196);
    await mknod('vfio/12', 'c', groupMajor, 12);
    await mknod('vfio/devices/vfio0', 'c', vfioMajor, 0);
  };
  const listen = (name: string) => {
    const volume = openSync(pod.emptyDir('virtiofs-containers'), 'r');
    const path = `/proc/self/fd/${volume}/${name}.sock`;
    helper.native.close(helper.native.listenUnix({ path, type: 'stream', mode: 0o755, gid: 0, backlog: 1 }));
    closeSync(volume);
  };
  const claim = (wanted: Device[], blockVolumes: string[] = []) =>
    helper.client(DeviceService).claim({
      pod: { podUid: pod.uid, vmiUid: pod.vmiUid },
      devices: wanted,
      blockVolumes,
    });
  const block = (name: string): JsonObject => ({
    name,
    target: '',
    persistentVolumeClaimInfo: { volumeMode: 'Block' },
  });
  const vmi = vmiOf({
    metadata: { name: 'vm', namespace: 'default', uid: 'u' },
    spec: {
      domain: { devices: { filesystems: [{ name: 'fs' }] }, launchSecurity: { snp: {} } },
      volumes: [
        { name: 'first', persistentVolumeClaim: { claimName: 'a' } },
        { name: 'second', dataVolume: { name: 'b' } },
        { name: 'third', persistentVolumeClaim: { claimName: 'c' } },
      ],
    },
    status: { runtimeUser: qemuUser, volumeStatus: ['first', 'second', 'third'].map(block) },
  });

  it('STO-027 AFT-040 gives each to QEMU’s user, and a second run changes nothing', async () => {
    await mknod('sev', 'c', 10, sevMinor);
    await mknod('mshv', 'c', 10, mshvMinor);
    await vfio();
    const { ownership, lines } = ownershipOf(helper, pod, { hypervisor: 'hyperv-direct' });
    expect(await ownership.claim(vmi, 0)).toBe(false);
    expect(lines.at(-1)).toContain('virtiofs container of filesystem fs does not listen yet');
    listen('fs');
    expect(await ownership.claim(vmi, 0)).toBe(true);

    const socket = join(pod.emptyDir('virtiofs-containers'), 'fs.sock');
    const given = ['mshv', 'sev', 'second', 'third', 'vfio/12', 'vfio/devices', 'net/tun'];
    const paths = [...given.map((name) => join(dev, name)), socket];
    expect(paths.map(owner)).toEqual(paths.map(() => qemu));
    expect(statSync(join(dev, 'vfio/vfio')).mode & 0o7777).toBe(0o666);
    expect([owner(join(dev, 'vfio/vfio')), owner(join(dev, 'vfio/devices/vfio0'))]).toEqual(['0:0', '0:0']);
    expect(lines.filter((line) => line.includes('no device node of block volume first'))).toHaveLength(2);

    const all = [...paths, join(dev, 'vfio/vfio')];
    const seen = all.map(facts);
    expect(await ownership.claim(vmi, 0)).toBe(true);
    expect(all.map(facts)).toEqual(seen);
    const { results } = await claim([Device.VFIO, Device.SEV]);
    expect(results.map(({ outcome }) => outcome)).toEqual(results.map(() => ClaimOutcome.ALREADY_OWNED));
    chmodSync(join(dev, 'vfio/vfio'), 0o600);
    expect((await claim([Device.VFIO])).results[0]?.outcome).toBe(ClaimOutcome.CLAIMED);
  });

  it('a group without /dev/vfio/vfio is left alone', async () => {
    mkdirSync(join(dev, 'vfio'));
    await mknod('vfio/12', 'c', vfioMajor, 12);
    expect((await claim([Device.VFIO])).results[0]?.outcome).toBe(ClaimOutcome.MISSING);
    expect(owner(join(dev, 'vfio/12'))).toBe('0:0');
  });

  it('STO-033 nothing is given away that is not the device of the name, or on another file system', async () => {
    await vfio(1);
    await mknod('sev', 'c', 10, sevMinor + 1);
    await mknod('char', 'c', 1, 5);
    symlinkSync('second', join(dev, 'linked'));
    writeFileSync(join(dev, 'bound'), '');
    await run('nsenter', [
      `--mount=${dev.replace('/root/dev', '/ns/mnt')}`,
      ...['mount', '--bind', '/dev/third', '/dev/bound'],
    ]);
    const attacks: [Device[], string[], string, string][] = [
      [[Device.VFIO], [], 'EPERM', 'type of dev/vfio/12'],
      [[Device.SEV], [], 'EPERM', 'type of dev/sev'],
      [[], ['char'], 'EPERM', 'type of dev/char'],
      [[], ['net'], 'EPERM', 'type of dev/net'],
      [[], ['linked'], 'ELOOP', 'openat2 dev/linked'],
      [[], ['bound'], 'EXDEV', 'openat2 dev/bound'],
    ];
    const names = ['vfio/vfio', 'vfio/12', 'sev', 'char', 'net', 'second', 'third'];
    const before = names.map((name) => facts(join(dev, name)));
    for (const [wanted, volumes, errnoName, operation] of attacks) {
      const failure = await failureOf(claim(wanted, volumes));
      expect(failure).toMatchObject({ errnoName, operation, refused: true, unchanged: true });
    }
    expect(names.map((name) => facts(join(dev, name)))).toEqual(before);
    // What went before the refused one is told.
    expect(await failureOf(claim([Device.TUN], ['char']))).toMatchObject({ refused: true, unchanged: false });
    const refused = helper
      .audit()
      .filter((line) => line['pod'] === pod.uid && line['decision'] === 'refused');
    expect(refused).toHaveLength(attacks.length + 1);
    // An entry of VFIO that is neither group nor directory.
    rmSync(join(dev, 'vfio/12'));
    symlinkSync('/etc/passwd', join(dev, 'vfio/12'));
    expect(await failureOf(claim([Device.VFIO]))).toMatchObject({ errnoName: 'ELOOP', refused: true });
  });

  it('STO-033 what stands in the place of a virtiofs socket keeps its owner', async () => {
    const canary = join(node.root, 'canary');
    writeFileSync(canary, 'canary');
    const place = join(pod.emptyDir('virtiofs-containers'), 'fs.sock');
    const claimSocket = () =>
      helper
        .client(SocketService)
        .claimVirtiofs({ pod: { podUid: pod.uid, vmiUid: pod.vmiUid }, filesystem: 'fs' });
    const before = facts(canary);
    for (const [plant, errnoName] of [
      [() => symlinkSync(canary, place), 'ELOOP'],
      [() => writeFileSync(place, ''), 'ENOTSOCK'],
      [() => mkdirSync(place), 'ENOTSOCK'],
    ] as const) {
      plant();
      const seen = facts(place);
      expect(await failureOf(claimSocket())).toMatchObject({ errnoName, refused: true, unchanged: true });
      expect(facts(place)).toEqual(seen);
      rmSync(place, { recursive: true });
    }
    expect(facts(canary)).toEqual(before);
    expect(await claimSocket()).toMatchObject({ outcome: ClaimOutcome.MISSING });
  });
});
