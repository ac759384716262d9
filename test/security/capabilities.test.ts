/** Each capability that a method declares is needed, and nothing else is raised for it. */
import {
  chownSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { DescMethod } from '@bufbuild/protobuf';
import { ConnectError } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { FailureSchema } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { Capability } from '../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import { Device, DeviceService } from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HotplugService, PlugKind } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { MigrationSide, NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodProcess, ResourceService } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { PodListener, PodSocket, SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { StorageService } from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { declaredBy, methodName, services, sysResource } from '../../privhelper/declarations.js';
import { readThreads } from '../../privhelper/privileges.js';
import { startLauncher } from '../harness/launcher/start.js';
import { FakePasst } from '../harness/passt/fake-passt.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { run, waitFor } from '../harness/pods/run.js';
import { blockVolume, claimVolume, HelperProcess, TestPod } from '../integration/privhelper-fixture.js';
import { allowRealtime, NamedProcess } from '../integration/resources-fixture.js';

const vmi = { namespace: 'default', name: 'vm1', vmiUid: '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10' };
const volumeIndex = 2;
const listener = PodListener.NOTIFY;
const disk = { volume: 'data', fileName: 'disk.img' };
const methods = services.flatMap((service) => service.methods);

/** What this machine does not show to be needed, and why. */
const mayLift = readThreads().some(({ permitted }) => (permitted & sysResource) !== 0n);
const hasVsock = existsSync('/sys/module/vhost_vsock');
const notShown: readonly (readonly [DescMethod, Capability, string])[] = [
  [ResourceService.method.affinePit, Capability.SYS_NICE, 'there is no KVM, hence no thread kvm-pit'],
  ...(mayLift
    ? []
    : ([[ResourceService.method.setMemlock, Capability.SYS_RESOURCE, 'nobody has it here']] as const)),
  [
    SocketService.method.listenVsock,
    Capability.DAC_READ_SEARCH,
    'who may open /dev/vhost-vsock is up to the machine; see vsock_test.cc',
  ],
  ...(hasVsock
    ? []
    : ([
        [SocketService.method.listenVsock, Capability.NET_BIND_SERVICE, 'vhost_vsock is not loaded'],
      ] as const)),
];

/** Method names, each with what it declares no longer. */
type Lowered = Readonly<Record<string, readonly Capability[]>>;

describe.runIf(process.getuid?.() === 0)('declared capabilities', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let image: string;
  let pod: Pod;
  let launcherPid: number;
  let attachment: TestPod;

  const ref = () => ({ podUid: pod.uid, vmiUid: vmi.vmiUid });
  const unplugged = () => ({ pod: ref(), volume: claimVolume, kind: PlugKind.DISK });
  const observed = () => ({ podUid: pod.uid });

  /** A call of each method that has something to do for it in the pod. */
  const calls: readonly [DescMethod, () => Promise<unknown>][] = [
    [PodService.method.identify, () => helper.operator(PodService).identify({ pod: ref() })],
    [PodService.method.stat, () => helper.operator(PodService).stat(observed())],
    [
      PodService.method.getSelinuxContext,
      () => helper.operator(PodService).getSelinuxContext({ pod: ref() }),
    ],
    [
      SocketService.method.connect,
      () => helper.operator(SocketService).connect({ pod: ref(), socket: PodSocket.LAUNCHER_COMMAND }),
    ],
    [SocketService.method.listen, () => helper.operator(SocketService).listen({ pod: ref(), listener })],
    [
      SocketService.method.closeListener,
      () => helper.operator(SocketService).closeListener({ pod: ref(), listener }),
    ],
    [SocketService.method.listenVsock, listenVsock],
    [
      SocketService.method.connectAttachment,
      () =>
        helper.operator(SocketService).connectAttachment({ pod: ref(), attachmentPodUid: attachment.podUid }),
    ],
    [NetworkService.method.repairPasst, repairPasst],
    [NetworkService.method.observe, () => helper.operator(NetworkService).observe({ pod: ref() })],
    [NetworkService.method.apply, apply],
    [
      StorageService.method.statContainerDisks,
      () =>
        helper
          .operator(StorageService)
          .statContainerDisks({ pod: ref(), volumeIndexes: [volumeIndex], kernelBoot: true }),
    ],
    [
      StorageService.method.mountContainerDisks,
      () =>
        helper.operator(StorageService).mountContainerDisks({
          ...{ pod: ref(), disks: [{ volumeIndex }], kernelArtifacts: ['/boot/vmlinuz'] },
        }),
    ],
    [
      StorageService.method.openContainerDisk,
      () =>
        helper
          .operator(StorageService)
          .openContainerDisk({ pod: ref(), container: { case: 'volumeIndex', value: volumeIndex } }),
    ],
    [
      StorageService.method.statIso,
      () =>
        helper
          .operator(StorageService)
          .statIso({ pod: ref(), iso: { case: 'configMapVolume', value: 'config' } }),
    ],
    [HotplugService.method.plugFilesystem, plugFilesystem],
    [HotplugService.method.plugBlock, plugBlock],
    [HotplugService.method.list, () => helper.operator(HotplugService).list({ pod: ref() })],
    [HotplugService.method.unplug, () => helper.operator(HotplugService).unplug(unplugged())],
    [HotplugService.method.unplugAll, unplugAll],
    [
      StorageService.method.ensureHostDisk,
      () => helper.operator(StorageService).ensureHostDisk({ pod: ref(), ...disk, capacityBytes: 4096n }),
    ],
    [
      StorageService.method.claimVolumeDirectory,
      () => helper.operator(StorageService).claimVolumeDirectory({ pod: ref(), volume: disk.volume }),
    ],
    [
      SocketService.method.claimVirtiofs,
      () => helper.operator(SocketService).claimVirtiofs({ pod: ref(), filesystem: 'fs' }),
    ],
    [
      DeviceService.method.claim,
      () => helper.operator(DeviceService).claim({ pod: ref(), devices: [Device.TUN, Device.VFIO] }),
    ],
    [
      DeviceService.method.setPolicy,
      () => helper.operator(DeviceService).setPolicy({ pod: ref(), blockVolumes: ['data'] }),
    ],
    [
      ResourceService.method.setMemlock,
      () => helper.operator(ResourceService).setMemlock({ pod: ref(), process: PodProcess.QEMU }),
    ],
    [
      ResourceService.method.isolateEmulator,
      () => helper.operator(ResourceService).isolateEmulator({ pod: ref(), cpus: [0] }),
    ],
    [
      ResourceService.method.scheduleVcpus,
      () => helper.operator(ResourceService).scheduleVcpus({ pod: ref() }),
    ],
    [ResourceService.method.affinePit, () => helper.operator(ResourceService).affinePit({ pod: ref() })],
    [InspectService.method.getHelper, () => helper.operator(InspectService).getHelper({})],
    [InspectService.method.listPods, listPods],
    [InspectService.method.getNetwork, getNetwork],
    [InspectService.method.listMounts, () => helper.operator(InspectService).listMounts(observed())],
    [InspectService.method.listDevices, () => helper.operator(InspectService).listDevices(observed())],
    [InspectService.method.getCgroup, () => helper.operator(InspectService).getCgroup(observed())],
    [InspectService.method.explain, explain],
    [
      StorageService.method.unmountContainerDisks,
      () => helper.operator(StorageService).unmountContainerDisks({ pod: ref() }),
    ],
    [PodService.method.release, () => helper.operator(PodService).release({ pod: ref() })],
    [PodService.method.markUnresponsive, markUnresponsive],
  ];

  /** With a bridge there is a file to write for the launcher. */
  function apply() {
    const bridge = { case: 'bridge', value: { dhcp: { ipamDisabled: true } } } as const;
    const eth0 = { network: 'default', podInterface: 'eth0', primary: true, binding: bridge };
    return helper.operator(NetworkService).apply({ pod: ref(), attachments: [eth0] });
  }

  /** Without the address there is nothing to listen on, whatever the capabilities. */
  async function listenVsock() {
    try {
      await helper.operator(SocketService).listenVsock({});
    } catch (error) {
      const detail = error instanceof ConnectError ? error.findDetails(FailureSchema)[0] : undefined;
      if (hasVsock || !['EADDRNOTAVAIL', 'EAFNOSUPPORT'].includes(detail?.errnoName ?? '')) throw error;
    }
  }

  function plugFilesystem() {
    const plugged = { ...unplugged(), attachmentPodUid: attachment.podUid };
    return helper.operator(HotplugService).plugFilesystem(plugged);
  }

  /** With a record that cannot be read, it looks into the launcher for what is plugged. */
  function plugBlock() {
    writeFileSync(join(helper.hotplugStateDir, vmi.vmiUid), 'no record');
    const plugged = { pod: ref(), attachmentPodUid: attachment.podUid, volume: blockVolume };
    return helper.operator(HotplugService).plugBlock(plugged);
  }

  /** What could not be taken away is part of the answer. */
  async function unplugAll() {
    const { problems } = await helper.operator(HotplugService).unplugAll({ pod: ref() });
    if (problems.length > 0) throw new Error(problems.join('; '));
  }

  /** passt switches one socket and closes the connection. */
  async function repairPasst() {
    const passt = await FakePasst.start(pod.emptyDir('libvirt-runtime'), launcherPid, 1);
    try {
      for (const directory of pod.cgroupDirectories())
        writeFileSync(join(directory, 'cgroup.procs'), `${passt.pid}`);
      const repairing = helper
        .operator(NetworkService)
        .repairPasst({ pod: ref(), side: MigrationSide.SOURCE });
      // Where the repair is denied nobody may ever connect.
      const switching = passt
        .send(1)
        .catch(() => undefined)
        .then(() => passt.stop());
      await repairing;
      await switching;
    } finally {
      await passt.kill();
    }
  }

  /** What could not be looked at is part of the answer there, not a failure. */
  async function listPods() {
    const { pods } = await helper.operator(InspectService).listPods({});
    const problem = pods.find(({ state }) => state?.podUid === pod.uid)?.problem;
    if (problem !== '') throw new Error(problem ?? 'the pod is not listed');
  }

  async function getNetwork() {
    const { natProblem } = await helper.operator(InspectService).getNetwork(observed());
    if (natProblem !== '') throw new Error(natProblem);
  }

  async function explain() {
    const request = new Uint8Array([0x0a, 36, ...Buffer.from(pod.uid)]);
    const { steps } = await helper
      .operator(InspectService)
      .explain({ method: 'InspectService.ListMounts', request });
    const failed = steps.find(({ passed }) => !passed);
    if (failed !== undefined) throw new Error(failed.finding);
  }

  async function markUnresponsive() {
    process.kill(launcherPid, 'SIGKILL');
    await waitFor('launcher to end', 20_000, () => !isAlive(launcherPid));
    return helper.operator(PodService).markUnresponsive({ pod: ref() });
  }

  const call = (method: DescMethod) => {
    const found = calls.find(([each]) => each === method);
    if (found === undefined) throw new Error(`${methodName(method)} has no call here`);
    return found[1]();
  };

  /** EPERM or EACCES where that is why the call failed, undefined when it worked. */
  async function denial(method: DescMethod): Promise<string | undefined> {
    try {
      await call(method);
      return undefined;
    } catch (error) {
      const detail = error instanceof ConnectError ? error.findDetails(FailureSchema)[0] : undefined;
      const text = detail?.errnoName ?? String(error);
      return /EPERM|EACCES/.exec(text)?.[0] ?? `another failure: ${String(error)}`;
    }
  }

  async function restart(lowered: Lowered): Promise<void> {
    await helper.stop('SIGKILL');
    await helper.start({ LOWERED: JSON.stringify(lowered) });
  }

  beforeAll(async () => {
    image = join(mkdtempSync(join(tmpdir(), 'vp-image-')), 'disk.raw');
    writeFileSync(image, Buffer.alloc(4096, 7));
    node = await createNode();
    helper = new HelperProcess(node.podsDir, { program: 'dist/test/security/lowered-helper.js' });
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    rmSync(join(image, '..'), { recursive: true, force: true });
  });
  beforeEach(async () => {
    pod = await node.createPod({
      name: 'virt-launcher-vm1-abcde',
      vmiUid: vmi.vmiUid,
      podIP: '10.244.2.5',
      containerDisks: [{ index: volumeIndex, image }],
      kernelBoot: { '/boot/vmlinuz': image },
    });
    await pod.addClaim(disk.volume, ['-t', 'tmpfs', '-o', 'size=1m,mode=755', 'tmpfs']);
    const launcher = await startLauncher(pod, { ...vmi, machine: 'fake' });
    launcherPid = launcher.pid;
    allowRealtime(launcher.container.cgroups);
    await NamedProcess.inContainer(launcher.container, 'qemu-system-x86', ['CPU 0/KVM']);
    const vfio = `/proc/${launcherPid}/root/dev/vfio`;
    mkdirSync(vfio);
    await run('mknod', ['-m', '600', join(vfio, 'vfio'), 'c', '10', '196']);
    const sockets = openSync(pod.emptyDir('virtiofs-containers'), 'r');
    const path = `/proc/self/fd/${sockets}/fs.sock`;
    const { native } = helper;
    native.close(native.listenUnix({ path, type: 'stream', mode: 0o755, gid: 0, backlog: 1 }));
    closeSync(sockets);
    attachment = new TestPod(helper, ['hotplug-disks']);
    await attachment.attachment();
    const isos = join(pod.emptyDir('private'), 'config-map-disks');
    mkdirSync(isos);
    writeFileSync(join(isos, 'config.iso'), 'iso');
  });
  afterEach(async () => {
    await helper.stop('SIGKILL');
    await attachment.destroy();
    await node.destroyPods();
  });

  it('with all of them every method works', async () => {
    const called = calls.map(([method]) => methodName(method));
    const capable = methods.filter((method) => declaredBy(method).caps !== 0n).map(methodName);
    expect([...called, methodName(PodService.method.watch)].sort()).toEqual(capable.sort());
    await restart({});
    for (const [method] of calls) {
      const withheld = method === ResourceService.method.setMemlock && !mayLift;
      expect(await denial(method), methodName(method)).toBe(withheld ? 'EPERM' : undefined);
    }
  });

  it('without its capability Watch sees no pod', async () => {
    const { watch } = PodService.method;
    await restart({ [methodName(watch)]: declaredBy(watch).declaration.capabilities });
    await waitFor('the helper to say so', 20_000, () => helper.stderr.includes('EACCES'));
  });

  const capabilities = [...new Set(methods.flatMap((m) => declaredBy(m).declaration.capabilities))].sort();
  const cases = [
    ...capabilities.map((c) => ({ what: Capability[c] ?? '', without: [c] })),
    { what: 'any of them', without: capabilities },
  ];
  it.each(cases)('without $what every method that declares it is denied', async ({ without }) => {
    const lacking = calls
      .map(([method]) => method)
      .filter((method) =>
        without.some((c) => declaredBy(method).declaration.capabilities.includes(c) && isShown(method, c)),
      );
    const lower = (some: readonly DescMethod[]) =>
      restart(Object.fromEntries(some.map((method) => [methodName(method), without])));
    const expectDenied = async (some: readonly DescMethod[]) => {
      for (const method of some.filter((each) => lacking.includes(each))) {
        expect.soft((await denial(method)) ?? 'it works', methodName(method)).toMatch(/^E[A-Z]+$/);
      }
    };
    const { listen, closeListener } = SocketService.method;
    const { release, markUnresponsive: mark } = PodService.method;
    const afterListen: DescMethod[] = [closeListener, release];

    // Something to unmount, and no launcher pinned.
    await restart({});
    await helper.operator(StorageService).mountContainerDisks({ pod: ref(), disks: [{ volumeIndex }] });
    await call(HotplugService.method.plugFilesystem);
    // Not given to its user yet.
    chownSync(join(attachment.directory, 'claim/disk.img'), 0, 0);
    await lower(lacking.filter((method) => !afterListen.includes(method)));
    await expectDenied(lacking.filter((method) => !afterListen.includes(method) && method !== mark));
    await lower(lacking.filter((method) => afterListen.includes(method)));
    await call(listen);
    await expectDenied(afterListen);
    // The launcher is killed for it.
    await lower(lacking.filter((method) => method === mark));
    await expectDenied([mark]);
  });
});

function isShown(method: DescMethod, capability: Capability): boolean {
  const [, , reason] = notShown.find(([of, hidden]) => of === method && hidden === capability) ?? [];
  if (reason === undefined) return true;
  process.stderr.write(`${methodName(method)} is not tried without ${Capability[capability]}: ${reason}\n`);
  return false;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
