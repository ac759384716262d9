/** Limits, CPUs and scheduling of a pod's processes, by the kernel's account. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { PodProcess, ResourceService } from '../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { mayLift, NotedLimits } from '../harness/preload/prlimit.js';
import { failureOf, HelperProcess, type LauncherProcess, TestPod } from './privhelper-fixture.js';
import { allowRealtime, memlockOf, NamedProcess, namedProgram, threadsOf } from './resources-fixture.js';

const isRoot = process.getuid?.() === 0;
const vcpus = ['CPU 0/KVM', 'CPU 1/KVM', 'CPU 2/KVM'];
const { VIRTQEMUD, QEMU } = PodProcess;

describe.runIf(isRoot)('resources of a launcher pod', () => {
  let directory: string;
  let limits: NotedLimits;
  let helper: HelperProcess;
  const pods: TestPod[] = [];
  const named: NamedProcess[] = [];
  const resources = () => helper.client(ResourceService);

  async function launcherPod(): Promise<{ pod: TestPod; launcher: LauncherProcess }> {
    const pod = new TestPod(helper);
    pods.push(pod);
    return { pod, launcher: await pod.launcher() };
  }

  /** A child of the launcher's parent. */
  async function startNamed(comm: string, threads: readonly string[], cgroups: readonly string[]) {
    const process = await NamedProcess.start(comm, threads, cgroups);
    named.push(process);
    return process;
  }

  const startQemu = (pod: TestPod, threads: readonly string[] = [...vcpus, 'IO mon_iothread']) =>
    startNamed('qemu-system-x86', threads, pod.computeCgroups());

  const lifted = () => limits.lines();

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'vp-resources-'));
    limits = await NotedLimits.create(directory);
    helper = new HelperProcess();
    await helper.start(limits.env);
  });
  afterEach(async () => {
    await Promise.all(named.splice(0).map((each) => each.kill()));
    await Promise.all(pods.splice(0).map((each) => each.destroy()));
    helper.disconnect();
    limits.clear();
  });
  afterAll(async () => {
    await helper?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  function expectUnlimited(pid: number): void {
    if (mayLift) expect(memlockOf(pid)).toBe('unlimited unlimited');
    else expect(lifted()).toEqual([`${pid} ffffffffffffffff ffffffffffffffff`]);
  }

  describe('locked memory', () => {
    it('STO-029 AFT-049 is unlimited for virtqemud, a child of the launcher, and for nobody else', async () => {
      const { pod, launcher } = await launcherPod();
      const qemu = await startQemu(pod);
      const virtqemud = await launcher.run('/usr/bin/python3', namedProgram, 'virtqemud');
      const before = memlockOf(qemu.pid);
      expect(await resources().setMemlock({ pod: pod.ref, process: VIRTQEMUD })).toMatchObject({
        changed: true,
      });
      expectUnlimited(virtqemud);
      expect(memlockOf(qemu.pid)).toBe(before);
      expect(memlockOf(launcher.pid)).toBe(before);
    });

    it('STO-029 AFT-049 is unlimited for QEMU, a child of the launcher’s parent', async () => {
      const { pod } = await launcherPod();
      const qemu = await startQemu(pod);
      expect(await resources().setMemlock({ pod: pod.ref, process: QEMU })).toMatchObject({ changed: true });
      expectUnlimited(qemu.pid);
    });

    it('stays as it is without virtqemud', async () => {
      const { pod } = await launcherPod();
      await startNamed('virtqemud', [], pod.computeCgroups());
      expect(await resources().setMemlock({ pod: pod.ref, process: VIRTQEMUD })).toMatchObject({
        changed: false,
      });
      expect(lifted()).toEqual([]);
    });

    it('is an error without QEMU', async () => {
      const { pod } = await launcherPod();
      expect(await failureOf(resources().setMemlock({ pod: pod.ref, process: QEMU }))).toMatchObject({
        code: Code.NotFound,
        message: `no QEMU process found under process ${process.pid} child processes`,
      });
    });
  });

  describe('housekeeping', () => {
    const inHousekeeping = (pid: number) =>
      threadsOf(pid)
        .filter(({ cpuset }) => cpuset.endsWith('/housekeeping'))
        .map(({ comm }) => comm)
        .sort();

    it('STO-030 moves every thread of the container but those of vCPUs, and does it again without harm', async () => {
      const { pod, launcher } = await launcherPod();
      const qemu = await startQemu(pod);
      const made = await resources().isolateEmulator({ pod: pod.ref });
      expect(made).toMatchObject({ changed: true, moved: 0 });
      expect(inHousekeeping(qemu.pid)).toEqual([]);

      const { changed, moved } = await resources().isolateEmulator({ pod: pod.ref, cpus: [1] });
      expect(changed).toBe(true);
      expect(moved).toBe(2 + threadsOf(launcher.pid).length);
      expect(inHousekeeping(qemu.pid)).toEqual(['IO mon_iothread', 'qemu-system-x86']);
      expect(
        threadsOf(launcher.pid).every(({ cpuset, cpus }) => cpuset.endsWith('/housekeeping') && cpus === '1'),
      ).toBe(true);
      expect(qemu.thread('IO mon_iothread').cpus).toBe('1');
      expect(qemu.thread('CPU 0/KVM').cpus).not.toBe('1');

      expect(await resources().isolateEmulator({ pod: pod.ref, cpus: [1] })).toMatchObject({
        changed: false,
        moved: 0,
      });
      await qemu.end('IO mon_iothread');
      // Begun by a thread that was moved, so it is there from its first moment.
      await qemu.begin('worker');
      expect(await resources().isolateEmulator({ pod: pod.ref, cpus: [1] })).toMatchObject({
        changed: false,
      });
      expect(inHousekeeping(qemu.pid)).toEqual(['qemu-system-x86', 'worker']);
      // Others are taken from where they are.
      await startNamed('sh', [], pod.computeCgroups());
      expect(await resources().isolateEmulator({ pod: pod.ref, cpus: [0, 1] })).toMatchObject({ moved: 1 });
      expect(qemu.thread('worker').cpus).toBe('0-1');
    });

    it('STO-030 finishes while threads come and go', async () => {
      const { pod } = await launcherPod();
      const qemu = await startQemu(pod);
      let going = true;
      const churn = (async () => {
        for (let i = 0; going; i++) {
          await qemu.begin(`CPU worker ${i}`);
          await qemu.end(`CPU worker ${i}`);
        }
      })();
      try {
        await resources().isolateEmulator({ pod: pod.ref, cpus: [1] });
      } finally {
        going = false;
        await churn;
      }
      expect(inHousekeeping(qemu.pid)).toEqual(['IO mon_iothread', 'qemu-system-x86']);
    });

    it('refuses CPUs that the pod does not have, and changes nothing', async () => {
      const { pod } = await launcherPod();
      const qemu = await startQemu(pod);
      const failure = await failureOf(resources().isolateEmulator({ pod: pod.ref, cpus: [1, 4000] }));
      expect(failure).toMatchObject({
        refused: true,
        unchanged: true,
        operation: "CPUs of the launcher's cgroup",
      });
      expect(inHousekeeping(qemu.pid)).toEqual([]);
      expect(await resources().isolateEmulator({ pod: pod.ref })).toMatchObject({ changed: true });
    });
  });

  describe('scheduling', () => {
    const scheduled = (qemu: NamedProcess) =>
      qemu
        .threads()
        .filter(({ policy, priority }) => policy === 1 && priority === 1)
        .map(({ comm }) => comm)
        .sort();

    it('STO-031 makes the vCPUs that are named real-time threads of priority 1', async () => {
      const { pod } = await launcherPod();
      const threads = [...vcpus, 'CPU 3/TCG', 'CPU x/KVM', 'worker'];
      allowRealtime(pod.computeCgroups());
      const qemu = await startQemu(pod, threads);
      expect(await resources().scheduleVcpus({ pod: pod.ref, vcpus: [1, 2, 7] })).toMatchObject({
        changed: true,
      });
      expect(scheduled(qemu)).toEqual(['CPU 1/KVM', 'CPU 2/KVM']);
      expect(await resources().scheduleVcpus({ pod: pod.ref, vcpus: [1, 2, 7] })).toMatchObject({
        changed: false,
      });
      expect(await resources().scheduleVcpus({ pod: pod.ref })).toMatchObject({ changed: true });
      expect(scheduled(qemu)).toEqual(vcpus);
    });

    it('STO-031 knows vCPUs of the Microsoft hypervisor as well', async () => {
      const { pod } = await launcherPod();
      allowRealtime(pod.computeCgroups());
      const qemu = await startQemu(pod, ['CPU 0/MSHV', 'CPU 1/MSHV', 'CPU 2/MSHVX']);
      expect(await resources().scheduleVcpus({ pod: pod.ref, vcpus: [1, 2] })).toMatchObject({
        changed: true,
      });
      expect(scheduled(qemu)).toEqual(['CPU 1/MSHV']);
    });

    it('STO-031 leaves a VM without a timer thread of the kernel alone', async () => {
      const { pod } = await launcherPod();
      await startQemu(pod);
      expect(await resources().affinePit({ pod: pod.ref, realtime: true })).toMatchObject({ changed: false });
    });
  });

  describe('foreign processes', () => {
    it.each(['outside of every pod', 'of another pod'])('are refused: QEMU %s', async (where) => {
      const { pod } = await launcherPod();
      const other = new TestPod(helper);
      pods.push(other);
      const qemu = await startNamed(
        'qemu-kvm',
        vcpus,
        where === 'of another pod' ? other.computeCgroups() : [],
      );
      const before = [qemu.threads(), memlockOf(qemu.pid)];
      for (const call of [
        () => resources().setMemlock({ pod: pod.ref, process: QEMU }),
        () => resources().scheduleVcpus({ pod: pod.ref }),
      ]) {
        const failure = await failureOf(call());
        expect(failure).toMatchObject({
          refused: true,
          unchanged: true,
          operation: `cgroup of process ${qemu.pid}`,
        });
        await helper.audited(
          'the refusal',
          (line) => line['pod'] === pod.podUid && line['decision'] === 'refused',
        );
      }
      expect([qemu.threads(), memlockOf(qemu.pid)]).toEqual(before);
      expect(lifted()).toEqual([]);
    });

    it('are not found by another name or parent', async () => {
      const { pod, launcher } = await launcherPod();
      await startNamed('qemu-img', vcpus, pod.computeCgroups());
      await launcher.run('/usr/bin/python3', namedProgram, 'qemu-kvm', ...vcpus);
      for (const call of [
        () => resources().setMemlock({ pod: pod.ref, process: QEMU }),
        () => resources().scheduleVcpus({ pod: pod.ref }),
        () => resources().affinePit({ pod: pod.ref }),
      ]) {
        expect(await failureOf(call())).toMatchObject({ code: Code.NotFound, unchanged: true });
      }
    });
  });
});
